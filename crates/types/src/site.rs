//! Places where training code allocates memory, and what holds it, as snapshots and clients
//! name them. Every text can be shown.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::saved;
use crate::units::{Bytes, Count, OutOfRange, checked_text};

/// The longest text of a site or a holder, in bytes.
pub const SITE_TEXT_BYTES_MAX: usize = 512;
/// Frames of a stack that are kept, innermost first.
pub const SITE_FRAMES_MAX: usize = 16;
/// Lines that held the memory of an out-of-memory error, the largest first.
pub const OOM_LINES_MAX: usize = 3;
/// Holders in one report.
pub const HOLDERS_MAX: usize = 8;
/// Parts of a path that a sentence shows: the file and its folder.
const SHOWN_PARTS: usize = 2;

/// A text of 1 to [`SITE_TEXT_BYTES_MAX`] bytes without control characters and without
/// characters that turn the direction of text around; other invisible ones are escaped.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SiteText(Box<str>);

impl SiteText {
    /// Takes a text of at most [`SITE_TEXT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Names the limit that `text` breaks.
    pub fn new(text: &str) -> Result<Self, OutOfRange> {
        Self::within(text, SITE_TEXT_BYTES_MAX)
    }

    /// Takes a text of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Names the limit that `text` breaks.
    pub fn within(text: &str, bytes_max: usize) -> Result<Self, OutOfRange> {
        if text.len() <= bytes_max && text.chars().any(turns_direction) {
            return Err(OutOfRange::Control(text.to_owned()));
        }
        checked_text(text, bytes_max).map(Self)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SiteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for SiteText {
    type Error = OutOfRange;

    fn try_from(text: String) -> Result<Self, OutOfRange> {
        Self::new(&text)
    }
}

impl From<SiteText> for String {
    fn from(text: SiteText) -> Self {
        text.0.into()
    }
}

/// Returns whether a character makes text that follows it run the other way, or ends that.
fn turns_direction(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// The kind of code that allocates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeKind {
    /// A line of Python.
    Python,
    /// An operation of autograd's backward pass.
    Backward,
    /// A C++ function.
    Cpp,
    /// The recording has no stack of it.
    NoFrames,
    /// Allocated before the recording.
    BeforeRecording,
}

/// Code that allocates memory.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CodeLine {
    /// The kind of code.
    pub kind: CodeKind,
    /// Path, of Python.
    pub file: Option<SiteText>,
    /// Line, of Python.
    pub line: Option<u64>,
    /// Function of Python and C++, operation of backward.
    pub function: Option<SiteText>,
}

impl fmt::Display for CodeLine {
    /// Writes `job/train.py:151 in evaluate`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.as_ref().map(SiteText::as_str);
        match self.kind {
            CodeKind::Python => {
                f.write_str(&short_path(self.file.as_ref().map_or("?", SiteText::as_str)))?;
                if let Some(line) = self.line {
                    write!(f, ":{line}")?;
                }
                function.map_or(Ok(()), |function| write!(f, " in {function}"))
            }
            CodeKind::Backward => {
                write!(f, "the backward pass ({})", function.unwrap_or("unknown operation"))
            }
            CodeKind::Cpp => write!(f, "C++ ({})", function.unwrap_or("unknown function")),
            CodeKind::NoFrames => f.write_str("code without a recorded stack"),
            CodeKind::BeforeRecording => f.write_str("code that ran before the recording"),
        }
    }
}

/// Returns the end of a path: the file and its folder, however a program was named at its start
/// (`train.py`, `./train.py`).
pub fn short_path(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split(['/', '\\']).filter(|part| !["", "."].contains(part)) {
        let is_back = part == ".." && parts.last().is_some_and(|last| *last != "..");
        if is_back {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    let shown = parts.len().saturating_sub(SHOWN_PARTS);
    parts.get(shown..).unwrap_or_default().join("/")
}

/// A frame of a stack of Python.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CodeFrame {
    /// The path of the source file.
    pub file: SiteText,
    /// The line's number in the file.
    pub line: u64,
    /// The name of the function.
    pub function: SiteText,
}

/// The result of a memory snapshot: a line that leaks, or none.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteVerdict {
    /// Too few steps to decide.
    InsufficientHistory,
    /// No single line explains the growth.
    None,
    /// A line leaks.
    Leak,
}

