//! Statistics as free functions on short slices of points, for code that asks whether a series
//! grows. No state, no units and no nouns of the domain live here, and nothing here allocates.

/// The most points that [`theil_sen`] takes: it compares all pairs, so that its cost grows with
/// the square.
pub const POINTS_MAX: usize = 32;

/// How many pairs [`POINTS_MAX`] points make.
const PAIRS_MAX: usize = POINTS_MAX * (POINTS_MAX - 1) / 2;

/// By how much a bend must lower the squared error before [`bend`] believes in it.
///
/// Half makes F = (n - 3), so at least 9 at 12 points; the 5 % point of the largest F over all
/// places of one break is about 8.8 (Andrews, "Tests for Parameter Instability", Econometrica
/// 61, 1993).
const BEND_ERROR_RATIO: f64 = 0.5;

/// The fewest points that [`slope_error`] takes.
const SLOPE_ERROR_POINTS_MIN: f64 = 6.0;
/// The most that one residual may carry of the one before it in [`slope_error`]: 32 points do not
/// distinguish more from a random walk.
const CARRIED_MAX: f64 = 0.9;

/// A line through points by the median of the slopes of all pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TheilSen {
    /// The median of the pairs' slopes: y per x.
    pub slope: f64,
    /// Kendall's tau-a, -1 to 1: the share of pairs that rise less the share of those that
    /// fall.
    pub tau: f64,
}

/// How a series got from its first value to its last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// The last value less the first.
    pub rise: f64,
    /// The sum of the squares of the moves between neighbours.
    pub squared_moves: f64,
}

/// What a series gained early and late, in sums over a quarter of its points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    /// From the first quarter to the second.
    pub first: f64,
    /// From the third quarter to the last.
    pub last: f64,
    /// From the first quarter to the last.
    pub whole: f64,
}

/// Fits the median of all pairwise slopes, which up to 29 % of wild points do not move.
///
/// `points`: (x, y), at most [`POINTS_MAX`] of them. A pair whose x does not rise has no slope
/// and is left out of the median, but not out of tau. `None` when no pair is left, or for more
/// points than the limit.
///
/// Sources: Theil, "A rank-invariant method of linear and polynomial regression analysis"
/// (1950); Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63
/// (1968), who also treats equal x.
pub fn theil_sen(points: &[(f64, f64)]) -> Option<TheilSen> {
    if points.len() > POINTS_MAX {
        return None;
    }
    let mut slopes = [0.0; PAIRS_MAX];
    let mut n_slopes = 0;
    let (mut n_pairs, mut n_rising, mut n_falling) = (0_u32, 0_u32, 0_u32);
    let mut rest = points;
    while let [(x, y), later @ ..] = rest {
        for (later_x, later_y) in later {
            n_pairs += 1;
            n_rising += u32::from(later_y > y);
            n_falling += u32::from(later_y < y);
            let width = later_x - x;
            if width > 0.0
                && let Some(slope) = slopes.get_mut(n_slopes)
            {
                *slope = (later_y - y) / width;
                n_slopes += 1;
            }
        }
        rest = later;
    }
    let slope = median(slopes.get_mut(..n_slopes)?)?;
    let tau = (f64::from(n_rising) - f64::from(n_falling)) / f64::from(n_pairs);
    Some(TheilSen { slope, tau })
}

/// Returns the median, the mean of the middle two for an even number; reorders `values`.
///
/// `None` for an empty slice.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| is_even);
    // Halved before they are added: the sum of two large values may overflow.
    Some(lower.map_or(*upper, |lower| 0.5 * lower + 0.5 * *upper))
}

/// Sums up the moves of a series; `None` for fewer than two points.
pub fn path(points: &[(f64, f64)]) -> Option<Path> {
    let [(_, first), .., (_, last)] = points else { return None };
    let squared_moves = points
        .iter()
        .zip(points.iter().skip(1))
        .map(|((_, a), (_, b))| (b - a) * (b - a))
        .sum();
    Some(Path { rise: last - first, squared_moves })
}

impl Path {
    /// Returns how many equal moves this path is worth: rise² over the sum of squared moves.
    ///
    /// A random walk has an expectation of 1, a straight line of n points n - 1, one jump
    /// exactly 1. It is the longest-lag variance ratio of Lo and `MacKinlay` ("Stock Market
    /// Prices Do Not Follow Random Walks", 1988) times the number of moves. Its root is the
    /// rise in standard deviations of a walk with these moves. `None` when nothing moved.
    pub fn straightness(&self) -> Option<f64> {
        (self.squared_moves > 0.0).then(|| self.rise * self.rise / self.squared_moves)
    }
}

