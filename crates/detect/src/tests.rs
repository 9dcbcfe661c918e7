//! Tests: what the detector reports for series of known shape.

use std::collections::BTreeSet;

use crate::config::Config;
use crate::detector::Detector;
use crate::explanations::Explanation;
use crate::sample::{DeviceReading, Sample};
use crate::witness::{Accumulation, Testimony};
use stepmem_forecast::{Asked, AxisPoint, Bend, Course, Outlook, Signal, Stage, Trend};
use stepmem_types::units::{GIBIBYTE, MEBIBYTE, UnixTime};

const CAPACITY: f64 = 24.0 * GIBIBYTE;
const BASE: f64 = 8.0 * GIBIBYTE;
/// Bytes that a step needs in addition to those that it keeps.
const TRANSIENT: f64 = 4.0 * GIBIBYTE;
const SECONDS_PER_STEP: f64 = 0.5;

fn time(seconds: f64) -> UnixTime {
    UnixTime::new(1_760_000_000.0 + seconds).unwrap()
}

fn sample(step: u32, allocated: f64) -> Sample {
    let position = f64::from(step);
    let peak = allocated + TRANSIENT;
    Sample {
        at: AxisPoint { position, time: time(SECONDS_PER_STEP * position) },
        allocated,
        requested: None,
        peak: Some(peak),
        peak_bound: Some(peak),
        reserved: Some(peak),
        live_blocks: None,
        peak_reserved: Some(peak),
    }
}

/// A detector with its report after each step.
struct Watched {
    detector: Detector,
    step: u32,
    /// The first step of each stage.
    rising: Option<u32>,
    creeping: Option<u32>,
}

impl Watched {
    fn new() -> Self {
        Self {
            detector: Detector::new(Config::default()),
            step: 0,
            rising: None,
            creeping: None,
        }
    }

    /// Takes steps of a series of live bytes above [`BASE`], by the step.
    fn run(mut self, n_steps: u32, bytes: impl Fn(u32) -> f64) -> Self {
        for _ in 0..n_steps {
            self.step += 1;
            self.detector.train(&sample(self.step, BASE + bytes(self.step)), Some(CAPACITY));
            let stage =
                self.trend().filter(|trend| trend.is_growing()).map(|trend| trend.stage);
            match stage {
                Some(Stage::Rising) => self.rising = self.rising.or(Some(self.step)),
                Some(Stage::Creeping) => self.creeping = self.creeping.or(Some(self.step)),
                None => {}
            }
        }
        self
    }

    fn trend(&self) -> Option<&Trend> {
        self.detector.trend(Signal::Allocated)
    }

    /// Returns the outlook of live memory at the moment of the newest sample.
    fn outlook(&self) -> Outlook {
        self.asked(&Asked::default()).expect("live memory grows")
    }

    fn asked(&self, asked: &Asked) -> Option<Outlook> {
        self.detector.outlook(Signal::Allocated, Some(CAPACITY), asked)
    }
}

/// A leak of `rate` bytes a step from step `from` to `to`.
fn leak(rate: f64, from: u32, to: u32) -> impl Fn(u32) -> f64 {
    move |step| rate * f64::from(step.clamp(from, to) - from)
}

/// Numbers from -1 to 1 without a pattern, the same on every run (Knuth's 64-bit linear
/// congruential generator).
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 33).unwrap()) / f64::from(1_u32 << 30) - 1.0
    }
}

#[test]
fn straight_leak_creeps_with_its_rate_its_onset_and_its_end() {
    let rate = 4.0 * MEBIBYTE;
    let watched = Watched::new().run(900, leak(rate, 300, 10_000));
    let trend = watched.trend().unwrap();
    assert_eq!(trend.stage, Stage::Creeping);
    assert!((trend.onset.position - 300.0).abs() <= 16.0, "{:?}", trend.onset);
    let slope = trend.slope_bytes_per_unit;
    assert!((slope.value / rate - 1.0).abs() < 0.02, "{slope:?}");
    assert!(slope.lower <= rate && rate <= slope.upper, "{slope:?}");
    let steps = trend.seen.position - trend.onset.position;
    assert!((trend.growth_bytes / (slope.value * steps) - 1.0).abs() < 0.03, "{trend:?}");
    let left = CAPACITY - BASE - TRANSIENT - 600.0 * rate;
    let left_steps = watched.outlook().steps.unwrap().known.unwrap();
    assert!((left_steps / (left / rate) - 1.0).abs() < 0.1, "{left_steps} for {}", left / rate);
}

