//! The past of one rank for charts: points that halve their resolution when there are too many,
//! and markers of what happened. Nothing is judged here.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::kind::{DiagnosisKind, Severity};
use stepmem_types::end::EndOutcome;
use stepmem_types::saved::{self, added};
use stepmem_types::step::StepMark;
use stepmem_types::units::Bytes;

/// Number of points at most. Beyond it, each covers twice the time or more.
pub(crate) const POINTS_MAX: usize = 256;
/// Number of points of an ended rank at most.
pub(crate) const ENDED_POINTS_MAX: usize = 128;
/// Number of markers at most. Beyond it, every other marker of the training loop is given up,
/// or else the oldest one.
pub(crate) const MARKERS_MAX: usize = 64;

/// Number of points that remain at most when there were too many.
const KEPT_POINTS_MAX: usize = POINTS_MAX / 4 * 3;
/// The unit of times: a point covers at least this many seconds.
const TICK_SECONDS: f64 = 0.1;
/// The unit of byte counts, in bytes.
const PAGE_BYTES: u64 = 4096;
/// A point covers at most 2 to this power of ticks: more than any rank lasts.
const DOUBLINGS_MAX: u32 = 31;

/// The points and markers of a rank across its incarnations.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "SavedHistory", into = "SavedHistory")]
pub struct History {
    /// The Unix time of tick 0.
    began: f64,
    /// A point covers 2 to this power of ticks.
    doublings: u32,
    // Invariant: fewer than POINTS_MAX, their times ascending.
    /// The points that are complete.
    points: Vec<Point>,
    /// The newest point as it stands. It is packed once it is complete: a record costs little.
    open: Option<Figures>,
    /// A record of an earlier Unix time than this joins the open point.
    open_until: f64,
    // Invariant: at most MARKERS_MAX.
    markers: Vec<Marker>,
    n_markers_dropped: u64,
}

/// A history as it is saved, its newest point like the others.
#[derive(Deserialize, Serialize)]
struct SavedHistory {
    #[serde(deserialize_with = "saved::times")]
    began: f64,
    doublings: u32,
    points: Vec<Point>,
    markers: Vec<Marker>,
    #[serde(deserialize_with = "saved::counts")]
    n_markers_dropped: u64,
}

impl TryFrom<SavedHistory> for History {
    type Error = &'static str;

    fn try_from(saved: SavedHistory) -> Result<Self, Self::Error> {
        let SavedHistory { began, doublings, points, markers, n_markers_dropped } = saved;
        let is_right = doublings <= DOUBLINGS_MAX
            && points.len() <= POINTS_MAX
            && points.is_sorted_by_key(|point| point.tick)
            && markers.len() <= MARKERS_MAX;
        if !is_right {
            return Err("a history out of range");
        }
        let mut history =
            Self { began, doublings, points, markers, n_markers_dropped, ..Self::default() };
        if let Some(newest) = history.points.pop() {
            history.open = Some(history.figures(&newest));
            history.open_until = history.end_of(newest.tick);
        }
        Ok(history)
    }
}

impl From<History> for SavedHistory {
    fn from(mut history: History) -> Self {
        history.close();
        let History { began, doublings, points, markers, n_markers_dropped, .. } = history;
        Self { began, doublings, points, markers, n_markers_dropped }
    }
}

/// A number in four bytes; one more than it is stored.
type Packed = NonZeroU32;

/// The figures of the time that a point covers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(from = "SavedPoint", into = "SavedPoint")]
struct Point {
    /// The time of its last record, in ticks.
    tick: u32,
    /// The last train step.
    step: Option<Packed>,
    /// Memory in pages: the last live, the greatest peak, the last reserved, the last host.
    memory: [Option<Packed>; 4],
    blocks: Blocks,
}

/// The last number of the allocator's live blocks, one more than it is; 0 is unknown. The highest
/// bit is set when the rank was silent, or another process, before the first record of the point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Blocks(u32);

impl Blocks {
    const FOLLOWS_GAP: u32 = 1 << 31;

    fn new(number: Option<u64>, follows_gap: bool) -> Self {
        let number = number.and_then(packed).map_or(0, Packed::get);
        let number = if number < Self::FOLLOWS_GAP { number } else { 0 };
        Self(number | if follows_gap { Self::FOLLOWS_GAP } else { 0 })
    }