/// The result of a memory snapshot on a rank's growth.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LeakSite {
    /// The result in one word.
    pub verdict: SiteVerdict,
    /// The line that leaks; without one, the line whose memory grew most in the recording.
    pub at: Option<CodeLine>,
    /// The part of the recorded growth that the line explains, 0 to 1; `None` unless one leaks.
    #[serde(default, deserialize_with = "saved::figures")]
    pub share_ratio: Option<f64>,
    /// The rate at which the line's memory grows.
    #[serde(default, deserialize_with = "saved::figures")]
    pub bytes_per_step: Option<f64>,
    /// Whole steps in the recording.
    pub steps: u64,
    /// The user's frames from that line outwards, at most [`SITE_FRAMES_MAX`].
    #[serde(deserialize_with = "saved::list::<_, _, SITE_FRAMES_MAX>")]
    pub stack: Vec<CodeFrame>,
}

impl LeakSite {
    /// A result that names no line, of a recording of so many whole steps.
    pub fn without_line(verdict: SiteVerdict, steps: u64) -> Self {
        let (share_ratio, bytes_per_step) = (None, None);
        Self { verdict, at: None, share_ratio, bytes_per_step, steps, stack: Vec::new() }
    }
}

/// A line and what it holds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LineBytes {
    /// The line.
    pub at: CodeLine,
    /// The bytes that it holds.
    pub bytes: Bytes,
}

/// The result of a memory snapshot on an out-of-memory error.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct OomSite {
    /// The line that asked for memory.
    pub at: CodeLine,
    /// Bytes that the failed allocation requested.
    pub requested_bytes: Bytes,
    /// The lines that held most then, the largest first; at most [`OOM_LINES_MAX`].
    #[serde(deserialize_with = "saved::list::<_, _, OOM_LINES_MAX>")]
    pub held: Vec<LineBytes>,
}

/// A live object that holds ever more memory, as the training process reports it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TensorHolder {
    /// A phrase for people, with code in backticks.
    pub name: SiteText,
    /// The kind of object: `list`, `closure cell`.
    pub kind: SiteText,
    /// The line that made or fills it.
    pub at: Option<CodeLine>,
    /// Tensors behind it at `step`.
    pub tensors: Count,
    /// The storage of these, and other memory behind it.
    pub bytes: Bytes,
    /// The rate at which the tensors behind it become more.
    #[serde(deserialize_with = "saved::figures")]
    pub tensors_per_step: f64,
    /// The rate at which the bytes behind it become more.
    #[serde(deserialize_with = "saved::figures")]
    pub bytes_per_step: f64,
    /// The step at which it was measured.
    #[serde(default)]
    pub step: Option<Count>,
    /// The step since which its growth was measured.
    #[serde(default)]
    pub since_step: Option<Count>,
    /// The holder's fill level, where it has a bound.
    #[serde(default)]
    pub fill: Option<Fill>,
    /// The search for lines that found it; `None` of an object.
    #[serde(default)]
    pub lines: Option<LineSearch>,
    /// True if the holder may keep memory alive that was not measured; `None` where that is not
    /// reported.
    #[serde(default)]
    pub keeps_more: Option<bool>,
    /// Items that it gets with each step; `None` of another measure than items.
    #[serde(default, deserialize_with = "saved::figures")]
    pub added_per_step: Option<f64>,
    /// The use that the program's code makes of it; `None` where it was not read.
    #[serde(default)]
    pub removal: Option<Removal>,
}

/// The use that the code of the program makes of a holder, as far as it was read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Removal {
    /// The answer.
    pub outcome: RemovalOutcome,
    /// The line of that; of nothing, a file that was read.
    pub at: CodeLine,
}

/// The answer to whether the code of the program removes from a holder.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalOutcome {
    /// Nothing that was read does.
    Nothing,
    /// Some line does, or puts another object into its place.
    Emptied,
    /// Some line hands it on, so that it is not known.
    HandedOn,
}

/// The kinds of holders that have words of their own, as the client names them. A test finds
/// each in the client.
pub mod holder_kind {
    /// A reference cycle.
    pub const CYCLE: &str = "cycle";
    /// State of an optimizer that grows by elements.
    pub const OPTIMIZER_STATE: &str = "optimizer state in elements";
    /// Cycles of the autograd graph; no bytes are known of it.
    pub const GRAPH_CYCLE: &str = "graph cycle";
    /// `PyTorch`'s profiler; no bytes are known of it.
    pub const PROFILER: &str = "profiler";
    /// Functions that were registered to be called by a module or a tensor.
    pub const HOOKS: &str = "hooks";

    /// Those kinds; others, such as `dict`, come as the client writes them.
    pub const ALL: [&str; 5] = [CYCLE, OPTIMIZER_STATE, GRAPH_CYCLE, PROFILER, HOOKS];
}

