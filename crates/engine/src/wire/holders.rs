//! Reports of what holds tensors in a training process.

use serde::Deserialize;

use crate::requests::causes::{HoldersOutcome, HoldersReport};
use crate::requests::snapshot::ERROR_BYTES_MAX;
use crate::requests::tracker::REQUEST_ID_BYTES_MAX;
use crate::wire::control::missing;
use crate::wire::error::DecodeError;
use crate::wire::field::{
    bytes_of, count_of, in_field, instance_of, integer_of, optional, rank_of, run_of,
};
use crate::wire::json::{Object, Text, parse};
use crate::wire::number::Number;
use crate::wire::step::RUN_DEFAULT;
use stepmem_types::ids::RankId;
use stepmem_types::site::{
    CodeKind, CodeLine, Fill, HOLDERS_MAX, LineOutcome, LineSearch, Removal, RemovalOutcome,
    SITE_TEXT_BYTES_MAX, SiteText, TensorHolder,
};
use stepmem_types::units::{Count, INTEGER_MAX, OutOfRange, checked_name, checked_text};

/// The longest phrase that names a holder, in bytes.
const NAME_BYTES_MAX: usize = 160;
/// The longest kind of holder, in bytes.
const KIND_BYTES_MAX: usize = 48;
/// The longest name of a function, in bytes.
const FUNCTION_BYTES_MAX: usize = 128;
/// The last line that a file can have.
const LINE_MAX: u64 = (1 << 31) - 1;
/// The greatest growth per step that is taken.
const GROWTH_MAX: f64 = 9_007_199_254_740_992.0;
/// Kind of a holder that is the line that allocates.
const ALLOCATING_LINE: &str = "allocating line";

/// Decodes the body of `POST /v1/holders`.
///
/// # Errors
/// The body is not `{"rank": …, "outcome": "began" | "none"}`, `{…, "outcome": "named",
/// "holders": […]}` or `{…, "outcome": "gave_up" | "failed", "error": …}`.
pub fn decode_holders(body: &[u8]) -> Result<HoldersReport, DecodeError> {
    let raw = parse::<Object<RawHolders<'_>>>(body)?.0;
    let text = |field, text: Option<Text<'_>>, max| {
        text.map(|text| in_field(field, checked_text(&text.0, max))).transpose()
    };
    let error = text("error", raw.error, ERROR_BYTES_MAX)?;
    let needed = || error.ok_or_else(|| missing("error"));
    let first_step = optional(raw.first_step, |n| count_of("first_step", n))?;
    let last_step = optional(raw.last_step, |n| count_of("last_step", n))?;
    let objects_read = optional(raw.objects_read, |n| count_of("objects_read", n))?;
    let objects_met = optional(raw.objects_met, |n| count_of("objects_met", n))?;
    let lines = raw.lines.map(lines).transpose()?;
    let outcome = match raw.outcome {
        RawLookOutcome::Began => HoldersOutcome::Began,
        RawLookOutcome::None => HoldersOutcome::Nothing,
        RawLookOutcome::GaveUp => HoldersOutcome::GaveUp { error: needed()? },
        RawLookOutcome::Failed => HoldersOutcome::Failed { error: needed()? },
        RawLookOutcome::Named => {
            let holders = raw.holders.unwrap_or_default();
            let n_holders = holders.len();
            if !(1..=HOLDERS_MAX).contains(&n_holders) {
                let problem = OutOfRange::Number {
                    value: format!("a list of {n_holders}"),
                    min: "1".to_owned(),
                    max: HOLDERS_MAX.to_string(),
                };
                return in_field("holders", Err(problem));
            }
            let at_steps = |of| {
                holder(of).map(|holder| TensorHolder {
                    step: last_step,
                    since_step: first_step,
                    lines: lines.filter(|_| holder.kind.as_str() == ALLOCATING_LINE),
                    ..holder
                })
            };
            let holders: Result<_, _> = holders.into_iter().map(at_steps).collect();
            HoldersOutcome::Named(holders?)
        }
    };
    let run = run_of(raw.run.as_ref().map_or(RUN_DEFAULT, |run| &run.0))?;
    Ok(HoldersReport {
        rank: RankId { run, rank: rank_of("rank", raw.rank)? },
        instance: raw.instance.map(|text| instance_of(&text.0)).transpose()?,
        id: raw
            .id
            .map(|text| in_field("id", checked_name(&text.0, REQUEST_ID_BYTES_MAX)))
            .transpose()?,
        is_known: false,
        outcome,
        first_step,
        last_step,
        objects_read,
        objects_met,
        saw_growth: raw.saw_growth,
        lines,
    })
}