/// Returns the standard error of a line's slope, by how its points scatter around it.
///
/// Least squares' error of the slope, times the root of (1 + r) / (1 - r) for residuals of which
/// each carries the share r of the one before it (Bartlett, "Some aspects of the
/// time-correlation problem in regard to tests of significance", JRSS 98, 1935); r is the
/// residuals' first autocorrelation, less the bias of few points around a line, -(2 + 4r) / n
/// (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954).
/// `points`: (x, y), x rising. `None` for fewer than six points or when all x are equal.
pub fn slope_error(points: &[(f64, f64)], slope: f64) -> Option<f64> {
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let (first_x, first_y) = points.first().filter(|_| n_points >= SLOPE_ERROR_POINTS_MIN)?;
    let residual = |(x, y): &(f64, f64)| y - first_y - slope * (x - first_x);
    let mean_x = points.iter().map(|(x, _)| (x - first_x) / n_points).sum::<f64>();
    let mean = points.iter().map(|point| residual(point) / n_points).sum::<f64>();
    let (mut spread, mut squares, mut products, mut last) = (0.0, 0.0, 0.0, 0.0);
    for point in points {
        let off = residual(point) - mean;
        spread += (point.0 - first_x - mean_x).powi(2);
        squares += off * off;
        products += off * last;
        last = off;
    }
    if spread <= 0.0 {
        return None;
    }
    if squares <= 0.0 {
        return Some(0.0);
    }
    let seen = products / squares;
    let carried = ((seen + 2.0 / n_points) / (1.0 - 4.0 / n_points)).clamp(0.0, CARRIED_MAX);
    let inflation = (1.0 + carried) / (1.0 - carried);
    Some((squares / (n_points - 2.0) / spread * inflation).sqrt())
}

/// Returns how many standard errors make half a 95 % interval of a line through `n_points`.
///
/// Student's quantile for two points fewer, by the first term of Cornish and Fisher's expansion
/// ("Moments and cumulants in the specification of distributions", 1938): at most 8 % low from
/// six points on.
pub fn errors_of_interval(n_points: f64) -> f64 {
    const NORMAL: f64 = 1.96;
    NORMAL + (NORMAL.powi(3) + NORMAL) / (4.0 * (n_points - 2.0).max(1.0))
}

/// Compares what the four quarters of a series hold; `None` for fewer than four points.
///
/// A quarter is a fourth of the points, rounded down; the four are spread evenly from the first
/// to the last.
pub fn quarter_gains(points: &[(f64, f64)]) -> Option<Gains> {
    let quarter = points.len() / 4;
    let room = points.len() - quarter;
    let sum = |start: usize| -> Option<f64> {
        let part = points.get(start..start + quarter).filter(|part| !part.is_empty())?;
        Some(part.iter().map(|(_, y)| y).sum())
    };
    let (first, second) = (sum(0)?, sum(room / 3)?);
    let (third, fourth) = (sum(2 * room / 3)?, sum(room)?);
    Some(Gains { first: second - first, last: fourth - third, whole: fourth - first })
}

/// Returns the last quarter's gain per point as a share of the first quarter's: 1 for a line and
/// for growth that sets in later. `None` for fewer than four points.
pub fn kept_ratio(points: &[(f64, f64)]) -> Option<f64> {
    let gains = quarter_gains(points)?;
    // The quarters are spread over the points; the last two may be a point farther apart.
    let room = points.len() - points.len() / 4;
    let first = f64::from(u32::try_from(room / 3).ok()?);
    let last = f64::from(u32::try_from(room - 2 * room / 3).ok()?);
    Some(if gains.first > 0.0 {
        gains.last * first / (last * gains.first)
    } else if gains.last > 0.0 {
        1.0
    } else {
        0.0
    })
}

