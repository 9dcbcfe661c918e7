//! The answers of Prometheus to a query over time, as series.

use std::collections::BTreeMap;

use crate::job::answer::Answer;
use crate::job::answer::Series as Answered;
use crate::series::error::SeriesError;
use crate::series::figure::Unit;
use crate::series::model::{
    Decoded, Format, LeftOut, POINTS_MAX, Point, SERIES_MAX, Series, Wanted,
};
use crate::series::scale::{check_below_capacity, scale};
use stepmem_types::format::clean::{clean, shortened};

/// The label of a metric's name.
const NAME: &str = "__name__";
/// Characters of labels in an error.
const LABELS_CHARS_MAX: usize = 400;

/// The labels and their values that tell a series apart.
type Key = Vec<(String, String)>;

/// Returns the series of an answer. Those that agree in the labels of `wanted.by` are one, if
/// they do not overlap in time. `capacities` is the answer to the query for capacities.
///
/// # Errors
/// They overlap, their unit is unknown, or a bound is exceeded.
pub fn series(
    (query, answer): (&str, Answer),
    capacities: &Answer,
    wanted: &Wanted,
) -> Result<Decoded, SeriesError> {
    let mut joined: BTreeMap<Key, Vec<&Answered>> = BTreeMap::new();
    for of in &answer.series {
        joined.entry(key(of, wanted)).or_default().push(of);
        if joined.len() > SERIES_MAX {
            return Err(SeriesError::TooManySeries);
        }
    }
    if answer.series.iter().map(|of| of.points.len()).fold(0, usize::saturating_add)
        > POINTS_MAX
    {
        return Err(SeriesError::TooManyPoints);
    }
    let known: BTreeMap<Key, f64> = capacities
        .series
        .iter()
        .filter_map(|of| {
            Some((key(of, wanted), of.points.iter().map(|point| point.value).reduce(f64::max)?))
        })
        .collect();
    let mut left_out = LeftOut::default();
    let mut series = Vec::new();
    for (labels, mut parts) in joined {
        parts.retain(|of| !of.points.is_empty());
        parts.sort_by(|a, b| first(a).total_cmp(&first(b)));
        if let Some(first) = parts.first() {
            check_apart(&labels, &parts)?;
            let name = first.label(NAME).unwrap_or(query);
            let capacity = known.get(&labels).copied();
            let of = Named { name, labels, capacity };
            series.extend(of.series(&parts, wanted, &mut left_out)?);
        }
    }
    Ok(Decoded { format: Format::Prometheus, series, left_out })
}

fn key(of: &Answered, wanted: &Wanted) -> Key {
    let labels = of.labels().filter(|(name, _)| {
        if wanted.by.is_empty() { *name != NAME } else { wanted.by.iter().any(|by| by == name) }
    });
    labels.map(|(name, value)| (clean(name).into_owned(), clean(value).into_owned())).collect()
}

fn first(of: &Answered) -> f64 {
    of.points.first().map_or(0.0, |point| point.time)
}

/// Checks that parts of a series, by their beginnings, follow each other.
fn check_apart(labels: &Key, parts: &[&Answered]) -> Result<(), SeriesError> {
    let ends = parts.iter().map(|of| of.points.last().map_or(0.0, |point| point.time));
    let mut pairs = ends.zip(parts.iter().zip(parts.iter().skip(1)));
    let Some((_, (a, b))) = pairs.find(|(end, (_, next))| first(next) <= *end) else {
        return Ok(());
    };
    let differ = |(name, value): &(&str, &str)| b.label(name) != Some(value);
    let names: Vec<&str> = a.labels().filter(differ).map(|(name, _)| name).collect();
    let has = shortened(&format!("they differ in {}", names.join(", ")), LABELS_CHARS_MAX);
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let labels = shortened(&labels.join(" "), LABELS_CHARS_MAX);
    Err(SeriesError::Overlap { labels, has })
}

/// A series without its points.
struct Named<'a> {
    name: &'a str,
    labels: Key,
    /// The capacity, in the unit of its points.
    capacity: Option<f64>,
}

impl Named<'_> {
    /// Returns the series with its points; `None` where no figure can be read.
    fn series(
        self,
        parts: &[&Answered],
        wanted: &Wanted,
        left_out: &mut LeftOut,
    ) -> Result<Option<Series>, SeriesError> {
        let mut series = Series {
            column: clean(self.name).into_owned(),
            labels: self.labels,
            is_unit_guessed: false,
            capacity: None,
            points: Vec::new(),
        };
        let unit = wanted.unit.or_else(|| Unit::of_name(self.name));
        let unit = unit.ok_or_else(|| SeriesError::NoUnit(series.name()))?;
        let found = match unit {
            Unit::Bytes(each) => self.capacity.map(|number| number * each),
            Unit::Percent => None,
        };
        let each = scale(&mut series, unit, found, wanted)?;
        for point in parts.iter().flat_map(|of| &of.points) {
            if point.value < 0.0 {
                left_out.figures_unreadable += 1;
            } else {
                series.points.push(Point { time: point.time, bytes: point.value * each });
            }
        }
        let greatest = series.points.iter().map(|point| point.bytes).fold(0.0, f64::max);
        check_below_capacity(&series, greatest, wanted)?;
        Ok(Some(series).filter(|series| !series.points.is_empty()))
    }
}