#[test]
fn interval_of_a_rate_has_its_scatter_alone_once_growth_has_gone_on() {
    let rate = 4.0 * MEBIBYTE;
    let (mut n_covered, mut n_narrow) = (0, 0);
    for seed in 0..40 {
        let values = std::cell::RefCell::new(noise(seed));
        let bytes =
            |step: u32| leak(rate, 300, 10_000)(step) + 64.0 * MEBIBYTE * values.borrow_mut()();
        let mut watched = Watched::new().run(300, bytes);
        while watched.creeping.is_none() {
            watched = watched.run(1, bytes);
        }
        let raised = watched.trend().unwrap().slope_bytes_per_unit;
        let later = watched.run(600, bytes).trend().unwrap().slope_bytes_per_unit;
        assert!(raised.lower <= rate && rate <= raised.upper, "{seed}: {raised:?}");
        let ratio = (later.upper - later.lower) / (raised.upper - raised.lower);
        n_narrow += u32::from(ratio < 0.1);
        n_covered += u32::from(later.lower <= rate && rate <= later.upper);
    }
    assert!(n_covered >= 36, "{n_covered} of 40 intervals have the rate");
    // By chance, the halves of a straight line often differ.
    assert!(n_narrow >= 20, "{n_narrow} of 40 intervals are narrow");
}

#[test]
fn time_left_is_that_of_now_up_to_the_last_step() {
    let rate = 4.0 * MEBIBYTE;
    let mut watched = Watched::new().run(2_000, leak(rate, 1, 100_000));
    let last = ((CAPACITY - BASE - TRANSIENT) / rate).floor();
    let mut before = f64::INFINITY;
    while f64::from(watched.step) < last - 10.0 {
        watched = watched.run(1, leak(rate, 1, 100_000));
        let left = watched.outlook().steps.unwrap().known.unwrap();
        let truth = last - f64::from(watched.step);
        assert!((left - truth).abs() <= 2.0 + 0.02 * truth, "{left} of {truth} steps are left");
        assert!(left < before + 1.0 + 0.02 * truth, "{left} after {before}");
        before = left;
    }
}

#[test]
fn time_left_falls_with_the_clock_until_no_step_comes() {
    let watched = Watched::new().run(2_000, leak(4.0 * MEBIBYTE, 1, 100_000));
    let asked = |silence_seconds: f64| Asked { silence_seconds, ..Asked::default() };
    let now = watched.outlook().seconds.unwrap();
    let later = watched.asked(&asked(7.0)).unwrap();
    assert_eq!(later.course, Course::GoesOn);
    assert!((later.seconds.unwrap().likely - (now.likely - 7.0)).abs() < 1e-6, "{later:?}");
    assert_eq!(later.steps, watched.outlook().steps);
    let stalled = watched.asked(&asked(11.0)).unwrap();
    assert_eq!(stalled.course, Course::Stalled(11.0));
    assert_eq!((stalled.steps, stalled.seconds), (None, None));
    assert_eq!(stalled.headroom_bytes, watched.outlook().headroom_bytes);
    let slower = Asked { pause_seconds: 60.0, ..asked(590.0) };
    assert_eq!(watched.asked(&slower).unwrap().course, Course::GoesOn);
    let over = watched.asked(&Asked { is_over: true, ..asked(1.0) }).unwrap();
    assert_eq!((over.steps, over.seconds, over.headroom_bytes), (None, None, None));
    assert!((over.growth_bytes - watched.outlook().growth_bytes).abs() < 1e-6, "{over:?}");
}

