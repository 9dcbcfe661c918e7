//! Verdicts as JSON. Bytes and seconds stand in the names, and an unknown figure is absent.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::Serialize;
use serde_json::Value;

use crate::explain::json::StoryTold;
use crate::judge::source::SourceTold;
use crate::judge::text::tell;
use crate::judge::{BY_TIME, Judged, Verdict};
use stepmem_engine::TrendFigures;
use stepmem_types::claims::Statement;

/// All that was judged, for programs.
#[derive(Debug, Serialize)]
pub struct JudgedTold<'a> {
    sources: &'a [SourceTold],
    series: Vec<SeriesTold<'a>>,
    /// A note on what samples by time cannot show.
    note: &'static str,
    /// The statements of the text, in its order; each story has its own.
    statements: Vec<Statement>,
}

impl<'a> JudgedTold<'a> {
    /// The verdicts on all series, in the order of `judged`.
    pub fn of(sources: &'a [SourceTold], judged: &'a [Judged]) -> Self {
        let series = judged.iter().map(SeriesTold::of).collect();
        let statements = tell(sources, judged, None).into_said();
        Self { sources, series, note: BY_TIME, statements }
    }
}

#[derive(Debug, Serialize)]
struct SeriesTold<'a> {
    name: String,
    column: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    verdict: Verdict,
    samples: usize,
    /// The median time between neighboring samples, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<f64>,
    /// Set when nothing named the unit, and figures of this size were taken as bytes.
    #[serde(skip_serializing_if = "Not::not")]
    is_unit_guessed: bool,
    /// The growth behind the verdict, when it was seen last.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<&'a TrendFigures>,
    /// The story as `stepmem explain --json` writes it, without a subject.
    story: Value,
}

impl<'a> SeriesTold<'a> {
    fn of(judged: &'a Judged) -> Self {
        let series = &judged.series;
        let labels = series.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self {
            name: series.name(),
            column: &series.column,
            labels: labels.collect(),
            verdict: judged.verdict,
            samples: series.points.len(),
            interval_seconds: series.interval_seconds(),
            capacity_bytes: series.capacity,
            is_unit_guessed: series.is_unit_guessed,
            growth: judged.growth.as_ref(),
            story: story(judged),
        }
    }
}

/// Returns the story without the process that the series was played as.
fn story(judged: &Judged) -> Value {
    // A story has no map whose keys are no texts, so it always is JSON.
    let mut story = serde_json::to_value(StoryTold::of(&judged.story)).unwrap_or_default();
    let without_subject = |of: &mut Value| {
        if let Some(of) = of.as_object_mut() {
            of.retain(|key, _| !["uuid", "pid", "device"].contains(&key.as_str()));
        }
    };
    without_subject(&mut story);
    let events = story.get_mut("events").and_then(Value::as_array_mut);
    for transition in
        events.into_iter().flatten().filter_map(|event| event.get_mut("transition"))
    {
        without_subject(transition);
    }
    story
}