/// Returns the result of a search for lines.
fn lines(Object(raw): Object<RawLines>) -> Result<LineSearch, DecodeError> {
    let figure = |field, raw: Option<Number>| raw.map(|raw| growth_of(field, raw)).transpose();
    Ok(LineSearch {
        outcome: raw.outcome,
        steps: optional(raw.steps, |n| count_of("steps", n))?,
        pause_seconds: figure("pause_seconds", raw.pause_seconds)?,
        slowdown_ratio: figure("slowdown_ratio", raw.slowdown_ratio)?,
        malloc_used_bytes_per_step: figure(
            "malloc_used_bytes_per_step",
            raw.malloc_used_bytes_per_step,
        )?,
        malloc_free_bytes_per_step: figure(
            "malloc_free_bytes_per_step",
            raw.malloc_free_bytes_per_step,
        )?,
    })
}

fn holder(Object(raw): Object<RawHolder<'_>>) -> Result<TensorHolder, DecodeError> {
    let needed = |field, text: &Text<'_>, max| in_field(field, SiteText::within(&text.0, max));
    let text = |field, text: Option<Text<'_>>, max| {
        text.map(|text| needed(field, &text, max)).transpose()
    };
    let kind = needed("kind", &raw.kind, KIND_BYTES_MAX)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ' ');
    if !kind.as_str().chars().all(is_plain) {
        let what = "letters, digits, spaces, _ and .";
        return in_field("kind", Err(OutOfRange::form(kind.as_str(), what)));
    }
    let function = text("function", raw.function, FUNCTION_BYTES_MAX)?;
    let removal = raw.removal.map(|Object(raw)| {
        let needed = || missing("removal.file");
        let at = code_line(raw.file, raw.line, None)?.ok_or_else(needed)?;
        Ok(Removal { outcome: raw.outcome, at })
    });
    Ok(TensorHolder {
        name: needed("name", &raw.name, NAME_BYTES_MAX)?,
        kind,
        at: code_line(raw.file, raw.line, function)?,
        tensors: count_of("tensors", raw.tensors)?,
        bytes: bytes_of("bytes", raw.bytes)?,
        tensors_per_step: growth_of("tensors_per_step", raw.tensors_per_step)?,
        bytes_per_step: growth_of("bytes_per_step", raw.bytes_per_step)?,
        step: None,
        fill: fill(raw.items, raw.items_max, raw.items_per_step)?,
        since_step: None,
        lines: None,
        keeps_more: raw.keeps_more,
        added_per_step: raw
            .added_per_step
            .map(|raw| growth_of("added_per_step", raw))
            .transpose()?,
        removal: removal.transpose()?,
    })
}

/// Returns a line of Python; `None` without a file.
fn code_line(
    file: Option<Text<'_>>,
    line: Option<Number>,
    function: Option<SiteText>,
) -> Result<Option<CodeLine>, DecodeError> {
    let file =
        file.map(|file| in_field("file", SiteText::within(&file.0, SITE_TEXT_BYTES_MAX)));
    let line = optional(line, |n| integer_of("line", n, LINE_MAX))?;
    let at = |file| CodeLine {
        kind: CodeKind::Python,
        file: Some(file),
        line: line.filter(|line| *line > 0),
        function,
    };
    Ok(file.transpose()?.map(at))
}

/// Returns the fill of a holder: the three fields come together, or none does.
fn fill(
    items: Option<Number>,
    items_max: Option<Number>,
    items_per_step: Option<Number>,
) -> Result<Option<Fill>, DecodeError> {
    if items.is_none() && items_max.is_none() && items_per_step.is_none() {
        return Ok(None);
    }
    let items_max = count_of("items_max", items_max.ok_or_else(|| missing("items_max"))?)?;
    let items = items.ok_or_else(|| missing("items"))?;
    let items = in_field("items", Count::new(integer_of("items", items, items_max.get())?))?;
    let items_per_step = items_per_step.ok_or_else(|| missing("items_per_step"))?;
    let items_per_step = growth_of("items_per_step", items_per_step)?;
    Ok(Some(Fill { items, items_max, items_per_step, is_own: false }))
}

