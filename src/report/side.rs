//! What can be compared of a summary, read from its JSON: ours, TraceML's `final_summary.json`, or what
//! `summary --policy traceml --json` prints. What it does not say is absent.

use serde_json::Value;

use crate::report::traceml::Severity;

/// One side of a comparison.
#[derive(Clone, Debug)]
pub struct Side {
    /// Whose words it has: `stepmem` or `traceml`.
    pub policy: &'static str,
    /// The run, if it is named.
    pub run: Option<String>,
    /// What was wrong; empty when nothing was.
    pub issues: Vec<Told>,
    /// The name of its diagnosis.
    pub status: String,
    /// Whether there is anything to compare.
    pub has_data: bool,
    /// Whether it ran long enough for creep to be judged.
    pub is_judged: bool,
    /// How many train steps it had.
    pub steps: Option<f64>,
    /// The highest peak of live memory.
    pub peak_allocated: Peak,
    /// The highest peak of what the allocator held.
    pub peak_reserved: Peak,
    /// The highest peak by its rank's capacity.
    pub pressure_ratio: Option<f64>,
    /// The least headroom of a rank, in bytes.
    pub headroom_bytes: Option<f64>,
    /// The trend of the rank that grows fastest.
    pub trend: Option<Trend>,
    /// (worst - median) / median over the ranks' peaks.
    pub skew_ratio: Option<f64>,
    /// Whether that is of means, as TraceML's is.
    pub is_skew_of_means: bool,
    /// The rank that the diagnosis is about, or that of the highest peak.
    pub worst_rank: Option<u64>,
    /// How many ranks were lost, or never heard of.
    pub n_lost: Option<u64>,
    /// Out-of-memory errors of all ranks.
    pub n_ooms: Option<u64>,
}

/// One diagnosis.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Its name in labels.
    pub kind: String,
    /// Its name on pages.
    pub status: String,
    /// How much it matters.
    pub severity: Severity,
    /// Its ranks.
    pub ranks: Vec<u64>,
}

/// A peak over ranks and steps, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    /// The true maximum.
    pub max: Option<f64>,
    /// The greatest mean of a rank, which is all that TraceML writes.
    pub mean: Option<f64>,
    /// How far a step of that rank is from its neighbours.
    pub noise: Option<f64>,
}

/// How live memory of a rank moves, in bytes per step.
#[derive(Clone, Debug)]
pub struct Trend {
    /// Whether growth holds.
    pub is_held: bool,
    /// The slope.
    pub slope: f64,
    /// The ends of its 95 % interval.
    pub interval: Option<(f64, f64)>,
}

/// Why a document is no summary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is neither a summary of stepmem nor TraceML's final_summary.json: {0}")]
pub struct NoSummary(String);

impl Side {
    /// Reads a summary.
    ///
    /// # Errors
    /// It is no summary, or one of a later schema.
    pub fn read(summary: &Value) -> Result<Self, NoSummary> {
        if !summary.is_object() {
            return Err(NoSummary("it is no JSON object".to_owned()));
        }
        if summary.pointer("/generator/name").and_then(Value::as_str) == Some("stepmem") {
            return own(summary);
        }
        if summary.get("policy").and_then(Value::as_str) == Some("traceml") {
            return traceml(summary, summary);
        }
        match summary.get("step_memory") {
            Some(section) if section.get("diagnosis").is_some() => traceml(summary, section),
            Some(_) => Err(NoSummary("step_memory has no diagnosis".to_owned())),
            None => Err(NoSummary("it has no step_memory".to_owned())),
        }
    }
}

fn own(summary: &Value) -> Result<Side, NoSummary> {
    let version = number(summary, "/generator/schema_version");
    let known = f64::from(crate::report::summary::SCHEMA_VERSION);
    if version.is_none_or(|version| version > known) {
        let shown = version.map_or("missing".to_owned(), |version| version.to_string());
        return Err(NoSummary(format!("generator.schema_version is {shown}, beyond {known}")));
    }
    let ranks = list(summary, "/ranks");
    let peak = |key: &str| {
        let of = |rank: &&Value, part: &str| number(rank, &format!("/{key}/{part}"));
        let worst = ranks.iter().max_by(|a, b| {
            let max = |rank: &&Value| of(rank, "max_bytes").unwrap_or(-1.0);
            max(a).total_cmp(&max(b))
        });
        Peak {
            max: worst.and_then(|rank| of(rank, "max_bytes")),
            mean: ranks.iter().filter_map(|rank| of(rank, "mean_bytes")).reduce(f64::max),
            noise: worst.and_then(|rank| of(rank, "noise_bytes")),
        }
    };
    let all =
        |path: &str| ranks.iter().filter_map(|rank| number(rank, path)).collect::<Vec<_>>();
    let missing = whole(summary, "/coverage/n_ranks_missing").unwrap_or(0);
    let n_lost = u64::try_from(list(summary, "/coverage/ranks_lost").len()).unwrap_or(u64::MAX);
    let ooms: Vec<u64> = ranks.iter().filter_map(|rank| whole(rank, "/ooms")).collect();
    let diagnosis = summary.get("diagnosis").unwrap_or(&Value::Null);
    Ok(Side {
        policy: "stepmem",
        run: text(summary, "/run"),
        has_data: has_data(diagnosis),
        issues: issues(summary)?,
        status: text(diagnosis, "/status").unwrap_or_default(),
        is_judged: whole(summary, "/coverage/ranks_judged").is_some_and(|ranks| ranks > 0),
        steps: all("/steps").into_iter().reduce(f64::max),
        peak_allocated: peak("peak_allocated"),
        peak_reserved: peak("peak_reserved"),
        pressure_ratio: all("/pressure_ratio").into_iter().reduce(f64::max),
        headroom_bytes: all("/headroom_bytes").into_iter().reduce(f64::min),
        trend: fastest(&ranks),
        skew_ratio: number(summary, "/metrics/peak_allocated/skew_pct"),
        is_skew_of_means: false,
        worst_rank: whole(summary, "/worst_rank"),
        n_lost: Some(n_lost.saturating_add(missing)),
        n_ooms: (!ooms.is_empty()).then(|| ooms.iter().sum()),
    })
}

