//! The selection of events.

use crate::analyze::phases::StepPhase;
use crate::integer::{at, id};
use crate::model::Snapshot;
use crate::replay::Allocation;

/// A line of code as a reader writes it: `train.py:12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFilter {
    /// The end of the file's path, from the beginning of one of its parts.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
}

impl LineFilter {
    /// Reads `FILE:LINE`.
    pub fn parse(text: &str) -> Option<Self> {
        let (file, line) = text.rsplit_once(':')?;
        let file = file.replace('\\', "/");
        Some(Self { file, line: line.parse().ok()? }).filter(|line| !line.file.is_empty())
    }

    /// Returns whether a path of the snapshot ends with its file.
    fn is_file(&self, path: &str) -> bool {
        let path = path.replace('\\', "/");
        let before = path.strip_suffix(&*self.file);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// The lines of the file that stacks pass through, rising.
    pub fn lines(&self, snapshot: &Snapshot, stacks: &[u32]) -> Vec<u64> {
        let frames = stacks.iter().flat_map(|stack| snapshot.stacks.get(*stack));
        let mut frames: Vec<u32> = frames.copied().collect();
        frames.sort_unstable();
        frames.dedup();
        let frames = frames.into_iter().map(|frame| snapshot.frame(frame));
        let own = frames.filter(|frame| self.is_file(&snapshot.text(frame.file)));
        let mut lines: Vec<u64> = own.map(|frame| frame.line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// Returns whether each stack of a snapshot passes through the line.
    pub fn stacks(&self, snapshot: &Snapshot) -> Vec<bool> {
        let frames: Vec<bool> = snapshot
            .frames
            .iter()
            .map(|frame| frame.line == self.line && self.is_file(&snapshot.text(frame.file)))
            .collect();
        let passes = |stack| {
            let mut numbers = snapshot.stacks.get(stack).iter();
            numbers.any(|frame| frames.get(at(*frame)) == Some(&true))
        };
        (0..id(snapshot.stacks.len())).map(passes).collect()
    }
}

/// The events that are selected: those that fit everything that is set.
#[derive(Clone, Debug)]
pub struct EventFilter {
    /// The program's number of the step.
    pub step: Option<u64>,
    /// The program's phase.
    pub phase: Option<StepPhase>,
    /// A line that the allocation's or the free's stack passes through.
    pub line: Option<LineFilter>,
    /// A byte of the block.
    pub address: Option<u64>,
    /// The place of the first event in the trace, from 0.
    pub first_event: u32,
    /// The place of the last event, included.
    pub last_event: u32,
    /// Bytes of the block, at least.
    pub bytes_min: u64,
}

impl Default for EventFilter {
    fn default() -> Self {
        Self {
            step: None,
            phase: None,
            line: None,
            address: None,
            first_event: 0,
            last_event: u32::MAX,
            bytes_min: 0,
        }
    }
}

impl EventFilter {
    /// Returns whether it selects blocks of the whole window.
    pub fn is_of_blocks(&self) -> bool {
        self.step.is_none()
            && self.phase.is_none()
            && (self.first_event, self.last_event) == (0, u32::MAX)
    }

    /// Returns whether a block's size and place fit.
    pub fn fits(&self, allocation: &Allocation) -> bool {
        let end = allocation.address.saturating_add(allocation.size.max(1));
        let holds = |byte: u64| (allocation.address..end).contains(&byte);
        allocation.size >= self.bytes_min && self.address.is_none_or(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_by_the_end_of_its_path() {
        let line = LineFilter::parse("train.py:12").unwrap();
        assert_eq!(line, LineFilter { file: "train.py".to_owned(), line: 12 });
        for (path, expected) in [
            ("train.py", true),
            ("/srv/job/train.py", true),
            ("C:\\job\\train.py", true),
            ("/srv/pretrain.py", false),
            ("/srv/train.pyc", false),
        ] {
            assert_eq!(line.is_file(path), expected, "{path}");
        }
        for wrong in ["train.py", ":12", "train.py:x", "train.py:"] {
            assert_eq!(LineFilter::parse(wrong), None, "{wrong}");
        }
    }
}
