//! `stepmem summary --html`: one document of a run, from a running exporter or from recordings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use crate::commands::args;
use crate::commands::live::{LiveExporter, VERSION};
use crate::output::report::Report;
use stepmem_engine::status::{DeviceProcessStatus, ExporterStatus, Status};
use stepmem_engine::{Engine, Severity};
use stepmem_report::explain::WindowsNow;
use stepmem_report::summary::{self, Summary};
use stepmem_snapshot::html::data;
use stepmem_types::format::units::{grouped, whole_bytes};
use stepmem_types::ids::{GpuUuid, Rank, SubjectId};
use stepmem_types::units::Uptime;

/// The largest document, in bytes. It has the memory over time of as many ranks as fit, the
/// worst first.
pub(super) const REPORT_BYTES_MAX: usize = 8 << 20;
/// Number of ranks that a document lists, the worst first.
pub(super) const REPORT_RANKS_MAX: usize = 1024;

/// A run as its document shows it.
pub(super) struct RunReport {
    summary: Summary,
    status: Status,
    /// The live memory of all ranks over time, as JSON for a `script` element.
    history: String,
}

/// The memory over time and the windows of a rank, as JSON for a `script` element.
type RankPast = [String; 2];

/// Writes the document of a run of the exporter.
///
/// # Errors
/// The exporter does not answer, or the document cannot be written.
pub(super) fn of_exporter(
    exporter: &LiveExporter,
    summary: Summary,
    to: &Path,
) -> anyhow::Result<()> {
    let run = summary.run.clone();
    let get = |further: &[&str]| -> anyhow::Result<String> {
        let path = [&["api", "v1", "runs", run.as_str()], further].concat();
        Ok(data(exporter.get_json::<Value>(&path)?)?)
    };
    let past = |rank: Rank| {
        let rank = rank.to_string();
        // A rank that has left meanwhile has no past.
        let part = |part| get(&["ranks", &rank, part]).ok();
        part("history").zip(part("windows")).map(|(history, windows)| [history, windows])
    };
    let history = get(&["history"])?;
    let status = exporter.status()?;
    RunReport { summary, status, history }.write(past, to)
}

/// Writes the document of a run that was replayed until `now`.
///
/// # Errors
/// The document cannot be written.
pub(super) fn of_replay(
    (engine, now): (&Engine, Uptime),
    summary: Summary,
    to: &Path,
) -> anyhow::Result<()> {
    let exporter = ExporterStatus { version: VERSION.into(), ..ExporterStatus::default() };
    let run = summary.run.clone();
    let past = |rank: Rank| {
        let history = engine.history(&run, rank)?;
        let windows = engine.rank(&run, rank, now).map(|view| WindowsNow::of(&view));
        data(history).ok().zip(data(windows).ok()).map(|(history, windows)| [history, windows])
    };
    let (status, history) = (engine.status(now, exporter), data(engine.run_history(&run))?);
    RunReport { summary, status, history }.write(past, to)
}

impl RunReport {
    /// Writes the document, with the past of as many ranks as fit.
    fn write(
        mut self,
        past: impl Fn(Rank) -> Option<RankPast>,
        to: &Path,
    ) -> anyhow::Result<()> {
        let order = self.keep_run();
        let card = summary::render(&self.summary);
        let status = data(&self.status)?;
        let written = |answers: &str, n_past: usize| {
            let recorded = format!("{{\"status\":{status},\"answers\":{{{answers}}}}}");
            let (run, about) = (self.summary.run.as_str(), self.about(n_past));
            Report { run, card: &card, about: &about, recorded: &recorded }.document()
        };
        let mut answers = format!("\"history\":{}", self.history);
        // The sentence about the file is longer for more ranks.
        let mut n_left = REPORT_BYTES_MAX
            .checked_sub(written(&answers, order.len()).len())
            .with_context(|| {
                format!("the document of {} exceeds {REPORT_BYTES_MAX} bytes", self.summary.run)
            })?;
        let mut n_past = 0;
        for rank in order {
            let Some([history, windows]) = past(rank) else { continue };
            let of_rank = format!(
                ",\"ranks/{rank}/history\":{history},\"ranks/{rank}/windows\":{windows}"
            );
            let Some(left) = n_left.checked_sub(of_rank.len()) else { break };
            answers.push_str(&of_rank);
            (n_left, n_past) = (left, n_past + 1);
        }
        args::write_document(to, &written(&answers, n_past))
    }

    /// Leaves only the run in the status, and of its ranks at most [`REPORT_RANKS_MAX`]. Returns
    /// them, the worst first.
    fn keep_run(&mut self) -> Vec<Rank> {
        let Self { summary, status, .. } = self;
        let run = &summary.run;
        let is_own = |subject: &SubjectId| subject.rank().is_some_and(|id| id.run == *run);
        let mut worst = BTreeMap::<Rank, Severity>::new();
        for finding in status.findings.iter().filter(|finding| is_own(&finding.subject)) {
            let Some(id) = finding.subject.rank() else { continue };
            let severity = worst.entry(id.rank).or_insert(finding.severity);
            *severity = finding.severity.max(*severity);
        }
        status.ranks.retain(|rank| rank.run == *run);
        let mut order: Vec<Rank> = status.ranks.iter().map(|rank| rank.rank).collect();
        order.sort_by_key(|rank| (Reverse(worst.get(rank).copied()), *rank));
        order.truncate(REPORT_RANKS_MAX);
        let kept: BTreeSet<Rank> = order.iter().copied().collect();
        status.ranks.retain(|rank| kept.contains(&rank.rank));
        let devices: BTreeSet<GpuUuid> =
            status.ranks.iter().filter_map(|rank| rank.identity.device.clone()).collect();
        let is_shown = |subject: &SubjectId| match subject {
            SubjectId::Rank(id) => id.run == *run && kept.contains(&id.rank),
            SubjectId::Device(uuid) => devices.contains(uuid),
            SubjectId::Process(_) => false,
        };
        status.runs.retain(|of| of.run == *run);
        status.findings.retain(|finding| is_shown(&finding.subject));
        status.acks.retain(|ack| is_shown(&ack.subject));
        status.devices.retain(|device| devices.contains(&device.uuid));
        for device in &mut status.devices {
            let is_own = |process: &DeviceProcessStatus| {
                process.owner.as_ref().is_some_and(|id| id.run == *run)
            };
            let others = device.processes.iter().filter(|process| !is_own(process));
            let used: u64 = others.filter_map(|process| Some(process.used?.get())).sum();
            let sum = device.other_processes_bytes.unwrap_or(0).saturating_add(used);
            device.other_processes_bytes = Some(sum).filter(|sum| *sum > 0);
            device.processes.retain(is_own);
        }
        status.snapshots.retain(|snapshot| snapshot.rank.run == *run);
        status.processes.clear();
        status.containers.clear();
        status.device_pods.clear();
        order
    }

    /// The sentence about the file.
    fn about(&self, n_past: usize) -> String {
        let number = |n: usize| grouped(u64::try_from(n).unwrap_or(u64::MAX));
        let ranks = match self.summary.ranks.len() {
            1 if n_past == 1 => "its rank".to_owned(),
            n_ranks if n_ranks == n_past => format!("all {} ranks", number(n_ranks)),
            n_ranks => format!("the worst {} of {} ranks", number(n_past), number(n_ranks)),
        };
        format!(
            "Written by stepmem summary {VERSION}. This file loads nothing and is at most {} long; it has the memory over time of {ranks}.",
            whole_bytes(u64::try_from(REPORT_BYTES_MAX).unwrap_or(u64::MAX)),
        )
    }
}
