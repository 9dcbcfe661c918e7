//! Decodes answers of Prometheus' query API: vectors and matrices, within bounds. The engine is
//! another program, so keys that are not known are skipped.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Formatter};
use std::marker::PhantomData;
use std::rc::Rc;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use stepmem_types::format::clean::shortened;

/// Series of an answer.
pub const SERIES_MAX: usize = 65_536;
/// Points of all series of an answer.
pub(crate) const POINTS_MAX: usize = 1_048_576;
/// Warnings of an answer that are kept.
pub(crate) const WARNINGS_MAX: usize = 8;
/// Characters of an engine's text that are shown.
pub(crate) const TEXT_CHARS_MAX: usize = 256;
/// Labels of a series that are kept: a query of this program asks for at most a dozen.
pub(crate) const LABELS_MAX: usize = 32;
/// The longest value of a label that is kept, in bytes: the exporter's have at most half as many.
pub(crate) const LABEL_BYTES_MAX: usize = 1024;

/// The series that a query gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The series, as the engine orders them.
    pub series: Vec<Series>,
    /// The warnings of the engine, as that it lacks data; clean text.
    pub warnings: Vec<String>,
}

/// A series with its finite values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    labels: Rc<Labels>,
    /// Ascending by time, as the engine gives them; one of an instant query.
    pub points: Vec<Point>,
}

/// A value at a Unix time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub time: f64,
    pub value: f64,
}

/// The reason that an answer gives no series.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The body has another form; the text says where.
    #[error("it is no answer of Prometheus' query API: {0}")]
    Form(String),
    /// The engine refused the query, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The answer exceeds [`SERIES_MAX`].
    #[error("it has more than {SERIES_MAX} series")]
    TooManySeries,
    /// The series together exceed `POINTS_MAX`.
    #[error("it has more than {POINTS_MAX} points")]
    TooManyPoints,
}

#[derive(Deserialize)]
struct RawAnswer {
    status: String,
    error: Option<String>,
    data: Option<RawData>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct RawData {
    result: Bounded<RawSeries, SERIES_MAX>,
}

#[derive(Deserialize)]
struct RawSeries {
    metric: Labels,
    value: Option<RawPoint>,
    #[serde(default)]
    values: Bounded<RawPoint, POINTS_MAX>,
}

/// A time and a value, which may be no number.
#[derive(Deserialize)]
struct RawPoint(f64, #[serde(deserialize_with = "value")] f64);

fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    Ok(text.parse().unwrap_or(f64::NAN))
}

/// The first items of a list, of which at most `MAX` are ever in memory.
struct Bounded<T, const MAX: usize> {
    items: Vec<T>,
    is_over: bool,
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), is_over: false }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor(PhantomData))
    }
}

struct BoundedVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for BoundedVisitor<T, MAX> {
    type Value = Bounded<T, MAX>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = Bounded::default();
        while list.items.len() < MAX {
            match seq.next_element()? {
                Some(item) => list.items.push(item),
                None => return Ok(list),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            list.is_over = true;
        }
        Ok(list)
    }
}

/// The labels of a series: the first [`LABELS_MAX`] whose values are not too long.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct Labels(Vec<(Box<str>, Box<str>)>);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LabelsVisitor)
    }
}

struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = Labels;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
        let mut labels = Labels::default();
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, Cow<'de, str>>()? {
            let is_kept = labels.0.len() < LABELS_MAX
                && name.len() <= LABEL_BYTES_MAX
                && value.len() <= LABEL_BYTES_MAX;
            if is_kept {
                labels.0.push((name.into(), value.into()));
            }
        }
        Ok(labels)
    }
}

impl Answer {
    /// Decodes the answer to a query.
    ///
    /// # Errors
    /// It is not an answer of the API, has the reason of a refusal, or exceeds a bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, AnswerError> {
        let form = |reason: &str| AnswerError::Form(shortened(reason, TEXT_CHARS_MAX));
        let raw: RawAnswer =
            serde_json::from_slice(bytes).map_err(|error| form(&error.to_string()))?;
        if raw.status != "success" {
            let reason = raw.error.unwrap_or(raw.status);
            return Err(AnswerError::Refused(shortened(&reason, TEXT_CHARS_MAX)));
        }
        let Bounded { items: result, is_over } =
            raw.data.ok_or_else(|| form("it has no data"))?.result;
        if is_over {
            return Err(AnswerError::TooManySeries);
        }
        let n_points = result.iter().map(|series| series.values.items.len());
        let is_over = result.iter().any(|series| series.values.is_over);
        if is_over || n_points.fold(0, usize::saturating_add) > POINTS_MAX {
            return Err(AnswerError::TooManyPoints);
        }
        let warnings = raw.warnings.iter().take(WARNINGS_MAX);
        Ok(Self {
            series: result.into_iter().map(Series::from).collect(),
            warnings: warnings.map(|text| shortened(text, TEXT_CHARS_MAX)).collect(),
        })
    }
}