    fn number(self) -> Option<u64> {
        NonZeroU32::new(self.0 & !Self::FOLLOWS_GAP).map(unpacked)
    }

    fn follows_gap(self) -> bool {
        self.0 & Self::FOLLOWS_GAP != 0
    }
}

impl Point {
    /// Takes in the next point, if it is of the same span. Returns whether it is.
    fn join(&mut self, next: &Self, doublings: u32) -> bool {
        if next.tick >> doublings != self.tick >> doublings {
            return false;
        }
        let [allocated, peak, reserved, host] = next.memory;
        let [own_allocated, own_peak, own_reserved, own_host] = self.memory;
        self.tick = next.tick;
        self.step = next.step.or(self.step);
        self.memory = [
            allocated.or(own_allocated),
            peak.max(own_peak),
            reserved.or(own_reserved),
            host.or(own_host),
        ];
        let number = next.blocks.number().or(self.blocks.number());
        self.blocks = Blocks::new(number, self.blocks.follows_gap());
        true
    }
}

/// A point in as many bytes however large its figures are; 0 is unknown.
type SavedPoint = [[u8; 4]; 7];

impl From<SavedPoint> for Point {
    fn from([tick, step, blocks, memory @ ..]: SavedPoint) -> Self {
        let figure = |bytes| NonZeroU32::new(u32::from_le_bytes(bytes));
        Self {
            tick: u32::from_le_bytes(tick),
            step: figure(step),
            memory: memory.map(figure),
            blocks: Blocks(u32::from_le_bytes(blocks)),
        }
    }
}

impl From<Point> for SavedPoint {
    fn from(point: Point) -> Self {
        let bytes = |figure: Option<Packed>| figure.map_or(0, Packed::get).to_le_bytes();
        let [live, peak, reserved, host] = point.memory.map(bytes);
        let (tick, blocks) = (point.tick.to_le_bytes(), point.blocks.0.to_le_bytes());
        [tick, bytes(point.step), blocks, live, peak, reserved, host]
    }
}

/// Something that happened to a rank.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Marker {
    tick: u32,
    step: Option<Packed>,
    kind: MarkerKind,
}

/// The kind of a marker.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum MarkerKind {
    /// The next process of the rank began to push.
    Restart,
    /// An evaluation ended.
    Eval,
    /// A checkpoint ended.
    Checkpoint,
    /// An epoch ended.
    Epoch,
    /// The rank takes steps again.
    Train,
    /// The model runs without steps from now on.
    Sample,
    /// The model does not run from now on.
    Idle,
    /// The rank ran out of memory.
    Oom,
    /// The rank's process ended.
    End(EndOutcome),
    /// A finding holds from now on, at this severity.
    Raised(DiagnosisKind, Severity),
    /// A finding of this severity no longer holds.
    Cleared(DiagnosisKind, Severity),
}

impl MarkerKind {
    /// Returns whether it comes again and again while all is well.
    fn is_routine(self) -> bool {
        matches!(
            self,
            Self::Eval
                | Self::Checkpoint
                | Self::Epoch
                | Self::Train
                | Self::Sample
                | Self::Idle
        )
    }

    /// Returns its name in JSON.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Epoch => "epoch",
            Self::Train => "train",
            Self::Sample => "sample",
            Self::Idle => "idle",
            Self::Oom => "oom",
            Self::End(_) => "end",
            Self::Raised(..) => "raised",
            Self::Cleared(..) => "cleared",
        }
    }
}

impl From<StepMark> for MarkerKind {
    fn from(mark: StepMark) -> Self {
        match mark {
            StepMark::Eval => Self::Eval,
            StepMark::Checkpoint => Self::Checkpoint,
            StepMark::Epoch => Self::Epoch,
        }
    }
}

/// The most bytes of a marker: in memory less, and 14 of a saved one.
const MARKER_BYTES: usize = 16;
const _: () = assert!(size_of::<Marker>() <= MARKER_BYTES);

/// The figures of a record, or of a point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The Unix time.
    pub time: f64,
    /// The last train step.
    pub step: Option<u64>,
    /// Live memory at the end of a train step, or of a sample by time.
    pub allocated: Option<Bytes>,
    /// The peak of live memory within the step.
    pub peak_allocated: Option<Bytes>,
    /// Bytes that the allocator held at the end of the step.
    pub reserved: Option<Bytes>,
    /// Host memory of its process, where the other figures are a device's.
    pub host: Option<Bytes>,
    /// The number of the allocator's live blocks, where it counts them.
    pub live_blocks: Option<u64>,
    /// Set when the rank was silent, or another process, before.
    pub follows_gap: bool,
}

