//! What the number of the allocator's live blocks says beside their bytes.

use serde::{Deserialize, Serialize};

use stepmem_detect::{Axis, Detector, Testimony};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{bytes, grouped, whole};
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Count, UnixTime};

/// The relative error that a rate in words may have.
const WORDS_WITHIN: f64 = 0.05;

/// The testimony of the number.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptState {
    /// Blocks are kept, step by step.
    Accumulates,
    /// New ones come ever more rarely.
    Fades,
    /// The number is the same as ever.
    Level,
}

/// The testimony of the number of live blocks, named as in JSON.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptBlocks {
    /// The course of the number over the steps.
    pub state: KeptState,
    /// Blocks more with each step; absent of a rank by time, and where it is level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_per_step: Option<f64>,
    /// Blocks more with each second, of a rank by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_per_second: Option<f64>,
    /// Bytes of each; absent where noise of the bytes hides that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_block: Option<f64>,
    /// The step at which it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_step: Option<Count>,
    /// The Unix time of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_time: Option<UnixTime>,
    /// The step at which it was certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certain_step: Option<Count>,
}

impl KeptBlocks {
    /// Returns the testimony of the number on the live memory of a detector; `None` where it is
    /// not known.
    pub fn of(detector: &Detector) -> Option<Self> {
        let (state, kept) = match detector.testimony()? {
            Testimony::Accumulates(kept) => (KeptState::Accumulates, Some(kept)),
            Testimony::Fades(kept) => (KeptState::Fades, Some(kept)),
            Testimony::Level => (KeptState::Level, None),
        };
        let axis = detector.axis();
        let rate_by = |of: Axis| kept.filter(|_| axis == of).map(|kept| kept.blocks_per_unit);
        Some(Self {
            state,
            blocks_per_step: rate_by(Axis::Steps),
            blocks_per_second: rate_by(Axis::Seconds),
            bytes_per_block: kept.and_then(|kept| kept.bytes_per_block),
            since_step: kept.and_then(|kept| axis.step(kept.since.position)),
            since_time: kept.map(|kept| kept.since.time),
            certain_step: kept.and_then(|kept| axis.step(kept.certain.position)),
        })
    }

    /// Returns the kind of statement that it is.
    fn claim(&self) -> Claim {
        match self.state {
            KeptState::Accumulates => Claim::BlocksKept,
            KeptState::Fades => Claim::BlocksFade,
            KeptState::Level => Claim::BlocksLevel,
        }
    }

    /// States it beside bytes that grow, or that grew until all was over.
    pub fn statement(&self, unit: StepUnit, is_over: bool) -> Statement {
        Statement::new(self.claim(), self.words(unit, is_over))
    }

    /// States it on its own, with where it began and was certain; for a person who asks what is
    /// behind a finding.
    pub fn full_statement(&self, unit: StepUnit) -> Statement {
        Statement::new(self.claim(), self.described(unit))
    }

    fn words(&self, unit: StepUnit, is_over: bool) -> String {
        let (come, is, get, do_so) =
            if is_over { ("came", "was", "got", "did") } else { ("come", "is", "get", "do") };
        match self.state {
            KeptState::Accumulates => self.rate_words(unit, is_over),
            KeptState::Fades => {
                format!("new blocks {come} ever more rarely, as in a cache that fills")
            }
            KeptState::Level => format!(
                "the number of blocks {is} level: the same tensors {get} larger, as longer batches {do_so}, or torch.cat in a loop"
            ),
        }
    }

    fn described(&self, unit: StepUnit) -> String {
        let at = |what: &str, step: Option<Count>| {
            step.map_or_else(String::new, |step| {
                format!(", {what} {} {}", unit.noun(), grouped(step.get()))
            })
        };
        match self.state {
            KeptState::Level => "their number is level".to_owned(),
            KeptState::Accumulates | KeptState::Fades => {
                let (since, certain) =
                    (at("since", self.since_step), at("certain at", self.certain_step));
                let fades = if self.state == KeptState::Fades {
                    "; new ones come ever more rarely"
                } else {
                    ""
                };
                format!("{}{since}{certain}{fades}", self.rate_words(unit, false))
            }
        }
    }