impl From<RawSeries> for Series {
    fn from(raw: RawSeries) -> Self {
        let point = |RawPoint(time, value)| value.is_finite().then_some(Point { time, value });
        let points = raw.value.into_iter().chain(raw.values.items).filter_map(point).collect();
        Self { labels: Rc::new(raw.metric), points }
    }
}

impl Series {
    /// Shares its labels with series that have the same, and keeps its last value only.
    pub(super) fn shrink(&mut self, known: &mut HashSet<Rc<Labels>>) {
        match known.get(&self.labels) {
            Some(same) => self.labels = Rc::clone(same),
            None => drop(known.insert(Rc::clone(&self.labels))),
        }
        self.points.drain(..self.points.len().saturating_sub(1));
        self.points.shrink_to_fit();
    }

    /// Returns the value of a label, unless it is empty, which means absent, or too long.
    pub fn label(&self, name: &str) -> Option<&str> {
        let (_, value) = self.labels.0.iter().find(|(known, _)| **known == *name)?;
        Some(&**value).filter(|value| !value.is_empty())
    }

    /// Returns its labels, in the order of the answer.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.labels.0.iter().map(|(name, value)| (&**name, &**value));
        labels.filter(|(_, value)| !value.is_empty())
    }

    /// Returns the last value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point.value)
    }
}

#[cfg(test)]
mod tests {
    use crate::job::answer::{Answer, AnswerError, LABELS_MAX, POINTS_MAX, Point, SERIES_MAX};

    #[test]
    fn vectors_and_matrices_are_decoded_and_values_that_are_no_numbers_left_out() {
        let vector = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"rank":"3","pod":""},"value":[17.5,"1e9"]},
            {"metric":{"rank":"4"},"value":[17.5,"NaN"]}]},"warnings":["partial response"],"infos":[]}"#;
        let answer = Answer::decode(vector).unwrap();
        assert_eq!(answer.warnings, ["partial response"]);
        let [third, fourth] = &answer.series[..] else { panic!("{answer:?}") };
        assert_eq!((third.label("rank"), third.label("pod")), (Some("3"), None));
        assert_eq!((third.last(), fourth.last()), (Some(1e9), None));
        let matrix = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{},"values":[[1,"2"],[3,"+Inf"],[5,"6"]]}]}}"#;
        let points = &Answer::decode(matrix).unwrap().series[0].points;
        let expected = [Point { time: 1.0, value: 2.0 }, Point { time: 5.0, value: 6.0 }];
        assert_eq!(points[..], expected);
    }

    #[test]
    fn what_exceeds_a_bound_is_refused_and_never_in_memory() {
        let answer = |series: &str| {
            let data = format!(r#"{{"status":"success","data":{{"result":[{series}]}}}}"#);
            Answer::decode(data.as_bytes())
        };
        let list = |item: &str, n_items: usize| vec![item; n_items].join(",");
        let many = list(r#"{"metric":{}}"#, SERIES_MAX);
        assert_eq!(answer(&many).unwrap().series.len(), SERIES_MAX);
        let one_more = format!(r#"{many},{{"metric":{{}}}}"#);
        assert_eq!(answer(&one_more), Err(AnswerError::TooManySeries));
        let points = |n_points| {
            let values = list(r#"[1,"2"]"#, n_points);
            answer(&format!(r#"{{"metric":{{}},"values":[{values}]}}"#))
        };
        assert_eq!(points(POINTS_MAX).unwrap().series[0].points.len(), POINTS_MAX);
        assert_eq!(points(POINTS_MAX + 1), Err(AnswerError::TooManyPoints));
        let labels: Vec<String> = (0..=LABELS_MAX).map(|n| format!(r#""l{n}":"x""#)).collect();
        let series = answer(&format!(r#"{{"metric":{{{}}}}}"#, labels.join(","))).unwrap();
        let label = |n: usize| series.series[0].label(&format!("l{n}")).map(str::to_owned);
        assert_eq!((label(LABELS_MAX - 1).as_deref(), label(LABELS_MAX)), (Some("x"), None));
    }

    #[test]
    fn refusals_have_the_reason_of_the_engine_and_other_texts_are_no_answers() {
        let refusal =
            br#"{"status":"error","errorType":"execution","error":"too \u001b many samples"}"#;
        let expected = AnswerError::Refused("too \\u{1b} many samples".to_owned());
        assert_eq!(Answer::decode(refusal), Err(expected));
        for text in ["", "<html>", "[]", r#"{"status":"success"}"#] {
            let error = Answer::decode(text.as_bytes()).unwrap_err();
            assert!(matches!(error, AnswerError::Form(_)), "{text}: {error}");
        }
    }
}