#[test]
fn faster_and_faster_growth_surely_grows_since_one_onset() {
    let bytes = |step: u32| 2000.0 * f64::from(step) * f64::from(step);
    let mut watched = Watched::new();
    let mut onsets = Vec::new();
    while watched.step < 5_000 {
        watched = watched.run(1, bytes);
        if watched.trend().is_some() {
            let outlook = watched.outlook();
            let slope = outlook.slope.bytes_per_step.unwrap();
            assert!(slope.lower > 0.0, "{slope:?} at step {}", watched.step);
            onsets.push(outlook.onset.position);
        }
    }
    assert_eq!(watched.outlook().bend, Bend::Faster);
    let (first, last) = (onsets.first().unwrap(), onsets.last().unwrap());
    assert!(last <= first, "the onset moves from {first} to {last}");
    let now = f64::from(watched.step);
    let between = |from, to| {
        watched.detector.growth_between(Signal::Allocated, from, to).unwrap() / (to - from)
    };
    let truth = 2000.0 * (now * now - 4_000.0 * 4_000.0) / (now - 4_000.0);
    assert!((between(4_000.0, now) / truth - 1.0).abs() < 0.1);
}

#[test]
fn pace_of_records_that_come_in_batches_is_that_between_batches() {
    for (batch, step_seconds) in [(10, 0.1), (32, 0.05), (1, 4.0)] {
        let mut detector = Detector::new(Config::default());
        for step in 1..=20 * batch {
            let arrived = f64::from((step - 1) / batch * batch + batch) * step_seconds;
            let mut sample = sample(step, BASE);
            sample.at.time = time(arrived);
            detector.train(&sample, Some(CAPACITY));
            let pace = detector.seconds_per_step();
            let is_known = step > batch;
            assert_eq!(pace.is_some(), is_known, "step {step} in batches of {batch}");
            if let Some(pace) = pace {
                assert!((pace / step_seconds - 1.0).abs() < 0.01, "{pace} for {step_seconds}");
            }
        }
    }
}

#[test]
fn growth_that_ends_is_level_soon_and_then_cleared() {
    let slope = |watched: &Watched| {
        let slope = watched.detector.slope(Signal::Allocated)?;
        slope.bytes_per_step.map(|slope| slope.value.abs())
    };
    let watched = Watched::new().run(1_000, leak(4.0 * MEBIBYTE, 1, 1_000));
    assert!(watched.creeping.is_some());
    let watched = watched.run(125 + 16, leak(4.0 * MEBIBYTE, 1, 1_000));
    let trend = watched.trend().unwrap();
    let since = trend.level_since().expect("an eighth of its length later it is level");
    assert!((since.position - 1_000.0).abs() <= 64.0, "{since:?}");
    assert_eq!(watched.outlook().steps, None);
    assert!(slope(&watched).unwrap() < 0.2 * MEBIBYTE, "{:?}", slope(&watched));
    let watched = watched.run(400, leak(4.0 * MEBIBYTE, 1, 1_000));
    assert_eq!(watched.trend(), None);
    assert!(slope(&watched).unwrap() < 0.1 * MEBIBYTE, "{:?}", slope(&watched));
    let ended = watched.detector.ended_growth(Signal::Allocated).unwrap();
    assert!((ended.until.position - 1_000.0).abs() <= 64.0, "{ended:?}");
    // Nor do longer windows show it again.
    let watched = Watched { rising: None, creeping: None, ..watched };
    let watched = watched.run(6_000, leak(4.0 * MEBIBYTE, 1, 1_000));
    assert_eq!((watched.rising, watched.creeping), (None, None));
}

/// Whatever was said of it before.
#[test]
fn slope_is_that_of_now_where_growth_has_ended() {
    for n_level in [300, 600, 1200] {
        let watched = Watched::new().run(600 + n_level, leak(4.0 * MEBIBYTE, 100, 600));
        let slope = watched.detector.slope(Signal::Allocated).unwrap();
        let per_step = slope.bytes_per_step.unwrap();
        assert!(per_step.value.abs() < 1.0, "level for {n_level} steps: {per_step:?}");
        let noisy = |step: u32| f64::from(step * 7919 % 31) / 31.0 * MEBIBYTE;
        let rising = leak(0.1 * MEBIBYTE, 100, 500);
        let watched = Watched::new().run(500 + n_level, |step| rising(step) + noisy(step));
        let per_step =
            watched.detector.slope(Signal::Allocated).unwrap().bytes_per_step.unwrap();
        assert!(per_step.value.abs() < 0.002 * MEBIBYTE, "{n_level}: {per_step:?}");
    }
}