/// The trend of the rank that grows fastest, of those whose growth holds if there is one.
fn fastest(ranks: &[&Value]) -> Option<Trend> {
    let trend = |rank: &&Value| {
        let trend = rank.get("trend")?;
        let lower = number(trend, "/slope_lower_bytes_per_step");
        let upper = number(trend, "/slope_upper_bytes_per_step");
        Some(Trend {
            is_held: text(trend, "/stage").is_some(),
            slope: number(trend, "/slope_bytes_per_step")?,
            interval: lower.zip(upper),
        })
    };
    let faster =
        |a: &Trend, b: &Trend| a.is_held.cmp(&b.is_held).then(a.slope.total_cmp(&b.slope));
    ranks.iter().filter_map(trend).max_by(faster)
}

fn traceml(summary: &Value, section: &Value) -> Result<Side, NoSummary> {
    let diagnosis = section.get("diagnosis").unwrap_or(&Value::Null);
    let peak = |metric: &str| Peak {
        max: number(section, &format!("/metrics/{metric}/worst_peak_bytes")),
        mean: number(section, &format!("/global/worst/{metric}_bytes/value")),
        noise: None,
    };
    let mean = |of: &str| number(section, &format!("/global/{of}/peak_allocated_bytes/value"));
    let of_means = mean("worst").zip(mean("median")).filter(|(_, median)| *median > 0.0);
    let of_peaks = number(section, "/metrics/peak_allocated/skew_pct");
    let pressure = |metric: &str| number(section, &format!("/metrics/{metric}/pressure_frac"));
    let worst_rank = section.pointer("/global/worst/peak_reserved_bytes/idx");
    let worst_rank = worst_rank.and_then(Value::as_str).and_then(|idx| idx.parse().ok());
    let issues = issues(section)?;
    let named = issues.first().and_then(|issue| issue.ranks.first().copied());
    let steps = number(section, "/diagnosis/steps_used")
        .or_else(|| number(section, "/global/window/steps_analyzed"));
    Ok(Side {
        policy: "traceml",
        run: text(summary, "/meta/run_name"),
        has_data: has_data(diagnosis),
        status: text(diagnosis, "/status").unwrap_or_default(),
        is_judged: has_data(diagnosis),
        steps,
        peak_allocated: peak("peak_allocated"),
        peak_reserved: peak("peak_reserved"),
        pressure_ratio: ["peak_allocated", "peak_reserved"]
            .into_iter()
            .filter_map(pressure)
            .reduce(f64::max),
        headroom_bytes: None,
        trend: None,
        skew_ratio: of_peaks.or(of_means.map(|(worst, median)| (worst - median) / median)),
        is_skew_of_means: of_peaks.is_none(),
        worst_rank: named.or(worst_rank),
        n_lost: None,
        n_ooms: None,
        issues,
    })
}

fn has_data(diagnosis: &Value) -> bool {
    let kind = diagnosis.get("kind").and_then(Value::as_str);
    kind.is_some_and(|kind| !["NO_DATA", "NO_GPU"].contains(&kind))
}

/// What is wrong; a verdict that nothing is, or that nothing is known, is left out.
fn issues(section: &Value) -> Result<Vec<Told>, NoSummary> {
    let told = |issue: &&Value| {
        let kind = text(issue, "/kind")?;
        let severity = match issue.get("severity")?.as_str()? {
            "info" => Severity::Info,
            "warn" => Severity::Warn,
            "crit" => Severity::Crit,
            _ => return None,
        };
        let ranks = list(issue, "/ranks").into_iter().filter_map(Value::as_u64).collect();
        let status = text(issue, "/status").unwrap_or_else(|| kind.clone());
        Some(Told { kind, status, severity, ranks })
    };
    let listed = list(section, "/issues");
    let all: Vec<Told> = listed.iter().filter_map(told).collect();
    if all.is_empty() || all.len() < listed.len() {
        return Err(NoSummary(
            "an issue has no kind, or a severity not of info, warn, crit".into(),
        ));
    }
    let neutral = ["BALANCED", "NO_DATA", "NO_GPU"];
    Ok(all.into_iter().filter(|told| !neutral.contains(&told.kind.as_str())).collect())
}

fn list<'v>(value: &'v Value, path: &str) -> Vec<&'v Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten().collect()
}

fn number(value: &Value, path: &str) -> Option<f64> {
    value.pointer(path)?.as_f64().filter(|number| number.is_finite())
}

fn whole(value: &Value, path: &str) -> Option<u64> {
    value.pointer(path)?.as_u64()
}

fn text(value: &Value, path: &str) -> Option<String> {
    value.pointer(path)?.as_str().map(str::to_owned)
}
