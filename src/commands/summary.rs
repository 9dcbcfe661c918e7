//! `stepmem summary` and `stepmem compare`: recorded pushes summed up by our own policy or by TraceML's, and two
//! summaries against each other.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::analysis::config::EngineConfig;
use crate::commands::replay::Replay;
use crate::input::push::wire::Recorded;
use crate::input::recording;
use crate::model::ids::Run;
use crate::report::compare::comparison::{ComparisonVerdict, OldNew};
use crate::report::compare::figures::RunFigures;
use crate::report::compare::{judge, read, text};
use crate::report::summary::model::Summary;
use crate::report::traceml::rows::PeakRows;
use crate::report::traceml::trend::WINDOW_STEPS;
use crate::report::{card, traceml};

/// The largest summary that is compared, in bytes: 65,536 ranks of 2 KiB.
pub const SUMMARY_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Two files cannot be compared; the command exits with 2.
#[derive(Debug, thiserror::Error)]
#[error("cannot compare")]
pub struct CannotCompare;

/// The policy that judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Our own.
    Stepmem,
    /// TraceML 0.3.6, over this many of the last common steps.
    TraceMl(usize),
}

impl Policy {
    /// Reads `--policy` and `--window`.
    ///
    /// # Errors
    /// The policy is unknown, or takes no window.
    pub fn read(name: &str, window: Option<usize>) -> anyhow::Result<Self> {
        match (name, window) {
            ("traceml", window) => Ok(Self::TraceMl(window.unwrap_or(WINDOW_STEPS))),
            ("stepmem", None) => Ok(Self::Stepmem),
            ("stepmem", Some(_)) => {
                anyhow::bail!("--window needs --policy traceml: stepmem's covers the whole run")
            }
            (other, _) => anyhow::bail!("--policy {other:?} is neither stepmem nor traceml"),
        }
    }
}

/// The question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The policy that judges.
    pub policy: Policy,
    /// The run; `None` when the recordings hold only one.
    pub run: Option<Run>,
    /// JSON instead of a card.
    pub is_json: bool,
}

/// Sums up the files as one recording in order of time (`-` is standard input).
///
/// # Errors
/// As of [`recording::merged`], a bound on ranks or runs is exceeded, or the recordings hold no such run, or more than
/// one and none is named.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    question: &Question,
    mut out: impl Write,
) -> anyhow::Result<()> {
    let is_json = question.is_json;
    let text = match question.policy {
        Policy::TraceMl(window) => {
            let verdict = traceml_rows(files, window, question.run.as_ref())?.verdict();
            if is_json { json(&verdict)? } else { traceml::card::render(&verdict) }
        }
        Policy::Stepmem => {
            let summary = summarize(files, config, question.run.as_ref())?;
            if is_json { json(&summary)? } else { card::render(&summary) }
        }
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Writes TraceML's verdict on the files as one line of JSON, where `replay` has our own status.
///
/// # Errors
/// As of [`run`].
pub fn replay_traceml<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    window: usize,
    mut out: impl Write,
) -> anyhow::Result<()> {
    let verdict = traceml_rows(files, window, None)?.verdict();
    serde_json::to_writer(&mut out, &serde_json::json!({ "status": verdict }))?;
    Ok(out.write_all(b"\n")?)
}

/// Compares two summaries, ours or TraceML's, and returns the verdict.
///
/// # Errors
/// A file cannot be read or is not a summary: [`CannotCompare`] with the reason; or `out` is closed.
pub fn compare(
    old: &Path,
    new: &Path,
    is_json: bool,
    mut out: impl Write,
) -> anyhow::Result<ComparisonVerdict> {
    let figures = |path: &Path| figures(path).map_err(|error| error.context(CannotCompare));
    let (old, new) = (figures(old)?, figures(new)?);
    let comparison = judge::compare(OldNew { old: &old, new: &new });
    let text = if is_json { json(&comparison)? } else { text::render(&comparison) };
    out.write_all(text.as_bytes())?;
    Ok(comparison.verdict)
}

fn figures(path: &Path) -> anyhow::Result<RunFigures> {
    let shown = || path.display().to_string();
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(shown)?;
    file.take(SUMMARY_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(shown)?;
    anyhow::ensure!(
        u64::try_from(bytes.len())? <= SUMMARY_BYTES_MAX,
        "{} exceeds {SUMMARY_BYTES_MAX} bytes",
        shown()
    );
    let value = serde_json::from_slice(&bytes).with_context(shown)?;
    read::read(value).with_context(shown)
}

fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The steps of one run as TraceML would have kept them.
fn traceml_rows<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    window: usize,
    run: Option<&Run>,
) -> anyhow::Result<PeakRows> {
    let mut rows = PeakRows::new(window);
    let mut found: Option<Run> = run.cloned();
    recording::merged(files, |recorded| {
        match recorded {
            Recorded::Step(sample) => {
                let of = found.get_or_insert_with(|| sample.run.clone());
                if *of == sample.run {
                    rows.push(&sample);
                } else {
                    anyhow::ensure!(
                        run.is_some(),
                        "the recording holds more than one run, name one with --run: {of}, {}",
                        sample.run
                    );
                }
            }
            Recorded::Gpu(sample, _) => rows.gpu(&sample),
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Our own summary of one run.
fn summarize<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    run: Option<&Run>,
) -> anyhow::Result<Summary> {
    // No rank of a recording is forgotten before its end.
    let config = EngineConfig { rank_retention: Duration::MAX, ..config };
    let mut replay = Replay::new(config, |_, _, _| Ok(()));
    recording::merged(files, |recorded| replay.take(recorded))?;
    let (engine, now) = replay.finish()?;
    let runs: Vec<&Run> = engine.runs().collect();
    let names = || runs.iter().map(|run| run.as_str()).collect::<Vec<_>>().join(", ");
    let run = match (run, runs.as_slice()) {
        (Some(run), _) => run,
        (None, [run]) => run,
        (None, []) => anyhow::bail!("the recording holds no step"),
        (None, _) => anyhow::bail!(
            "the recording holds {} runs, name one with --run: {}",
            runs.len(),
            names()
        ),
    };
    let report = engine
        .run(run, now)
        .with_context(|| format!("the recording holds no run {run}, but: {}", names()))?;
    Ok(Summary::of(&report, None))
}
