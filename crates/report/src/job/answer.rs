//! Decodes answers of Prometheus' query API: vectors and matrices, within bounds. The engine is
//! another program, so keys that are not known are skipped.

use std::collections::BTreeMap;

use serde::Deserialize;

use stepmem_types::format::clean::shortened;

/// Series of an answer.
pub const SERIES_MAX: usize = 65_536;
/// Points of all series of an answer.
pub const POINTS_MAX: usize = 1_048_576;
/// Warnings of an answer that are kept.
pub const WARNINGS_MAX: usize = 8;
/// Characters of an engine's text that are shown.
pub const TEXT_CHARS_MAX: usize = 256;
/// The longest value of a label that is kept, in bytes: the exporter's have at most half as many.
pub const LABEL_BYTES_MAX: usize = 1024;

/// The series that a query gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub series: Vec<Series>,
    /// The warnings of the engine, as that it lacks data; clean text.
    pub warnings: Vec<String>,
}

/// A series with its finite values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    labels: BTreeMap<String, String>,
    /// Ascending by time, as the engine gives them; one of an instant query.
    pub points: Vec<Point>,
}

/// A value at a Unix time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub time: f64,
    pub value: f64,
}

/// Why an answer gives no series.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("it is no answer of Prometheus' query API: {0}")]
    Form(String),
    #[error("{0}")]
    Refused(String),
    #[error("it has more than {SERIES_MAX} series")]
    TooManySeries,
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
    result: Vec<RawSeries>,
}

#[derive(Deserialize)]
struct RawSeries {
    metric: BTreeMap<String, String>,
    value: Option<(f64, String)>,
    #[serde(default)]
    values: Vec<(f64, String)>,
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
        let result = raw.data.ok_or_else(|| form("it has no data"))?.result;
        if result.len() > SERIES_MAX {
            return Err(AnswerError::TooManySeries);
        }
        let n_points = result.iter().map(|series| series.values.len());
        if n_points.fold(0, usize::saturating_add) > POINTS_MAX {
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
        let point = |(time, value): (f64, String)| {
            let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
            Some(Point { time, value })
        };
        let points = raw.value.into_iter().chain(raw.values).filter_map(point).collect();
        let mut labels = raw.metric;
        labels.retain(|_, value| value.len() <= LABEL_BYTES_MAX);
        Self { labels, points }
    }
}

impl Series {
    /// Returns the value of a label, unless it is empty, which means absent, or too long.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the last value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point.value)
    }
}

#[cfg(test)]
mod tests {
    use crate::job::answer::{Answer, AnswerError, Point};

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