/// A figure that is asked for at each scrape is that of somebody who asks once.
#[test]
fn slopes_are_the_same_however_often_they_are_asked_for() {
    let mut next = noise(7);
    let noisy: Vec<f64> = (0..1_500).map(|_| MEBIBYTE * next()).collect();
    let bytes = |step: u32| {
        let leaks = leak(2.0 * MEBIBYTE, 300, 700)(step) + leak(MEBIBYTE, 1_000, 1_500)(step);
        leaks + noisy[usize::try_from(step).unwrap() - 1]
    };
    let shown = |detector: &Detector| {
        format!("{:?} {:?}", detector.slope(Signal::Allocated), detector.reserved_slope())
    };
    let (mut often, mut once) = (Watched::new(), Watched::new());
    let mut different = BTreeSet::new();
    for step in 1..1_500 {
        (often, once) = (often.run(1, bytes), once.run(1, bytes));
        let asked_once = shown(&once.detector.clone());
        assert_eq!(shown(&often.detector), asked_once, "at step {step}");
        different.insert(asked_once);
    }
    assert!(different.len() > 50, "{} slopes", different.len());
}

#[test]
fn growth_that_resumes_is_growing_at_once() {
    let rate = 4.0 * MEBIBYTE;
    let series = move |step: u32| leak(rate, 1, 1_000)(step) + leak(rate, 1_180, 10_000)(step);
    let watched = Watched::new().run(1_170, series);
    assert!(watched.trend().unwrap().level_since().is_some());
    let watched = watched.run(70, series);
    let resumed = watched.trend().unwrap().resumed().expect("it goes on");
    assert!(resumed.position <= 1_240.0, "{resumed:?}");
}

#[test]
fn stairs_between_events_rise_with_the_third_and_creep_with_the_fourth() {
    let mut detector = Detector::new(Config::default());
    let mut stages = Vec::new();
    for interval in 0..6_u32 {
        for step in 0..200 {
            let step = interval * 200 + step + 1;
            let height = f64::from(interval) * 800.0 * MEBIBYTE;
            detector.train(&sample(step, BASE + height), Some(CAPACITY));
        }
        stages.push(detector.trend(Signal::Allocated).map(|trend| trend.stage));
        detector.mark();
    }
    let (rising, creeping) = (Some(Stage::Rising), Some(Stage::Creeping));
    assert_eq!(stages, [None, None, None, rising, creeping, creeping]);
}

#[test]
fn garbage_that_was_as_high_in_the_warm_up_is_no_rise() {
    let collected = Watched::new().run(400, |step| 8.0 * MEBIBYTE * f64::from(step % 25));
    assert_eq!((collected.rising, collected.creeping), (None, None));
    // Memory that falls in the warm-up hides a leak no longer than it takes to exceed that.
    let (rate, high) = (8.0 * MEBIBYTE, 20.0 * 8.0 * MEBIBYTE);
    let leaking = Watched::new()
        .run(900, |step| if step < 12 { high } else { rate * f64::from(step - 12) });
    assert_eq!(leaking.rising.map(|step| step < 100), Some(true));
}