/// Returns the index of the point at which a level turns into a line, 0 when one line does as
/// well.
///
/// Least squares of y = level + slope × max(0, x - bend) with the bend at each point of the
/// first three quarters (Quandt, "The estimation of the parameters of a linear regression
/// system obeying two separate regimes", JASA 53, 1958). `points`: (x, y), x rising. `None`
/// for fewer than four points or when all x are equal. Costs n steps.
pub fn bend(points: &[(f64, f64)]) -> Option<usize> {
    let n_candidates = points.len() - points.len() / 4;
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let mean = points.iter().map(|(_, y)| y / n_points).sum::<f64>();
    let yy = points.iter().map(|(_, y)| (y - mean) * (y - mean)).sum::<f64>();
    // Of the points beyond the bend: how many, and sums of z = x - bend and of y less its mean.
    let (mut n_beyond, mut z, mut zz, mut zy, mut sum_y) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let mut beyond_x = points.last().filter(|_| points.len() >= 4)?.0;
    let mut straight = None;
    let mut best = None;
    for (idx, (x, y)) in points.iter().enumerate().rev() {
        // The bend moves back, so that every z grows by as much.
        let width = beyond_x - x;
        zz += 2.0 * width * z + width * width * n_beyond;
        zy += width * sum_y;
        z += width * n_beyond;
        beyond_x = *x;
        n_beyond += 1.0;
        sum_y += y - mean;
        let spread = zz - z * (z / n_points);
        if idx >= n_candidates || spread <= 0.0 {
            continue;
        }
        let error = yy - zy * (zy / spread);
        straight = Some(error);
        if best.is_none_or(|(_, least)| error < least) {
            best = Some((idx, error));
        }
    }
    let (idx, least) = best?;
    Some(if least < BEND_ERROR_RATIO * straight? { idx } else { 0 })
}

/// A line through points by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastSquares {
    /// y per unit of the abscissa.
    pub slope: f64,
    /// What it leaves: the sum of the squares of the distances in y.
    pub squared_error: f64,
}

/// Fits y = level + slope × `abscissa`(x) by least squares; `None` when all abscissas are equal.
pub fn least_squares(
    points: &[(f64, f64)],
    abscissa: impl Fn(f64) -> f64,
) -> Option<LeastSquares> {
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let mean_z = points.iter().map(|(x, _)| abscissa(*x) / n_points).sum::<f64>();
    let mean_y = points.iter().map(|(_, y)| y / n_points).sum::<f64>();
    let (mut zz, mut zy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        let (z, y) = (abscissa(*x) - mean_z, y - mean_y);
        zz += z * z;
        zy += z * y;
        yy += y * y;
    }
    let slope = Some(zy / zz).filter(|_| zz > 0.0)?;
    Some(LeastSquares { slope, squared_error: yy - slope * zy })
}