impl Figures {
    /// Takes in the next record of the same point.
    fn join(&mut self, next: &Self) {
        self.time = self.time.max(next.time);
        self.step = next.step.or(self.step);
        self.allocated = next.allocated.or(self.allocated);
        self.peak_allocated = next.peak_allocated.max(self.peak_allocated);
        self.reserved = next.reserved.or(self.reserved);
        self.host = next.host.or(self.host);
        self.live_blocks = next.live_blocks.or(self.live_blocks);
    }
}

/// A marker as others see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Happened {
    /// The Unix time.
    pub time: f64,
    /// The last train step before it.
    pub step: Option<u64>,
    pub kind: MarkerKind,
}

impl History {
    /// The most heap memory that it holds, in bytes; no less than what a saved one takes.
    pub const BYTES_MAX: usize = POINTS_MAX * size_of::<Point>() + MARKERS_MAX * MARKER_BYTES;
    /// The most heap memory that it holds once the rank has ended, in bytes.
    pub const ENDED_BYTES_MAX: usize =
        ENDED_POINTS_MAX * size_of::<Point>() + MARKERS_MAX * MARKER_BYTES;

    /// Takes the figures of a record. One whose time is before the last one's counts as of that
    /// time.
    pub fn add(&mut self, figures: &Figures) {
        if let Some(open) = &mut self.open
            && figures.time < self.open_until
        {
            open.join(figures);
            return;
        }
        self.begin(figures.time);
        self.close();
        if self.points.len() + 1 >= POINTS_MAX {
            self.thin(KEPT_POINTS_MAX);
        }
        let tick = self.tick(figures.time).max(self.last_tick());
        self.open = Some(*figures);
        self.open_until = self.end_of(tick);
    }

    /// Adds a marker, of the last record where its Unix time is not known.
    pub fn mark(&mut self, kind: MarkerKind, time: Option<f64>) {
        if let Some(time) = time {
            self.begin(time);
        }
        let newest = self.open.map(|open| self.packed(&open));
        let newest = newest.or(self.points.last().copied());
        let tick = time.map(|time| self.tick(time)).or(newest.map(|point| point.tick));
        let step = newest.and_then(|point| point.step);
        if self.markers.len() >= MARKERS_MAX {
            self.thin_markers();
        }
        self.markers.push(Marker { tick: tick.unwrap_or(0), step, kind });
    }

    /// Keeps what an ended rank may hold.
    pub fn release(&mut self) {
        self.close();
        self.thin(ENDED_POINTS_MAX);
        self.points.shrink_to_fit();
        self.markers.shrink_to_fit();
    }

    /// Returns its points, ascending by time.
    pub fn points(&self) -> impl Iterator<Item = Figures> {
        let open = self.open.map(|open| self.packed(&open));
        self.points.iter().copied().chain(open).map(|point| self.figures(&point))
    }

    /// Returns its markers, the oldest first.
    pub fn markers(&self) -> impl Iterator<Item = Happened> {
        self.markers.iter().map(|marker| Happened {
            time: self.unix(marker.tick),
            step: marker.step.map(unpacked),
            kind: marker.kind,
        })
    }

    /// Returns the number of markers that were given up.
    pub(crate) fn markers_dropped(&self) -> u64 {
        self.n_markers_dropped
    }

    /// Returns the seconds that a point covers at most.
    pub(crate) fn resolution_seconds(&self) -> f64 {
        TICK_SECONDS * f64::from(width(self.doublings))
    }

