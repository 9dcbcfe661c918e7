//! The course of growth since a life began, where no line describes it: a power of the time, which
//! fades or accelerates.

use crate::analysis::estimate::{self, LeastSquares};

/// The fewest points of a course.
const POINTS_MIN: usize = 12;
/// A power must leave at most this share of the squared error that a line leaves, and a level that
/// turns into a line: as much as `estimate::bend` asks for.
const ERROR_RATIO: f64 = 0.5;
/// The lowest exponent: a cache that fills for ever, faster than a logarithm.
const EXPONENT_MIN: f64 = 0.4;
/// The highest exponent: growth whose rate is a line.
const EXPONENT_MAX: f64 = 2.0;
/// How far apart the exponents below 1 are that are tried.
const FADING_STEP: f64 = 0.05;
/// How far apart those above 1 are.
const ACCELERATING_STEP: f64 = 0.1;
/// The course must end at a rate that the trend's is at least this share of, and the other way
/// around: growth that set in late is none of it.
const AGREEMENT_RATIO: f64 = 0.5;

/// Growth since the start of a life as a power of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PowerLaw {
    exponent: f64,
    /// Since the start.
    growth: f64,
    /// Units of the axis since the start.
    span: f64,
}

impl PowerLaw {
    /// Fits the (position, bytes) of a whole life; `None` unless a power describes them clearly
    /// better than a line does, and better than a level that turns into one.
    pub(super) fn of(points: &[(f64, f64)]) -> Option<Self> {
        let [(first, _), .., (last, _)] = points else { return None };
        if points.len() < POINTS_MIN {
            return None;
        }
        let n_moves = points.iter().skip(1).map(|_| 1.0).sum::<f64>();
        // The first point is where the first block ends.
        let start = first - (last - first) / n_moves;
        let (exponent, power) = best_power(points, start)?;
        let line = estimate::least_squares(points, |x| x)?;
        let turn = points.get(estimate::bend(points)?)?.0;
        let bent = estimate::least_squares(points, |x| (x - turn).max(0.0))?;
        let span = last - start;
        let is_clear =
            power.squared_error < ERROR_RATIO * line.squared_error.min(bent.squared_error);
        let growth = power.slope * span.powf(exponent);
        (is_clear && growth > 0.0).then_some(Self { exponent, growth, span })
    }

    /// Returns how many times as long it takes to gain `bytes` more as at the present rate; `None`
    /// when `slope`, the rate of the newest growth, is another.
    pub(super) fn stretch(&self, slope: f64, bytes: f64) -> Option<f64> {
        let Self { exponent, growth, span } = *self;
        let rate = exponent * growth / span;
        let agree = slope >= AGREEMENT_RATIO * rate && rate >= AGREEMENT_RATIO * slope;
        let gain = bytes / growth;
        let spans = (1.0 + gain).powf(1.0 / exponent) - 1.0;
        Some(spans * exponent / gain).filter(|stretch| agree && stretch.is_finite())
    }
}

/// Returns the exponent of (x - start) whose curve leaves the least squared error, and that curve.
///
/// Goes from a line in steps until the error no longer falls: at most a dozen fits.
fn best_power(points: &[(f64, f64)], start: f64) -> Option<(f64, LeastSquares)> {
    let fit = |exponent: f64| {
        let power = estimate::least_squares(points, |x| (x - start).powf(exponent))?;
        Some((exponent, power))
    };
    let downhill = |step: f64| {
        let mut best = fit(1.0)?;
        while let Some(next) =
            fit(best.0 + step).filter(|next| (EXPONENT_MIN..=EXPONENT_MAX).contains(&next.0))
            && next.1.squared_error < best.1.squared_error
        {
            best = next;
        }
        Some(best)
    };
    let (fading, accelerating) = downhill(-FADING_STEP).zip(downhill(ACCELERATING_STEP))?;
    let is_fading = fading.1.squared_error <= accelerating.1.squared_error;
    Some(if is_fading { fading } else { accelerating })
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::course::PowerLaw;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{Simulation, assert_within, noise, record};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::GIBIBYTE;

    /// A life of 32 blocks of 16 steps.
    fn life(bytes: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (1..=32).map(|i| 16.0 * f64::from(i)).map(|step| (step, bytes(step))).collect()
    }

    #[test]
    fn line_and_late_line_have_no_course() {
        for noise_bytes in [0.0, 40.0] {
            let line = life(|step| 3.0 * step + noise_bytes * noise(step));
            assert_eq!(PowerLaw::of(&line), None);
            let late = life(|step| 3.0 * (step - 200.0).max(0.0) + noise_bytes * noise(step));
            assert_eq!(PowerLaw::of(&late), None);
        }
        assert_eq!(PowerLaw::of(&life(|_| 7.0)), None, "no growth");
        let falling = life(|step| -step.sqrt());
        assert_eq!(PowerLaw::of(&falling), None);
        assert_eq!(PowerLaw::of(&life(f64::sqrt)[..11]), None, "few points");
    }

    #[test]
    fn course_says_when_growth_will_be_twice_as_much() {
        for exponent in [0.5, 0.75, 1.5, 2.0] {
            let course = PowerLaw::of(&life(|step| 3.0 * step.powf(exponent))).unwrap();
            let held = 3.0 * 512.0_f64.powf(exponent);
            let rate = exponent * held / 512.0;
            // The line's time to as much again, stretched.
            let took = course.stretch(rate, held).unwrap() * held / rate;
            let takes = 512.0 * (2.0_f64.powf(1.0 / exponent) - 1.0);
            assert_within(took, takes, 0.1 * takes);
        }
    }

    #[test]
    fn newest_growth_at_another_rate_has_no_course() {
        let course = PowerLaw::of(&life(f64::sqrt)).unwrap();
        let rate = 0.5 * 512.0_f64.sqrt() / 512.0;
        assert!(course.stretch(rate, 10.0).is_some());
        assert_eq!(course.stretch(3.0 * rate, 10.0), None);
        assert_eq!(course.stretch(rate / 3.0, 10.0), None);
    }

    #[test]
    fn time_left_follows_growth_that_fades_and_growth_that_accelerates() {
        // Half of the cache that the peak leaves is given back: 48.75 GiB fit.
        let full = 100_000.0;
        for exponent in [0.6, 0.8, 1.6] {
            let mut rank = Simulation::new();
            let leak = |step: f64| 48.75 * GIBIBYTE * (step / full).powf(exponent);
            while rank.stage(Signal::Allocated) != Some(Stage::Creeping) {
                assert!(rank.run_until_change(60_000, |step| record(step, leak(step))));
            }
            let trend = rank.trend(Signal::Allocated).unwrap();
            let eta = trend.eta_steps().unwrap();
            let likely = eta.likely;
            let by_line = trend.headroom_bytes().unwrap() / trend.slope_bytes_per_unit.value;
            let left = full - rank.step;
            assert_within(likely, left, 0.3 * left);
            assert!((likely - left).abs() < 0.5 * (by_line - left).abs(), "{exponent}");
            assert!(eta.lower < left && eta.upper.unwrap() > left, "{exponent}: {eta:?}");
        }
    }
}
