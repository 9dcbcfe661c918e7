//! Growth that knows its own end: what holds it has a bound, as the rank's own process reports.

use serde::{Deserialize, Serialize};

use crate::ranks::view::RankView;
use crate::requests::causes::HeldView;
use stepmem_detect::{Axis, Config, Outlook, Signal};
use stepmem_types::site::{Fill, TensorHolder};

/// The limits within which an end withholds a page.
///
/// They are not the detector's, which asks whether memory grows: these ask how well the report on
/// one object agrees with growth that is shown. Whether the rest grows is asked with the
/// detector's own share and horizon ([`Rest::creeps`]).
struct Limits {
    /// The holder explains this share of the growth since its onset, or more.
    explained_min: f64,
    /// A holder of more than this share holds other memory than what grows, such as the host's
    /// next to a GPU's.
    explained_max: f64,
    /// A new item takes as many bytes as all items do on average, to within this share.
    item_bytes_within: f64,
    /// The largest growth on the host that is still the holder's, as a multiple of its own: the
    /// C library takes more for each item than that asked for.
    overhead_max: f64,
    /// The end may come later than reported by this share of the steps until then.
    end_within: f64,
}

/// The limits of an end that did not withhold the page when last evaluated.
const TO_BEGIN: Limits = Limits {
    explained_min: 0.9,
    explained_max: 1.25,
    item_bytes_within: 0.1,
    overhead_max: 1.3,
    end_within: 0.02,
};
/// The limits of an end that did withhold it: what hovers around a limit is not paged again and
/// again.
const TO_GO_ON: Limits = Limits {
    explained_min: 0.85,
    explained_max: 1.3,
    item_bytes_within: 0.15,
    overhead_max: 1.35,
    end_within: 0.02,
};

impl Limits {
    fn of(held: HeldView<'_>) -> &'static Self {
        if held.is_withheld { &TO_GO_ON } else { &TO_BEGIN }
    }
}

/// The end of growth whose holder has a bound. It is exactly as true as the process' report.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Filling {
    /// Steps from the rank's last one until the holder is full; 0 from then on.
    pub full_in_steps: f64,
    /// Bytes of the holder when it is full.
    pub full_bytes: f64,
    /// Bytes that it still takes until then.
    pub remaining_bytes: f64,
    /// The headroom that is left then; below 0 what is missing. Absent where the capacity is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bytes: Option<f64>,
    /// The reason that the growth is judged as if it had no end; absent where its end withholds
    /// a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<FillingDoubt>,
}

/// The reason that a reported end of growth withholds no page.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FillingDoubt {
    /// The report does not show that it is of the rank's own process.
    NotOwn,
    /// Newer searches gave no figures of it.
    Outdated,
    /// The holder should be full by now, and memory grows on.
    PastItsEnd,
    /// New items take more or fewer bytes than those before.
    ItemsVary,
    /// The holder does not hold the growth: less than most of it, or other memory.
    PartOfGrowth,
    /// The capacity is unknown.
    CapacityUnknown,
    /// The holder takes more than there is.
    DoesNotFit,
    /// The memory outside the holder grows as a leak does.
    RestGrows,
}

impl Filling {
    /// Returns the end of a trend of a rank's live memory, or of host memory next to it; `None`
    /// unless it grows, and what holds it has a bound.
    pub fn of(rank: &RankView<'_>, outlook: &Outlook) -> Option<Self> {
        let is_of_steps = outlook.axis == Axis::Steps && outlook.is_growing();
        let known = rank.site.held(outlook.signal).holder.filter(|_| is_of_steps)?;
        let holder = &known.holder;
        let now = rank.last_train?.step.as_f64();
        let measured = Measured::of(holder)?.in_memory(rank, outlook, now);
        let full_in_steps = (measured.full_at - now).max(0.0);
        let remaining_bytes = measured.remaining_bytes_at(now);
        let filling = Self {
            full_in_steps,
            full_bytes: measured.bytes + measured.to_come_bytes,
            remaining_bytes,
            left_bytes: outlook.headroom_bytes.map(|headroom| headroom - remaining_bytes),
            doubt: None,
        };
        Some(Self { doubt: filling.doubt(rank, outlook, &measured), ..filling })
    }

    /// Returns whether it keeps growth from being paged.
    pub fn withholds(&self) -> bool {
        self.doubt.is_none()
    }

    /// Returns whether it is sure that the holder takes more than there is.
    pub(crate) fn is_too_large(&self) -> bool {
        self.doubt == Some(FillingDoubt::DoesNotFit)
    }

    /// Returns whether live memory grows on although the holder was full, or should be full by
    /// now.
    fn is_past_its_end(
        &self,
        rank: &RankView<'_>,
        signal: Signal,
        measured: &Measured,
    ) -> bool {
        let within = Limits::of(rank.site.held(signal)).end_within;
        let rise = || rank.detectors.of(signal).rise_since(signal, measured.ends_by(within));
        let grows_on =
            || rise().is_some_and(|rise| rise >= rank.detectors.own().config().growth_min);
        measured.is_full() || (self.full_in_steps <= 0.0 && grows_on())
    }

