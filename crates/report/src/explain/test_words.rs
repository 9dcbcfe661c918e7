//! The name and the text of each explanation by which the detector stops a window.

use stepmem_detect::Explanation;

/// The unit of the value and the limit that an explanation is tested by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TestUnit {
    Bytes,
    /// A whole number of things.
    Count,
    /// A number without a unit.
    Number,
    /// A share, 1 for all.
    Share,
    Seconds,
}

/// The words for an explanation.
#[derive(Debug)]
pub(super) struct TestWords {
    /// A word or two for what it stops, at most 14 characters.
    pub(super) name: &'static str,
    /// The unit of its values.
    pub(super) unit: TestUnit,
    /// The words for what memory did in such a window, after "in 96% of the windows it".
    pub(super) did: &'static str,
    /// Writes a clause that explains a failure from the value and the limit as text.
    pub(super) reason: fn(&str, &str) -> String,
    /// The entry of a glossary: what it means to be stopped by it.
    pub(super) meaning: &'static str,
}

/// Returns the words for an explanation.
pub(super) fn words_of(explanation: Explanation) -> &'static TestWords {
    match explanation {
        Explanation::TooShort => &TOO_SHORT,
        Explanation::Small => &SMALL,
        Explanation::RandomWalk => &RANDOM_WALK,
        Explanation::FarOff => &FAR_OFF,
        Explanation::Ended => &ENDED,
        Explanation::SeenBefore => &SEEN_BEFORE,
        Explanation::EverLarger => &EVER_LARGER,
        Explanation::ComesAndGoes => &COMES_AND_GOES,
        Explanation::Cache => &CACHE,
    }
}

const TOO_SHORT: TestWords = TestWords {
    name: "too short",
    unit: TestUnit::Count,
    did: "had too few blocks",
    reason: |value, limit| format!("it has {value} of the {limit} blocks that it needs"),
    meaning: "has too few blocks of pushes, since the start or since the last growth ended",
};

const SMALL: TestWords = TestWords {
    name: "small",
    unit: TestUnit::Bytes,
    did: "hardly grew",
    reason: |value, limit| {
        format!("without its largest increment it grew {value}, and has to grow {limit}")
    },
    meaning: "hardly grew but for one increment: level, or one level shift",
};

const RANDOM_WALK: TestWords = TestWords {
    name: "random walk",
    unit: TestUnit::Number,
    did: "went up and down as a random walk may",
    reason: |value, limit| {
        format!(
            "its increments differ: it grew by {value} standard deviations of a random walk, which reaches {limit} by chance"
        )
    },
    meaning: "goes up and down as a random walk may, or in a few jumps",
};

const FAR_OFF: TestWords = TestWords {
    name: "far off",
    unit: TestUnit::Seconds,
    did: "grew too slowly to matter within three days",
    reason: |value, limit| {
        format!("what is left lasts {value}; only growth that ends within {limit} is creep")
    },
    meaning: "grows, but what is left lasts more than three days",
};

const ENDED: TestWords = TestWords {
    name: "ended",
    unit: TestUnit::Share,
    did: "had grown, and was level since",
    reason: |value, limit| {
        format!("its newest blocks gained {value} of what its slope gives, and need {limit}")
    },
    meaning: "grew, and has been level since",
};

const SEEN_BEFORE: TestWords = TestWords {
    name: "seen before",
    unit: TestUnit::Bytes,
    did: "was as high before",
    reason: |value, limit| {
        format!("it was as high before: it ends at {value}, and has to end at {limit}")
    },
    meaning: "ends not far enough above what this incarnation had before: a sawtooth",
};

const EVER_LARGER: TestWords = TestWords {
    name: "ever larger",
    unit: TestUnit::Number,
    did: "grew in few increments, each larger than the last",
    reason: |value, limit| {
        format!(
            "each of its few increments is larger than the last: their tau is {value} and may be at most {limit}"
        )
    },
    meaning: "grows in few increments, each larger than the last: so do larger batches",
};

const COMES_AND_GOES: TestWords = TestWords {
    name: "comes and goes",
    unit: TestUnit::Share,
    did: "grew by too little of what was left",
    reason: |value, limit| {
        format!(
            "it has used {value} of what there was to grow into, and has to use {limit} in so short a window"
        )
    },
    meaning: "has used too little of what is left: short ramps come and go",
};

const CACHE: TestWords = TestWords {
    name: "cache",
    unit: TestUnit::Share,
    did: "slowed down like a cache that fills",
    reason: |value, limit| {
        format!(
            "it slows down like a cache that fills: it has used {value} of what there was to grow into, and has to use {limit}"
        )
    },
    meaning: "slows down, and would end as a healthy cache does",
};
