//! The description of a metric: name, kind, unit, help, labels and reader.

use crate::output::status::{RankStatus, Status};
use stepmem_types::units::DurationCounts;

/// A metric: a row of [`METRICS`](crate::metrics::METRICS).
pub struct Metric {
    /// The name in Prometheus' formats.
    pub name: &'static str,
    /// The name in OpenTelemetry; `None` where OpenTelemetry has a convention of its own.
    pub otel: Option<&'static str>,
    /// The kind, as every format names it.
    pub kind: Kind,
    /// The unit of its values.
    pub unit: Unit,
    /// The meaning of the metric, in one sentence.
    pub help: &'static str,
    /// The names of its labels, in the order in which its reader gives their values.
    pub labels: &'static [&'static str],
    /// The part of the table that it stands in.
    pub group: Group,
    /// The reader of its values.
    pub read: Read,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only rises, until its source restarts.
    Counter,
    /// Constant 1; the labels carry the information.
    Info,
    /// Durations counted in buckets.
    Histogram,
}

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    BytesPerStep,
    BytesPerSecond,
    /// Seconds, also since 1970.
    Seconds,
    /// A share of a whole.
    Ratio,
    /// Something countable, named in OpenTelemetry's way (`{rank}`).
    Countable(&'static str),
}

impl Unit {
    /// The unit as the end of a name and in OpenMetrics' `UNIT` line; `None` for what is merely
    /// countable.
    pub fn as_suffix(self) -> Option<&'static str> {
        match self {
            Self::Bytes => Some("bytes"),
            Self::BytesPerStep => Some("bytes_per_step"),
            Self::BytesPerSecond => Some("bytes_per_second"),
            Self::Seconds => Some("seconds"),
            Self::Ratio => Some("ratio"),
            Self::Countable(_) => None,
        }
    }

    /// The unit as OpenTelemetry (UCUM) writes it.
    pub fn as_ucum(self) -> &'static str {
        match self {
            Self::Bytes => "By",
            Self::BytesPerStep => "By/{step}",
            Self::BytesPerSecond => "By/s",
            Self::Seconds => "s",
            Self::Ratio => "1",
            Self::Countable(what) => what,
        }
    }
}

/// The parts of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Nvml,
    /// Figures as the ranks push them.
    Pushed,
    /// Derived by the engine.
    Derived,
    /// About the exporter itself.
    Own,
}

impl Kind {
    /// The type in Prometheus' formats and in prose.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }
}

impl Group {
    /// The heading of the part.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Nvml => "From NVML",
            Self::Pushed => "As pushed",
            Self::Derived => "Derived",
            Self::Own => "The exporter itself",
        }
    }
}

/// The ways to read the values of a metric.
pub enum Read {
    /// Hands each series, as the values of its labels and its value, to the visitor.
    Series(fn(&Status, &mut Visit<'_>)),
    /// Hands each series of subjects of several kinds to the visitor: a label without a value
    /// is left out.
    Subjects(fn(&Status, &mut Visit<'_>)),
    /// The durations of a histogram.
    Durations(fn(&Status) -> &DurationCounts),
}

/// The series that a reader hands on, one after another.
pub struct Visit<'v> {
    take: &'v mut dyn FnMut(SeriesLabels<'_>, f64),
}

/// The values of a series' labels, in the order of [`Metric::labels`].
#[derive(Clone, Copy, Debug)]
pub struct SeriesLabels<'a> {
    /// The place in [`Status::ranks`] of the rank whose run, rank and device are the first three.
    pub rank: Option<usize>,
    /// The values; of a rank, those after the first three.
    pub more: &'a [&'a str],
}

/// Returns the labels of a rank that all of its series have.
pub fn rank_labels(rank: &RankStatus) -> [&str; 3] {
    [rank.run.as_str(), &rank.rank_label, uuid(rank)]
}

fn uuid(rank: &RankStatus) -> &str {
    rank.identity.device.as_ref().map_or("", |device| device.as_str())
}

impl<'a> SeriesLabels<'a> {
    /// Returns all values.
    pub fn values(self, status: &'a Status) -> Vec<&'a str> {
        let rank = self.rank.and_then(|rank| status.ranks.get(rank));
        let of_rank = rank.into_iter().flat_map(rank_labels);
        of_rank.chain(self.more.iter().copied()).collect()
    }
}

impl<'v> Visit<'v> {
    /// A visitor that `take`s each series' labels and value.
    pub fn new(take: &'v mut dyn FnMut(SeriesLabels<'_>, f64)) -> Self {
        Self { take }
    }

    /// Hands on a series.
    pub(super) fn series(&mut self, labels: &[&str], value: f64) {
        (self.take)(SeriesLabels { rank: None, more: labels }, value);
    }

    /// Hands on a series of the rank in that place, with the labels that it has besides.
    pub(super) fn of_rank(&mut self, rank: usize, more: &[&str], value: f64) {
        (self.take)(SeriesLabels { rank: Some(rank), more }, value);
    }
}