    /// Packs the newest point.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let point = self.packed(&open);
        let last = self.points.last_mut();
        if !last.is_some_and(|last| last.join(&point, self.doublings)) {
            self.points.push(point);
        }
    }

    fn packed(&self, figures: &Figures) -> Point {
        Point {
            tick: self.tick(figures.time).max(self.last_tick()),
            step: figures.step.and_then(packed),
            memory: [figures.allocated, figures.peak_allocated, figures.reserved, figures.host]
                .map(|bytes| bytes.and_then(pages)),
            blocks: Blocks::new(figures.live_blocks, figures.follows_gap),
        }
    }

    fn figures(&self, point: &Point) -> Figures {
        let [allocated, peak_allocated, reserved, host] =
            point.memory.map(|figure| figure.and_then(bytes));
        Figures {
            time: self.unix(point.tick),
            step: point.step.map(unpacked),
            allocated,
            peak_allocated,
            reserved,
            host,
            live_blocks: point.blocks.number(),
            follows_gap: point.blocks.follows_gap(),
        }
    }

    /// Returns the Unix time at which the point of a tick ends.
    fn end_of(&self, tick: u32) -> f64 {
        let last = tick | (width(self.doublings) - 1);
        self.began + TICK_SECONDS * (f64::from(last) + 0.5)
    }

    /// Gives up resolution until there are at most so many points.
    fn thin(&mut self, n_points_max: usize) {
        while self.points.len() > n_points_max && self.doublings < DOUBLINGS_MAX {
            self.doublings += 1;
            let doublings = self.doublings;
            self.points.dedup_by(|later, point| point.join(later, doublings));
        }
    }

    /// Gives up every other marker of the training loop, or else the oldest marker.
    fn thin_markers(&mut self) {
        let n_before = self.markers.len();
        let mut is_kept = false;
        self.markers.retain(|marker| {
            is_kept ^= marker.kind.is_routine();
            !marker.kind.is_routine() || is_kept
        });
        if self.markers.len() >= MARKERS_MAX {
            self.markers.remove(0);
        }
        let n_dropped = n_before - self.markers.len();
        let n_dropped = u64::try_from(n_dropped).unwrap_or(u64::MAX);
        self.n_markers_dropped = added(self.n_markers_dropped, n_dropped);
    }

    /// Makes a Unix time the first one, if there is none.
    fn begin(&mut self, time: f64) {
        if self.open.is_none() && self.points.is_empty() && self.markers.is_empty() {
            self.began = time;
        }
    }

    /// Returns a Unix time in ticks; the first one is 0.
    fn tick(&self, time: f64) -> u32 {
        whole(((time - self.began) / TICK_SECONDS).round())
    }

    fn last_tick(&self) -> u32 {
        self.points.last().map_or(0, |point| point.tick)
    }

    fn unix(&self, tick: u32) -> f64 {
        self.began + TICK_SECONDS * f64::from(tick)
    }
}

fn width(doublings: u32) -> u32 {
    1 << doublings.min(DOUBLINGS_MAX)
}

/// Returns a number that fits; `None` of a larger one.
fn packed(number: u64) -> Option<Packed> {
    u32::try_from(number.checked_add(1)?).ok().and_then(NonZeroU32::new)
}

fn unpacked(number: Packed) -> u64 {
    u64::from(number.get() - 1)
}

/// Returns a byte count to the nearest page.
fn pages(bytes: Bytes) -> Option<Packed> {
    packed((bytes.get() + PAGE_BYTES / 2) / PAGE_BYTES)
}

fn bytes(pages: Packed) -> Option<Bytes> {
    Bytes::new(unpacked(pages) * PAGE_BYTES).ok()
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time before the first is the first, one too far ahead the last"
)]
fn whole(ticks: f64) -> u32 {
    ticks as u32
}

#[cfg(test)]
mod tests {
    use crate::ranks::history::{
        ENDED_POINTS_MAX, Figures, History, MARKERS_MAX, MarkerKind, POINTS_MAX, SavedHistory,
    };
    use stepmem_types::units::Bytes;

    /// A history of a rank that pushes every `seconds`, its live memory 1 MiB a step.
    fn history(n_steps: u32, seconds: f64) -> History {
        let mut history = History::default();
        for step in 0..n_steps {
            history.add(&at(step, 1e9 + seconds * f64::from(step)));
        }
        history
    }

    fn at(step: u32, time: f64) -> Figures {
        let bytes = |mib: u32| Bytes::new(u64::from(mib) << 20).ok();
        Figures {
            time,
            step: Some(step.into()),
            allocated: bytes(step),
            peak_allocated: bytes(if step == 3 { 5000 } else { step }),
            ..Figures::default()
        }
    }

    #[test]
    fn history_takes_at_most_8_kib() {
        const { assert!(History::BYTES_MAX <= 8 * 1024) };
        let history = history(100_000, 0.3);
        assert!(history.points.capacity() <= POINTS_MAX);
    }