/// The fill level of a holder with a bound, at the holder's `step`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// The items that it holds.
    pub items: Count,
    /// The most items that it holds; at least `items`.
    pub items_max: Count,
    /// The rate at which they become more.
    #[serde(deserialize_with = "saved::figures")]
    pub items_per_step: f64,
    /// Set when the rank's own process reported it, over a connection that shows who it is.
    pub is_own: bool,
}

/// A search for holders that named none.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EmptySearch {
    /// The step of the last heap scan that saw it.
    pub step: Option<Count>,
    /// Set when that scan saw all objects.
    pub is_complete: bool,
    /// Set when the memory grew about as fast as the growth that is searched for, both between
    /// the scans and from then to the last measurement: else no holder could be seen. `None`
    /// where that is not known.
    #[serde(default)]
    pub saw_growth: Option<bool>,
    /// Objects that it read; `None` where they are not known.
    #[serde(default)]
    pub objects_read: Option<Count>,
    /// Objects that it met, read or not; `None` where they are not known.
    #[serde(default)]
    pub objects_met: Option<Count>,
    /// The search for lines that followed; `None` without one.
    #[serde(default)]
    pub lines: Option<LineSearch>,
}

/// A search for the lines that allocate growing host memory: a window of Python's tracemalloc.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LineSearch {
    /// The outcome of the search.
    pub outcome: LineOutcome,
    /// Steps of the window; `None` where it did not come to its end.
    #[serde(default)]
    pub steps: Option<Count>,
    /// The longest pause between two steps that it took.
    #[serde(default, deserialize_with = "saved::figures")]
    pub pause_seconds: Option<f64>,
    /// Duration of the first traced step by the median of those before.
    #[serde(default, deserialize_with = "saved::figures")]
    pub slowdown_ratio: Option<f64>,
    /// Growth of what the system's allocator has given out; `None` where it does not tell.
    #[serde(default, deserialize_with = "saved::figures")]
    pub malloc_used_bytes_per_step: Option<f64>,
    /// Growth of what was freed and stays in its arenas, likewise.
    #[serde(default, deserialize_with = "saved::figures")]
    pub malloc_free_bytes_per_step: Option<f64>,
}

/// The outcome of a search for lines.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LineOutcome {
    /// Lines were named.
    Named,
    /// Python allocates it at many lines, of which none has a telling share.
    Spread,
    /// Python's own allocations do not grow.
    Native,
    /// Most of the growth is memory that was freed and stays in the arenas of glibc.
    Arenas,
    /// The first traced step took noticeably longer.
    Slow,
    /// The memory did not grow in the window.
    Level,
    /// The window came to its bound in time or memory.
    Bound,
    /// A window would be too short for the growth.
    Apart,
    /// The program uses tracemalloc itself.
    Own,
    /// A Python that cannot stop tracing safely.
    Unsafe,
    /// The tracing failed.
    Failed,
}

#[cfg(test)]
mod tests {
    use crate::site::{CodeKind, CodeLine, SITE_TEXT_BYTES_MAX, SiteText};

    fn line(file: &str) -> CodeLine {
        CodeLine {
            kind: CodeKind::Python,
            file: Some(SiteText::new(file).unwrap()),
            line: Some(151),
            function: Some(SiteText::new("evaluate").unwrap()),
        }
    }

    #[test]
    fn sentences_show_a_file_and_its_folder() {
        for (path, expected) in [
            ("/app/job/train.py", "job/train.py:151 in evaluate"),
            ("/app/job/./train.py", "job/train.py:151 in evaluate"),
            ("/app/eval/../job/train.py", "job/train.py:151 in evaluate"),
            ("/app/job/eval/../train.py", "job/train.py:151 in evaluate"),
            ("./train.py", "train.py:151 in evaluate"),
            ("../train.py", "../train.py:151 in evaluate"),
            ("train.py", "train.py:151 in evaluate"),
            ("/train.py", "train.py:151 in evaluate"),
            (r"C:\job\train.py", "job/train.py:151 in evaluate"),
        ] {
            assert_eq!(line(path).to_string(), expected);
        }
    }

    #[test]
    fn text_that_steers_a_terminal_or_turns_around_is_refused() {
        for text in ["", "a\u{1b}[2J", "a\nb", "a\u{202e}b", "a\u{2066}b", "\u{200f}"] {
            assert!(SiteText::new(text).is_err(), "{text:?}");
            let json = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<SiteText>(&json).is_err(), "{text:?}");
        }
        assert!(SiteText::new(&"é".repeat(SITE_TEXT_BYTES_MAX / 2)).is_ok());
        assert!(SiteText::new(&"é".repeat(SITE_TEXT_BYTES_MAX / 2 + 1)).is_err());
    }
}
