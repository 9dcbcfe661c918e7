//! The strings that mean something in a snapshot. They are interned first, so that their
//! numbers are constants.

use crate::model::{Action, State};

/// Strings by number.
pub(crate) const KNOWN: [&str; 66] = [
    "",
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "time_us",
    "user_metadata",
    "pool_id",
    "frames",
    "name",
    "filename",
    "line",
    "address",
    "requested_size",
    "state",
    "history",
    "real_size",
    "device",
    "total_size",
    "active_size",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
    "segments",
    "device_traces",
    "external_annotations",
    "allocator_settings",
    "stage",
    "trace_alloc_max_entries",
    "trace_alloc_overflowed",
    "alloc",
    "free_requested",
    "free_completed",
    "free",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "START",
    "small",
    "active_allocated",
    "inactive",
    "PYTORCH_CUDA_ALLOC_CONF",
    "roundup_power2_divisions",
    "host_segments",
    "host_traces",
    "1",
    "2",
    "4",
    "8",
    "16",
    "32",
    "64",
    "128",
    "256",
    "512",
    "1024",
    "2048",
    "4096",
    "8192",
    "16384",
    "32768",
];

macro_rules! numbers {
    ($($name:ident = $number:literal;)*) => {
        $(#[doc = concat!("Number of string ", $number, ".")] pub(crate) const $name: u32 = $number;)*

        #[cfg(test)]
        pub(crate) const NAMES: &[(&str, u32)] = &[$((stringify!($name), $number)),*];
    };
}

numbers! {
    ACTION = 1;
    ADDR = 2;
    DEVICE_FREE = 3;
    SIZE = 4;
    STREAM = 5;
    TIME_US = 6;
    USER_METADATA = 7;
    POOL_ID = 8;
    FRAMES = 9;
    NAME = 10;
    FILENAME = 11;
    LINE = 12;
    ADDRESS = 13;
    REQUESTED_SIZE = 14;
    STATE = 15;
    HISTORY = 16;
    REAL_SIZE = 17;
    DEVICE = 18;
    TOTAL_SIZE = 19;
    ACTIVE_SIZE = 20;
    SEGMENT_TYPE = 21;
    SEGMENT_POOL_ID = 22;
    IS_EXPANDABLE = 23;
    BLOCKS = 24;
    SEGMENTS = 25;
    DEVICE_TRACES = 26;
    EXTERNAL_ANNOTATIONS = 27;
    ALLOCATOR_SETTINGS = 28;
    STAGE = 29;
    TRACE_ALLOC_MAX_ENTRIES = 30;
    TRACE_ALLOC_OVERFLOWED = 31;
    ALLOC = 32;
    FREE_REQUESTED = 33;
    FREE_COMPLETED = 34;
    FREE = 35;
    SEGMENT_ALLOC = 36;
    SEGMENT_FREE = 37;
    SEGMENT_MAP = 38;
    SEGMENT_UNMAP = 39;
    SNAPSHOT = 40;
    OOM = 41;
    START = 42;
    SMALL = 43;
    ACTIVE_ALLOCATED = 44;
    INACTIVE = 45;
    PYTORCH_CUDA_ALLOC_CONF = 46;
    ROUNDUP_POWER2_DIVISIONS = 47;
    HOST_SEGMENTS = 48;
    HOST_TRACES = 49;
}

/// Number of the string "1", the first of the powers of two in MiB.
pub(crate) const FIRST_DIVISION: u32 = 50;

/// The action of a name.
#[inline]
pub(crate) fn action(text: u32) -> Action {
    match text {
        ALLOC => Action::Alloc,
        FREE_REQUESTED => Action::FreeRequested,
        FREE_COMPLETED | FREE => Action::FreeCompleted,
        SEGMENT_ALLOC => Action::SegmentAlloc,
        SEGMENT_FREE => Action::SegmentFree,
        SEGMENT_MAP => Action::SegmentMap,
        SEGMENT_UNMAP => Action::SegmentUnmap,
        SNAPSHOT => Action::Snapshot,
        OOM => Action::OutOfMemory,
        _ => Action::Other,
    }
}

/// Everything that is neither allocated nor inactive waits for a stream.
pub(crate) fn state(text: u32) -> State {
    match text {
        ACTIVE_ALLOCATED => State::Allocated,
        INACTIVE => State::Inactive,
        _ => State::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integer::at;
    use crate::model::rounding::POWERS;

    #[test]
    fn every_constant_is_the_number_of_its_string() {
        for (name, number) in NAMES {
            assert!(KNOWN[at(*number)].eq_ignore_ascii_case(name), "{name} = {number}");
        }
        assert_eq!(NAMES.len() + 1 + POWERS, KNOWN.len());
        for (power, text) in (0..).zip(&KNOWN[at(FIRST_DIVISION)..]) {
            assert_eq!(text.parse(), Ok(1_u64 << power));
        }
    }
}