fn growth_of(field: &'static str, raw: Number) -> Result<f64, DecodeError> {
    let value = raw.float();
    let outside = || OutOfRange::Number {
        value: value.to_string(),
        min: "0".to_owned(),
        max: INTEGER_MAX.to_string(),
    };
    let is_inside = (0.0..=GROWTH_MAX).contains(&value);
    in_field(field, is_inside.then_some(value).ok_or_else(outside))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHolders<'a> {
    #[serde(borrow)]
    run: Option<Text<'a>>,
    rank: Number,
    #[serde(borrow)]
    instance: Option<Text<'a>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    outcome: RawLookOutcome,
    first_step: Option<Number>,
    last_step: Option<Number>,
    objects_read: Option<Number>,
    objects_met: Option<Number>,
    saw_growth: Option<bool>,
    #[serde(borrow)]
    holders: Option<Vec<Object<RawHolder<'a>>>>,
    #[serde(borrow)]
    error: Option<Text<'a>>,
    lines: Option<Object<RawLines>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLines {
    outcome: LineOutcome,
    steps: Option<Number>,
    pause_seconds: Option<Number>,
    slowdown_ratio: Option<Number>,
    malloc_used_bytes_per_step: Option<Number>,
    malloc_free_bytes_per_step: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHolder<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    file: Option<Text<'a>>,
    line: Option<Number>,
    #[serde(borrow)]
    function: Option<Text<'a>>,
    tensors: Number,
    bytes: Number,
    tensors_per_step: Number,
    bytes_per_step: Number,
    items: Option<Number>,
    items_max: Option<Number>,
    items_per_step: Option<Number>,
    keeps_more: Option<bool>,
    added_per_step: Option<Number>,
    #[serde(borrow)]
    removal: Option<Object<RawRemoval<'a>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRemoval<'a> {
    outcome: RemovalOutcome,
    #[serde(borrow)]
    file: Option<Text<'a>>,
    line: Option<Number>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawLookOutcome {
    Began,
    Named,
    None,
    GaveUp,
    Failed,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::decode_holders;

    fn refusal(holder: &Value) -> String {
        let body = json!({"rank": 3, "outcome": "named", "holders": [holder]});
        decode_holders(body.to_string().as_bytes()).map(drop).unwrap_err().to_string()
    }

    fn named(name: &str, value: Value) -> Value {
        let mut holder = json!({"name": "`Trainer.history`", "kind": "list", "tensors": 1,
            "bytes": 2, "tensors_per_step": 1, "bytes_per_step": 2.5});
        holder[name] = value;
        holder
    }

    #[test]
    fn holder_that_could_not_be_shown_or_is_out_of_range_is_refused_by_field() {
        for (field, value, said) in [
            ("name", json!("a\u{202e}b"), "name: "),
            ("name", json!("x".repeat(161)), "name: a text of 161 bytes"),
            ("kind", json!("<b>"), "kind: \"<b>\" is not made of letters"),
            ("file", json!("a\u{1b}"), "file: "),
            ("bytes", json!(-1), "bytes: -1"),
            ("bytes_per_step", json!(-0.5), "bytes_per_step: -0.5"),
            ("value", json!("secret"), "unknown field `value`"),
        ] {
            let message = refusal(&named(field, value));
            assert!(message.contains(said), "{message}");
        }
        let body = json!({"rank": 3, "outcome": "named", "holders": []}).to_string();
        assert!(decode_holders(body.as_bytes()).is_err());
        assert!(decode_holders(br#"{"rank":3,"outcome":"failed"}"#).is_err());
    }

    #[test]
    fn fill_comes_whole_and_within_its_bound() {
        for (fields, said) in [
            (json!({"items": 1}), "missing field `items_max`"),
            (json!({"items_max": 9, "items_per_step": 1}), "missing field `items`"),
            (json!({"items": 1, "items_max": 9}), "missing field `items_per_step`"),
            (
                json!({"items": 10, "items_max": 9, "items_per_step": 1}),
                "items: 10 is outside 0..=9",
            ),
            (json!({"items": 1.5, "items_max": 9, "items_per_step": 1}), "items: 1.5"),
            (json!({"items": 1, "items_max": -9, "items_per_step": 1}), "items_max: -9"),
            (json!({"items": 1, "items_max": 1e17, "items_per_step": 1}), "items_max: 1"),
            (json!({"items": 1, "items_max": 9, "items_per_step": -1}), "items_per_step: -1"),
        ] {
            let mut holder = named("kind", json!("deque"));
            holder.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let message = refusal(&holder);
            assert!(message.contains(said), "{message} does not say {said}");
        }
    }

    #[test]
    fn search_for_lines_is_read_and_out_of_range_is_refused_by_field() {
        let body = |lines: Value| json!({"rank": 3, "outcome": "none", "lines": lines});
        for (lines, said) in [
            (json!({}), "missing field `outcome`"),
            (json!({"outcome": "secret"}), "unknown variant `secret`"),
            (json!({"outcome": "slow", "slowdown_ratio": -1}), "slowdown_ratio: -1"),
            (json!({"outcome": "named", "steps": 1.5}), "steps: 1.5"),
            (json!({"outcome": "own", "value": 1}), "unknown field `value`"),
        ] {
            let refused = decode_holders(body(lines).to_string().as_bytes()).map(drop);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(said), "{message} does not say {said}");
        }
        let lines = json!({"outcome": "arenas", "steps": 40, "pause_seconds": 0.01,
            "slowdown_ratio": 1.02, "malloc_used_bytes_per_step": 0,
            "malloc_free_bytes_per_step": 4096});
        assert!(decode_holders(body(lines).to_string().as_bytes()).is_ok());
    }

    #[test]
    fn holders_are_read() {
        for body in [
            json!({"rank": 3, "outcome": "began"}),
            json!({"rank": 3, "outcome": "none", "first_step": 1, "last_step": 21}),
            json!({"rank": 3, "outcome": "gave_up", "error": "too many objects"}),
            json!({"rank": 3, "outcome": "named", "holders": [named("file", json!("train.py"))]}),
        ] {
            assert!(decode_holders(body.to_string().as_bytes()).is_ok(), "{body}");
        }
    }
}