    #[test]
    fn full_history_keeps_both_ends_the_order_and_the_greatest_peak() {
        for (n_steps, seconds) in [(10, 1.0), (255, 0.02), (10_000, 0.02), (70_000, 33.0)] {
            let history = history(n_steps, seconds);
            let points: Vec<Figures> = history.points().collect();
            let n = points.len();
            assert!(n < POINTS_MAX && (n_steps < 200 || n >= 50), "{n} of {n_steps}");
            assert!(points.is_sorted_by_key(|point| point.step));
            let reach = points[n - 1].time - points[0].time;
            let span = seconds * f64::from(n_steps);
            assert!(points[0].time - 1e9 <= history.resolution_seconds());
            assert!((reach - span).abs() <= 2.0 * history.resolution_seconds() + seconds);
            assert_eq!(points[n - 1].step, Some(u64::from(n_steps) - 1));
            assert_eq!(points[n - 1].allocated.unwrap().get(), u64::from(n_steps - 1) << 20);
            let peak = points.iter().filter_map(|point| point.peak_allocated).max();
            assert!(peak.unwrap().get() >= 5000 << 20);
        }
    }

    #[test]
    fn gap_stays_one_while_it_is_longer_than_a_point() {
        let mut history = history(100, 1.0);
        for step in 100..1000 {
            let follows_gap = step == 100;
            history.add(&Figures { follows_gap, ..at(step, 1e9 + 600.0 + f64::from(step)) });
        }
        let gaps: Vec<Figures> = history.points().filter(|point| point.follows_gap).collect();
        assert_eq!(gaps.len(), 1);
        assert!((gaps[0].time - 1e9 - 700.0).abs() <= history.resolution_seconds());
    }

    #[test]
    fn clock_that_is_set_back_keeps_the_order() {
        let mut history = history(100, 1.0);
        history.add(&at(100, 1e9 - 5000.0));
        history.add(&at(101, 1e9 + 101.0));
        let points: Vec<Figures> = history.points().collect();
        assert!(points.is_sorted_by(|a, b| a.time <= b.time));
        assert_eq!(points.len(), 101);
    }

    #[test]
    fn markers_of_the_loop_are_given_up_before_others() {
        let mut history = history(10, 1.0);
        history.mark(MarkerKind::Restart, None);
        (0..500).for_each(|_| history.mark(MarkerKind::Eval, None));
        history.mark(MarkerKind::Oom, Some(1e9 + 9.0));
        let kinds: Vec<MarkerKind> = history.markers().map(|of| of.kind).collect();
        assert!(kinds.len() <= MARKERS_MAX);
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), (MarkerKind::Restart, MarkerKind::Oom));
        let n_kept = u64::try_from(kinds.len()).unwrap();
        assert_eq!(history.markers_dropped() + n_kept, 502);
        (0..MARKERS_MAX).for_each(|_| history.mark(MarkerKind::Oom, None));
        assert!(history.markers().all(|of| of.kind == MarkerKind::Oom));
    }

    #[test]
    fn saved_history_comes_back_and_one_out_of_range_does_not() {
        let mut whole = history(5000, 0.5);
        whole.mark(MarkerKind::Eval, None);
        let saved = serde_json::to_vec(&whole).unwrap();
        let back: History = serde_json::from_slice(&saved).unwrap();
        assert_eq!(back.points().collect::<Vec<_>>(), whole.points().collect::<Vec<_>>());
        assert_eq!(back.markers().collect::<Vec<_>>(), whole.markers().collect::<Vec<_>>());
        let saved = || SavedHistory::from(whole.clone());
        for out in [
            SavedHistory { doublings: 32, ..saved() },
            SavedHistory { points: saved().points.into_iter().rev().collect(), ..saved() },
            SavedHistory { markers: vec![whole.markers[0]; MARKERS_MAX + 1], ..saved() },
        ] {
            let saved = serde_json::to_vec(&out).unwrap();
            assert!(serde_json::from_slice::<History>(&saved).is_err());
        }
    }

    #[test]
    fn ended_rank_keeps_fewer_points() {
        let mut history = history(5000, 0.5);
        history.release();
        assert!(history.points().count() <= ENDED_POINTS_MAX);
        assert_eq!(history.points().last().unwrap().step, Some(4999));
    }
}