#[test]
fn what_comes_and_goes_fills_or_wanders_does_not_creep() {
    // One larger buffer, from some step on.
    let shifted =
        Watched::new().run(2_000, |step| if step > 700 { 2.0 * GIBIBYTE } else { 0.0 });
    assert_eq!((shifted.rising, shifted.creeping), (None, None));
    // A tooth of 150 steps.
    let sawtooth = Watched::new().run(4_000, |step| f64::from(step % 150) * 2.0 * MEBIBYTE);
    assert_eq!(sawtooth.creeping, None);
    // A cache that ends at a fifth of what is left.
    let cache = Watched::new()
        .run(6_000, |step| 2.0 * GIBIBYTE * (1.0 - (-f64::from(step) / 1_500.0).exp()));
    assert_eq!(cache.creeping, None);
    for seed in 0..8 {
        let mut next = noise(seed);
        let mut at = 0.0;
        let walk: Vec<f64> = (0..4_000)
            .map(|_| {
                at = f64::clamp(at + 24.0 * MEBIBYTE * next(), 0.0, 6.0 * GIBIBYTE);
                at
            })
            .collect();
        let wandering = Watched::new().run(3_999, |step| walk[usize::try_from(step).unwrap()]);
        assert_eq!(wandering.creeping, None, "seed {seed}");
    }
}

#[test]
fn window_is_stopped_by_the_test_that_explains_it() {
    let cache = Watched::new()
        .run(3_000, |step| 2.0 * GIBIBYTE * (1.0 - (-f64::from(step) / 1_500.0).exp()));
    let stopped = |explanation: Explanation| {
        cache.detector.windows(Signal::Allocated, Some(CAPACITY)).any(|window| {
            match window.outcome {
                Ok(shown) => {
                    shown.obstacle.is_some_and(|obstacle| obstacle.explanation == explanation)
                }
                Err(stopped) => stopped.explanation == explanation,
            }
        })
    };
    assert!(stopped(Explanation::Cache));
    assert!(stopped(Explanation::TooShort));
}

#[test]
fn restart_forgets_and_an_end_keeps_the_figures() {
    let mut watched = Watched::new();
    for _ in 0..12 {
        watched.detector.mark();
        watched = watched.run(50, leak(4.0 * MEBIBYTE, 1, 10_000));
    }
    let slope = watched.detector.slope(Signal::Allocated).unwrap();
    let apart = watched.detector.steps_per_event();
    assert!(apart.is_some_and(|steps| (45.0..=50.0).contains(&steps)), "{apart:?}");
    watched.detector.release();
    assert_eq!(watched.detector.slope(Signal::Allocated), Some(slope));
    assert_eq!(watched.detector.steps_per_event(), apart);
    assert!(watched.trend().is_some());
    assert_eq!(watched.detector.windows(Signal::Allocated, Some(CAPACITY)).count(), 0);
    watched.detector.restart();
    assert_eq!(watched.detector.steps_per_event(), None);
    assert_eq!(watched.trend(), None);
    assert_eq!(watched.detector.slope(Signal::Allocated), None);
}

#[test]
fn process_is_judged_after_it_has_loaded() {
    let run = |rate: f64| {
        let mut detector = Detector::of_process(Config::default());
        let mut first = None;
        for n in 0..3_000_u32 {
            let seconds = 2.0 * f64::from(n);
            // It loads its model for five minutes, and is level for two.
            let used = BASE * (seconds / 300.0).min(1.0) + rate * (seconds - 420.0).max(0.0);
            let reading = DeviceReading {
                time: time(seconds),
                device_used: used,
                process_used: Some(used),
            };
            detector.process(&reading, Some(CAPACITY));
            first = first.or(detector.trend(Signal::Process).map(|_| seconds));
        }
        first
    };
    assert_eq!(run(0.0), None);
    assert!(run(2.0 * MEBIBYTE).is_some_and(|first| first > 420.0));
}

#[test]
fn detector_stays_within_its_memory() {
    const { assert!(Detector::BYTES_MAX <= 96 * 1024) };
}

/// A longer window shows it for longer, since it knows the end less exactly.
#[test]
fn growth_that_rose_and_ended_is_not_raised_again() {
    for (rate, from, to) in [(2.2, 228, 555), (1.2, 100, 400), (1.0, 150, 700)] {
        let leak = leak(rate * MEBIBYTE, from, to);
        let mut noise = noise(5);
        let series: Vec<f64> =
            (0..3 * to).map(|step| leak(step) + MEBIBYTE * noise()).collect();
        let bytes = |step: u32| series[usize::try_from(step).unwrap() - 1];
        let mut watched = Watched::new().run(to + 60, bytes);
        assert!(watched.rising.is_some() && watched.creeping.is_none());
        let (mut was_growing, mut n_raised) = (true, 1);
        while watched.step < 3 * to {
            watched = watched.run(1, bytes);
            let is_growing = watched.trend().is_some_and(Trend::is_growing);
            n_raised += u32::from(is_growing && !was_growing);
            was_growing = is_growing;
        }
        assert_eq!((n_raised, was_growing), (1, false));
    }
}