/// Returns the share of a normal distribution that lies below `z` standard deviations, 0 to 1.
///
/// Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.2.17: off by less
/// than 1e-7.
pub fn normal_cdf(z: f64) -> f64 {
    const COEFFICIENTS: [f64; 5] =
        [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let above = (density * polynomial).clamp(0.0, 1.0);
    if z < 0.0 { above } else { 1.0 - above }
}

/// Draws a probability that `n_seen` observations gave towards one half, as little as they are.
///
/// Laplace's rule of succession ("Essai philosophique sur les probabilités", 1814): one more
/// observation for and one against. `n_seen` ≥ 0; with none the answer is one half.
pub fn succession(probability: f64, n_seen: f64) -> f64 {
    (probability * n_seen + 1.0) / (n_seen + 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop, prop_assert, prop_assume, proptest};

    use crate::analysis::estimate::{
        Gains, POINTS_MAX, Path, bend, kept_ratio, least_squares, median, normal_cdf, path,
        quarter_gains, slope_error, succession, theil_sen,
    };

    fn line(n: u32, slope: f64) -> Vec<(f64, f64)> {
        (0..n).map(|i| (f64::from(i), slope * f64::from(i))).collect()
    }

    fn near(a: f64, b: f64, scale: f64) -> bool {
        (a - b).abs() <= 1e-9 * scale
    }

    #[test]
    fn least_squares_leaves_what_no_line_explains() {
        let fit = least_squares(&line(8, 3.0), |x| x).unwrap();
        assert!(near(fit.slope, 3.0, 1.0) && near(fit.squared_error, 0.0, 1.0));
        let corner = [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0)];
        let fit = least_squares(&corner, |x| x).unwrap();
        assert!(near(fit.slope, 0.5, 1.0) && near(fit.squared_error, 1.0 / 6.0, 1.0));
        let fit = least_squares(&corner, |x| (x - 1.0).max(0.0)).unwrap();
        assert!(near(fit.slope, 1.0, 1.0) && near(fit.squared_error, 0.0, 1.0));
        assert_eq!(least_squares(&corner, |_| 4.0), None);
        assert_eq!(least_squares(&[], |x| x), None);
    }

    #[test]
    fn nothing_is_told_of_too_few_points() {
        for points in [&[][..], &[(1.0, 2.0)]] {
            assert_eq!(theil_sen(points), None);
            assert_eq!(path(points), None);
            assert_eq!(quarter_gains(points), None);
            assert_eq!(bend(points), None);
        }
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn line_keeps_its_pace_however_its_quarters_lie() {
        for n in 4..=32 {
            let kept = kept_ratio(&line(n, 3.0)).unwrap();
            assert!(near(kept, 1.0, 1.0), "{n} points: {kept}");
        }
        let stopped: Vec<_> = line(16, 3.0).iter().map(|(x, y)| (*x, y.min(24.0))).collect();
        assert_eq!(kept_ratio(&stopped), Some(0.0));
        assert_eq!(kept_ratio(&line(3, 3.0)), None);
    }

    #[test]
    fn equal_x_have_no_slope() {
        assert_eq!(theil_sen(&[(1.0, 0.0), (1.0, 5.0), (1.0, 9.0)]), None);
        assert_eq!(bend(&[(1.0, 0.0), (1.0, 5.0), (1.0, 9.0), (1.0, 10.0)]), None);
        let fit = theil_sen(&[(1.0, 0.0), (1.0, 4.0), (3.0, 4.0)]).unwrap();
        assert!(near(fit.slope, 1.0, 1.0), "the mean of 2 and 0, not {}", fit.slope);
    }

    #[test]
    fn more_points_than_the_limit_are_refused() {
        assert!(theil_sen(&line(32, 1.0)).is_some());
        assert_eq!(theil_sen(&line(33, 1.0)), None);
        assert_eq!(line(32, 1.0).len(), POINTS_MAX);
    }

    #[test]
    fn constant_series_has_no_slope_and_no_path() {
        let flat = line(12, 0.0);
        let fit = theil_sen(&flat).unwrap();
        assert!(near(fit.slope, 0.0, 1.0) && near(fit.tau, 0.0, 1.0));
        assert_eq!(path(&flat).unwrap().straightness(), None);
        assert_eq!(quarter_gains(&flat), Some(Gains { first: 0.0, last: 0.0, whole: 0.0 }));
        assert_eq!(bend(&flat), Some(0));
    }

    #[test]
    fn quarter_of_wild_points_leaves_the_slope() {
        let mut points = line(32, 3.0);
        for (_, y) in points.iter_mut().step_by(5) {
            *y += 1e6;
        }
        let fit = theil_sen(&points).unwrap();
        assert!((fit.slope - 3.0).abs() < 0.1, "{}", fit.slope);
        assert!(fit.tau > 0.5);
    }

    #[test]
    fn line_is_worth_its_moves_and_a_jump_is_worth_one() {
        assert_eq!(path(&line(11, 2.0)), Some(Path { rise: 20.0, squared_moves: 40.0 }));
        assert!(near(path(&line(11, 2.0)).unwrap().straightness().unwrap(), 10.0, 10.0));
        let jump = [(0.0, 0.0), (1.0, 0.0), (2.0, 7.0), (3.0, 7.0)];
        assert!(near(path(&jump).unwrap().straightness().unwrap(), 1.0, 1.0));
    }

    #[test]
    fn slope_is_known_as_well_as_its_points_keep_to_the_line() {
        let error = |noise: &dyn Fn(f64) -> f64| {
            let points: Vec<_> =
                line(32, 3.0).into_iter().map(|(x, y)| (x, y + noise(x))).collect();
            slope_error(&points, 3.0).unwrap()
        };
        assert!(near(error(&|_| 0.0), 0.0, 1.0));
        // Least squares' error is the noise's deviation over the root of the spread, 52.2.
        let alternating = error(&|x| if x % 2.0 < 1.0 { 1.0 } else { -1.0 });
        assert!((alternating - 1.0 / 52.2).abs() < 0.001, "{alternating}");
        let slow = error(&|x| if x % 16.0 < 8.0 { 1.0 } else { -1.0 });
        assert!(slow > 2.0 * alternating, "{slow}: eight in a row say less than eight apart");
        assert_eq!(slope_error(&line(5, 3.0), 3.0), None);
        assert_eq!(slope_error(&[(1.0, 0.0); 8], 3.0), None);
    }

    #[test]
    fn quarters_of_a_saturating_series_gain_less_and_less() {
        let points: Vec<_> = (1..=32).map(|i| (f64::from(i), f64::from(i).ln())).collect();
        let gains = quarter_gains(&points).unwrap();
        assert!(gains.last < 0.5 * gains.first && gains.whole > gains.first);
    }

    #[test]
    fn bend_is_found_where_the_level_ends() {
        let points: Vec<_> =
            (0..32).map(|i| (f64::from(i), 5.0 + (f64::from(i) - 10.0).max(0.0))).collect();
        assert_eq!(bend(&points), Some(10));
        assert_eq!(bend(&line(32, 1.0)), Some(0));
    }

    #[test]
    fn normal_cdf_matches_the_table() {
        for (z, share) in
            [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895), (3.0, 0.998_650_102)]
        {
            assert!((normal_cdf(z) - share).abs() < 1e-7, "{z}");
        }
        assert!(near(normal_cdf(1e9), 1.0, 1.0) && near(normal_cdf(-1e9), 0.0, 1.0));
    }

    #[test]
    fn succession_without_evidence_is_one_half() {
        assert!(near(succession(1.0, 0.0), 0.5, 1.0));
        assert!(succession(1.0, 1e6) > 0.999_99);
    }

    #[test]
    fn extremes_stay_finite() {
        let top = 9_007_199_254_740_992.0;
        let points: Vec<_> =
            (0..32).map(|i| (f64::from(i) * top, f64::from(i % 2) * top)).collect();
        let fit = theil_sen(&points).unwrap();
        assert!(
            fit.slope.is_finite() && path(&points).unwrap().straightness().unwrap().is_finite()
        );
        assert!(
            bend(&points).is_some() && median(&mut [f64::MAX, f64::MAX]).unwrap().is_finite()
        );
    }

    fn series() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((1_u32..1000, -1_000_000_i32..1_000_000), 4..=POINTS_MAX)
            .prop_map(|moves| {
                let mut x = 0.0;
                let place = |(width, y)| {
                    x += f64::from(width);
                    (x, f64::from(y))
                };
                moves.into_iter().map(place).collect()
            })
    }

    proptest! {
        #[test]
        fn slope_ignores_shifts_and_follows_scales(
            points in series(),
            shift in -1e6..1e6_f64,
            x_scale in 0.01..100.0_f64,
            y_scale in 0.01..100.0_f64,
        ) {
            let fit = theil_sen(&points).unwrap();
            let place = |(x, y): &(f64, f64)| (x * x_scale + shift, y * y_scale + shift);
            let moved: Vec<_> = points.iter().map(place).collect();
            let moved = theil_sen(&moved).unwrap();
            let unit = y_scale / x_scale;
            let off = (moved.slope - fit.slope * unit).abs();
            prop_assert!(off <= 1e-4 * unit * (1.0 + fit.slope.abs()));
            prop_assert!(near(moved.tau, fit.tau, 1.0));
        }

        #[test]
        fn straightness_ignores_shifts_and_scales(
            points in series(), shift in -1e6..1e6_f64, scale in 0.01..100.0_f64
        ) {
            let worth = path(&points).unwrap().straightness();
            prop_assume!(worth.is_some());
            let moved: Vec<_> = points.iter().map(|(x, y)| (*x, y * scale + shift)).collect();
            let moved = path(&moved).unwrap().straightness().unwrap();
            prop_assert!((moved - worth.unwrap()).abs() <= 1e-4 * (1.0 + worth.unwrap()));
            prop_assert!(moved <= 32.0);
        }

        #[test]
        fn median_ignores_the_order(
            values in prop::collection::vec(-1e9..1e9_f64, 1..40), turn in 0_usize..40
        ) {
            let (mut turned, mut straight) = (values.clone(), values.clone());
            turned.rotate_left(turn % values.len());
            turned.reverse();
            let (turned, straight) = (median(&mut turned), median(&mut straight));
            prop_assert!(near(turned.unwrap(), straight.unwrap(), 1.0));
        }

        #[test]
        fn mirrored_points_have_the_mirrored_slope(points in series()) {
            let fit = theil_sen(&points).unwrap();
            let mirrored: Vec<_> = points.iter().rev().map(|(x, y)| (-x, *y)).collect();
            let mirrored = theil_sen(&mirrored).unwrap();
            prop_assert!(near(mirrored.slope, -fit.slope, 1.0 + fit.slope.abs()));
            prop_assert!(near(mirrored.tau, -fit.tau, 1.0));
        }

        #[test]
        fn normal_cdf_rises_and_is_symmetric(z in -8.0..8.0_f64, width in 0.001..2.0_f64) {
            prop_assert!(normal_cdf(z + width) + 2e-7 >= normal_cdf(z));
            prop_assert!((normal_cdf(z) + normal_cdf(-z) - 1.0).abs() < 1e-12);
        }
    }
}
