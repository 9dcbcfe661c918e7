//! The detail of each device in a document: less where many devices share it.

use crate::analyze::sites::STACK_FRAMES_MAX;

/// Devices that are shown in full.
const DEVICES_IN_FULL: usize = 4;
/// Blocks in the lists of events of all devices: 50 bytes each.
pub(crate) const BLOCKS_MAX: usize = 70_000;
/// Other parts are not shown in less detail before a list is this short.
const BLOCKS_FEW: usize = 50;
/// A timeline of fewer samples is useless.
const SAMPLES_MIN: usize = 16;

/// The detail that is shown of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detail {
    /// Samples of the timeline.
    pub samples: usize,
    /// Lines with a band of their own.
    pub bands: usize,
    /// Pieces of a segment map.
    pub spans: usize,
    /// Steps that are marked.
    pub marks: usize,
    /// Rows of a table.
    pub rows: usize,
    /// Frames of a stack.
    pub frames: usize,
    /// Blocks in the list of events.
    pub blocks: usize,
}

impl Detail {
    /// Everything.
    pub(crate) const FULL: Self = Self {
        samples: 2400,
        bands: 20,
        spans: 4000,
        marks: 2000,
        rows: 40,
        frames: STACK_FRAMES_MAX,
        blocks: BLOCKS_MAX,
    };

    /// Returns the detail that a document of so many devices begins with.
    pub(crate) fn of(n_devices: usize) -> Self {
        let (mut detail, mut n_shared) = (Self::FULL, n_devices);
        while n_shared > DEVICES_IN_FULL
            && let Some(less) = detail.less()
        {
            (detail, n_shared) = (less, n_shared / 2);
        }
        detail.blocks = BLOCKS_MAX / n_devices.max(1);
        detail
    }

    /// A quarter of the list of events while that is long, then half of everything; `None`
    /// where too little would be left to see.
    pub(crate) fn halved(self) -> Option<Self> {
        if self.blocks > BLOCKS_FEW {
            return Some(Self { blocks: self.blocks / 4, ..self });
        }
        self.less()
    }

    fn less(self) -> Option<Self> {
        let half = Self {
            samples: self.samples / 2,
            bands: (self.bands / 2).max(2),
            spans: self.spans / 2,
            marks: self.marks / 2,
            rows: (self.rows / 2).max(4),
            frames: (self.frames / 2).max(2),
            blocks: self.blocks / 2,
        };
        (half.samples >= SAMPLES_MIN).then_some(half)
    }
}

#[cfg(test)]
mod tests {
    use crate::render::html::detail::{BLOCKS_MAX, Detail};

    #[test]
    fn many_devices_get_less_each_and_never_nothing() {
        assert_eq!(Detail::of(1), Detail::FULL);
        assert_eq!(Detail::of(4), Detail { blocks: BLOCKS_MAX / 4, ..Detail::FULL });
        assert_eq!(Detail::of(8).samples, 1200);
        assert_eq!((Detail::of(10_000).samples, Detail::of(10_000).frames), (18, 2));
    }
}