    fn doubt(
        &self,
        rank: &RankView<'_>,
        outlook: &Outlook,
        measured: &Measured,
    ) -> Option<FillingDoubt> {
        let newest = rank.last_train.map_or(0.0, |last| last.step.as_f64());
        let held_bytes = measured.growth_bytes(outlook.onset.position, newest);
        let held = rank.site.held(outlook.signal);
        let limits = Limits::of(held);
        let explained = limits.explained_min * outlook.growth_bytes
            ..=limits.explained_max * outlook.growth_bytes;
        let left = self.left_bytes;
        let rest = Rest {
            growth_bytes: (outlook.growth_bytes - held_bytes).max(0.0),
            bytes_per_step: outlook.slope.bytes_per_step.map_or(0.0, |slope| slope.value)
                - measured.bytes_per_step,
        };
        let detector = rank.detectors.own();
        let creeps = |left| rest.creeps(left, detector.seconds_per_step(), detector.config());
        let doubts = [
            (FillingDoubt::NotOwn, !measured.fill.is_own),
            (FillingDoubt::Outdated, is_outdated(rank, held)),
            (FillingDoubt::PastItsEnd, self.is_past_its_end(rank, outlook.signal, measured)),
            (FillingDoubt::ItemsVary, !measured.has_items_within(limits.item_bytes_within)),
            (FillingDoubt::PartOfGrowth, !explained.contains(&held_bytes)),
            (FillingDoubt::CapacityUnknown, left.is_none()),
            (FillingDoubt::DoesNotFit, left.is_some_and(|left| left < 0.0)),
            (FillingDoubt::RestGrows, left.is_some_and(creeps)),
        ];
        doubts.into_iter().find(|(_, holds)| *holds).map(|(doubt, _)| doubt)
    }
}

/// Returns whether searches should have come to something since the holder was reported. A rank
/// that is silent reports nothing, and is not blamed for it.
fn is_outdated(rank: &RankView<'_>, held: HeldView<'_>) -> bool {
    let known = held.holder.filter(|_| held.is_holder_newest);
    known.is_none_or(|known| known.is_outdated_at(rank.last_seen))
}

/// A holder with a bound, as its process measured it.
struct Measured {
    fill: Fill,
    /// The step of the measurement.
    step: f64,
    /// The step at which it is full.
    full_at: f64,
    bytes: f64,
    bytes_per_step: f64,
    /// Bytes from then on until it is full.
    to_come_bytes: f64,
}

impl Measured {
    /// Returns `None` without a bound, and of a holder that is empty or does not fill.
    fn of(holder: &TensorHolder) -> Option<Self> {
        let (fill, step) = (holder.fill?, holder.step?.as_f64());
        let (items, bytes) = (fill.items.as_f64(), holder.bytes.as_f64());
        let items_left = fill.items_max.as_f64() - items;
        let full_at = step + items_left / fill.items_per_step;
        if items < 1.0 || !full_at.is_finite() {
            return None;
        }
        Some(Self {
            fill,
            step,
            full_at,
            bytes,
            bytes_per_step: holder.bytes_per_step,
            to_come_bytes: items_left * bytes / items,
        })
    }

    /// Returns the holder with the host memory that its items take, as far as the growth shows
    /// that; `newest` is the rank's last step.
    fn in_memory(self, rank: &RankView<'_>, outlook: &Outlook, newest: f64) -> Self {
        let is_on_host = outlook.signal == Signal::Host || rank.identity.is_host();
        let overhead = outlook.growth_bytes / self.growth_bytes(outlook.onset.position, newest);
        let overhead_max = Limits::of(rank.site.held(outlook.signal)).overhead_max;
        if !is_on_host || !(1.0..=overhead_max).contains(&overhead) {
            return self;
        }
        Self {
            bytes: overhead * self.bytes,
            bytes_per_step: overhead * self.bytes_per_step,
            to_come_bytes: overhead * self.to_come_bytes,
            ..self
        }
    }

    /// Returns the bytes that it takes from `step` on until it is full.
    fn remaining_bytes_at(&self, step: f64) -> f64 {
        let steps = (step - self.step).max(0.0);
        (self.to_come_bytes - self.bytes_per_step * steps).max(0.0)
    }

    /// Returns the step by which it is full at the latest: `within` this share of the steps until
    /// then, as far as its rate is known.
    fn ends_by(&self, within: f64) -> f64 {
        self.full_at + within * (self.full_at - self.step)
    }

    fn is_full(&self) -> bool {
        self.fill.items == self.fill.items_max
    }

    /// Returns whether a new item takes as many bytes as all do on average, to within this
    /// share.
    fn has_items_within(&self, share: f64) -> bool {
        let of_new = self.bytes_per_step / self.fill.items_per_step;
        let of_all = self.bytes / self.fill.items.as_f64();
        (of_new - of_all).abs() <= share * of_all
    }

    /// Returns the bytes that the holder gained from the onset of growth to the newest step: no
    /// more than it holds.
    fn growth_bytes(&self, onset: f64, newest: f64) -> f64 {
        let by_rate = self.bytes_per_step * (self.step - onset).max(0.0);
        let since = self.bytes_per_step * (newest - self.step);
        (by_rate.min(self.bytes) + since.min(self.to_come_bytes)).max(0.0)
    }
}

/// The growth that a holder does not explain.
struct Rest {
    growth_bytes: f64,
    bytes_per_step: f64,
}

impl Rest {
    /// Returns whether it has used as much of what is `left` as creep, which it would use up
    /// within the horizon of creep. The factors by which the detector asks for more in a short
    /// window, or of some memory, do not apply: a doubt lets a page through.
    fn creeps(&self, left: f64, seconds_per_step: Option<f64>, config: &Config) -> bool {
        let share_ratio = self.growth_bytes / (self.growth_bytes + left);
        let is_near = |pace: f64| left / self.bytes_per_step * pace <= config.horizon_seconds;
        self.bytes_per_step > 0.0
            && share_ratio >= config.share_ratio
            && seconds_per_step.is_none_or(is_near)
    }
}