/// Takes steps of live bytes above [`BASE`] and of numbers of live blocks, by the step.
fn counted(
    n_steps: u32,
    mut series: impl FnMut(u32) -> (f64, Option<f64>),
    mut each: impl FnMut(u32, &Detector),
) -> Detector {
    let mut detector = Detector::new(Config::default());
    for step in 1..=n_steps {
        let (bytes, live_blocks) = series(step);
        let sample = Sample { live_blocks, ..sample(step, BASE + bytes) };
        detector.train(&sample, Some(CAPACITY));
        each(step, &detector);
    }
    detector
}

fn kept(detector: &Detector) -> Accumulation {
    match detector.testimony() {
        Some(Testimony::Accumulates(kept)) => kept,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_block_a_step_is_certain_after_47_samples_however_the_bytes_vary_and_rises_at_32_mebibytes()
 {
    let mut random = noise(7);
    let leak = 64.0 * 1024.0;
    let series = move |step: u32| {
        (f64::from(step) * leak + 40.0 * MEBIBYTE * random(), Some(500.0 + f64::from(step)))
    };
    let (mut certain, mut rising) = (None, None);
    let detector = counted(900, series, |step, detector| {
        certain = certain.or(detector.testimony().map(|_| step));
        rising = rising.or(detector.trend(Signal::Allocated).map(|trend| (step, *trend)));
    });
    let (step, trend) = rising.unwrap();
    assert!((512..=768).contains(&step), "RISING at {step}");
    assert_eq!(trend.stage, Stage::Rising);
    assert!(trend.onset.position <= 40.0, "{:?}", trend.onset);
    let kept = kept(&detector);
    assert_eq!((certain, kept.certain.position), (Some(47), 47.0));
    assert!(kept.since.position <= 26.0, "{:?}", kept.since);
    assert!((kept.blocks_per_unit - 1.0).abs() < 1e-9, "{kept:?}");
}

#[test]
fn block_in_sixteen_steps_is_certain_with_the_nineteenth() {
    let series = |step: u32| (0.0, Some(f64::from(step / 16)));
    let mut certain = None;
    let detector = counted(400, series, |step, detector| {
        let testimony = detector.testimony();
        let is_rising = matches!(testimony, Some(Testimony::Accumulates(_)));
        certain = certain.or(is_rising.then_some(step));
    });
    assert!(certain.is_some_and(|step| step <= 23 + 19 * 16), "{certain:?}");
    assert!((kept(&detector).blocks_per_unit * 16.0 - 1.0).abs() < 0.05);
    assert!(detector.trend(Signal::Allocated).is_none(), "blocks of no bytes are no growth");
}

#[test]
fn number_is_level_where_tensors_get_larger_unknown_where_it_is_not_counted_and_never_rises_by_noise()
 {
    let growing = |step: u32| f64::from(step) * 4.0 * MEBIBYTE;
    let level = counted(400, |step| (growing(step), Some(70.0)), |_, _| {});
    assert_eq!(level.testimony(), Some(Testimony::Level));
    let absent = counted(400, |step| (growing(step), None), |_, _| {});
    assert_eq!(absent.testimony(), None);
    let mut random = noise(3);
    let noisy = counted(
        4000,
        move |step| (growing(step.min(9)), Some((500.0 + 26.0 * random()).round())),
        |_, detector| assert!(matches!(detector.testimony(), None | Some(Testimony::Level))),
    );
    assert!(noisy.trend(Signal::Allocated).is_none());
}

#[test]
fn number_of_a_cache_that_fills_fades() {
    let filled = |step: u32| (2000.0 * (1.0 - (-f64::from(step) / 300.0).exp())).round();
    let mut faded = 0;
    let detector = counted(
        6000,
        |step| (0.0, Some(filled(step))),
        |_, detector| {
            faded += u32::from(matches!(detector.testimony(), Some(Testimony::Fades(_))));
        },
    );
    assert!(faded > 100, "{faded}");
    assert!(matches!(detector.testimony(), None | Some(Testimony::Level)));
}

#[test]
fn what_the_number_shows_ends_with_it_and_pages_nobody() {
    let until = 900;
    let mut random = noise(11);
    let series = move |step: u32| {
        let kept = f64::from(step.min(until));
        (kept * MEBIBYTE / 4.0 + 400.0 * MEBIBYTE * random(), Some(kept))
    };
    let mut was_rising = false;
    let detector = counted(3000, series, |step, detector| {
        let trend = detector.trend(Signal::Allocated).filter(|trend| trend.is_growing());
        was_rising |= step < until && trend.is_some_and(|trend| trend.stage == Stage::Rising);
        assert!(trend.is_none_or(|trend| trend.stage == Stage::Rising), "{step}: {trend:?}");
    });
    assert!(was_rising);
    assert!(detector.trend(Signal::Allocated).is_none_or(|trend| !trend.is_growing()));
    assert!(!matches!(detector.testimony(), Some(Testimony::Accumulates(_))));
}

#[test]
fn new_incarnation_forgets_what_the_number_said() {
    let mut detector = counted(100, |step| (0.0, Some(f64::from(step))), |_, _| {});
    assert!(detector.testimony().is_some());
    detector.restart();
    assert_eq!(detector.testimony(), None);
}

/// A detector after 40 readings of a process that takes 500 MiB outside its allocator from each to
/// the next, five seconds apart, with so many steps between two of them.
fn read_outside(steps_between: u32) -> Detector {
    let mut detector = Detector::new(Config::default());
    let mut step = 1;
    detector.train(&sample(step, BASE), Some(10.0 * CAPACITY));
    for n in 0..40 {
        for _ in 0..steps_between {
            step += 1;
            detector.train(&sample(step, BASE), Some(10.0 * CAPACITY));
        }
        let process_used = BASE + TRANSIENT + 500.0 * MEBIBYTE * f64::from(n);
        let reading = DeviceReading {
            time: time(5.0 * f64::from(n)),
            device_used: process_used,
            process_used: Some(process_used),
        };
        detector.device_now(&reading, Some(10.0 * CAPACITY));
    }
    detector
}

#[test]
fn newest_readings_show_growth_but_none_between_two_steps() {
    // The allocator may hold more by then than the step before says.
    assert_eq!(read_outside(0).trend(Signal::OutsideAllocator), None);
    let detector = read_outside(10);
    let trend = detector.trend(Signal::OutsideAllocator).expect("growth");
    let slope = trend.slope_bytes_per_unit;
    assert!((slope.value / (50.0 * MEBIBYTE) - 1.0).abs() < 1e-3, "{slope:?}");
    let left =
        detector.outlook(Signal::OutsideAllocator, Some(10.0 * CAPACITY), &Asked::default());
    let bytes = left.unwrap().headroom_bytes.unwrap();
    let truth = 10.0 * CAPACITY - BASE - TRANSIENT - 39.0 * 500.0 * MEBIBYTE;
    assert!((bytes / truth - 1.0).abs() < 1e-6, "{bytes} for {truth}");
}

#[test]
fn growth_that_ended_goes_on_again_by_more_than_memory_varies() {
    let rate = 2.0 * MEBIBYTE;
    for seed in 0..16 {
        // A list that was cleared, and then memory that varies by more than it held.
        let mut next = noise(seed);
        let varies: Vec<f64> = (0..2_000).map(|_| 600.0 * MEBIBYTE * next()).collect();
        let mut watched = Watched::new();
        for _ in 0..100 {
            watched = watched.run(20, |step| match step {
                ..100 => rate * f64::from(step),
                _ => varies[usize::try_from(step - 1).unwrap()],
            });
            let grows = watched.trend().is_some_and(Trend::is_growing);
            assert!(!grows || watched.step < 400, "seed {seed}, step {}", watched.step);
        }
    }
}