    /// Returns the rate at which blocks are kept, and their size, in words.
    fn rate_words(&self, unit: StepUnit, is_over: bool) -> String {
        let rate = match (self.blocks_per_step, self.blocks_per_second) {
            (Some(rate), _) => per(rate, unit.noun(), is_over),
            (None, Some(rate)) => per(3600.0 * rate, "hour", is_over),
            (None, None) => return "blocks are kept".to_owned(),
        };
        let each =
            self.bytes_per_block.map_or_else(String::new, |of| format!(", {} each", bytes(of)));
        format!("{rate}{each}")
    }
}

/// Returns a rate of blocks to within a twentieth: the blocks that a unit keeps, or the units that
/// keep one.
fn per(rate: f64, unit: &str, is_over: bool) -> String {
    let (keeps, keep) = if is_over { ("kept", "kept") } else { ("keeps", "keep") };
    let (n, every) = (rounded(rate), rounded(1.0 / rate));
    if n == "1" || every == "1" {
        format!("each {unit} {keeps} 1 block more")
    } else if rate > 1.0 {
        format!("each {unit} {keeps} {n} blocks more")
    } else {
        format!("every {every} {unit}s {keep} 1 block more")
    }
}

/// Returns a number with one decimal; without where that says the same.
fn rounded(number: f64) -> String {
    if (number.round() - number).abs() <= WORDS_WITHIN * number {
        whole(number)
    } else {
        format!("{number:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(state: KeptState) -> KeptBlocks {
        let step = |n| Some(Count::new(n).unwrap());
        KeptBlocks {
            state,
            blocks_per_step: Some(62.0),
            blocks_per_second: None,
            bytes_per_block: Some(163_088.5),
            since_step: step(1_023),
            since_time: None,
            certain_step: step(1_047),
        }
    }

    #[test]
    fn rate_in_words_is_within_a_twentieth_of_the_rate() {
        let cases = [
            (62.0, "each step keeps 62 blocks more"),
            (1.0, "each step keeps 1 block more"),
            (1.04, "each step keeps 1 block more"),
            (1.4, "each step keeps 1.4 blocks more"),
            (2.5, "each step keeps 2.5 blocks more"),
            (0.96, "each step keeps 1 block more"),
            (0.951, "each step keeps 1 block more"),
            (0.75, "every 1.3 steps keep 1 block more"),
            (0.4, "every 2.5 steps keep 1 block more"),
            (0.0662, "every 15 steps keep 1 block more"),
        ];
        for (rate, words) in cases {
            assert_eq!(per(rate, "step", false), words, "{rate}");
            let past = words.replace("keeps", "kept").replace("keep ", "kept ");
            assert_eq!(per(rate, "step", true), past, "{rate}");
        }
    }

    #[test]
    fn each_state_and_a_rank_by_time_have_their_words() {
        let accumulates = kept(KeptState::Accumulates);
        assert_eq!(
            accumulates.words(StepUnit::Steps, false),
            "each step keeps 62 blocks more, 159 KiB each"
        );
        assert_eq!(
            accumulates.described(StepUnit::Steps),
            "each step keeps 62 blocks more, 159 KiB each, since step 1,023, certain at step 1,047"
        );
        let fades = kept(KeptState::Fades);
        assert!(
            fades.words(StepUnit::Steps, false).contains("come ever more rarely")
                && !fades.words(StepUnit::Steps, false).contains("62")
        );
        assert!(fades.described(StepUnit::Steps).ends_with("; new ones come ever more rarely"));
        let by_time = KeptBlocks {
            blocks_per_step: None,
            blocks_per_second: Some(0.5),
            bytes_per_block: None,
            since_step: None,
            certain_step: None,
            ..accumulates
        };
        assert_eq!(by_time.described(StepUnit::Steps), "each hour keeps 1,800 blocks more");
    }
}
