//! What `stepmem status` states next to its tables and findings.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::devices::FailingDevice;
use crate::output::status::{AckStatus, RankStatus, RunStatus, Status};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{bytes, duration};
use stepmem_types::ids::{GpuUuid, SubjectId};
use stepmem_types::nvml_code::LIBRARY_MISSING;
use stepmem_types::units::Bytes;

/// A status as its JSON has it.
#[derive(Clone, Debug, Serialize)]
pub struct StatedStatus<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// All that is stated, in the order of the text; findings have their own.
    statements: Vec<Statement>,
}

impl Status {
    /// Returns the status with what is stated next to the findings, which metrics do not need.
    pub fn stated(&self) -> StatedStatus<'_> {
        let statements = notes(self).into_iter().chain(shared_names(self));
        StatedStatus {
            status: self,
            statements: statements.chain(acknowledged(self)).collect(),
        }
    }
}

/// States when runs end, what the host has left, and what NVML does not answer.
pub fn notes(status: &Status) -> Vec<Statement> {
    let ends = status.runs.iter().filter_map(|run| ending(run, status.time));
    let memory = host_memory(status).chain(unknown_memory(status));
    ends.chain(memory).chain(nvml_failures(status)).chain(gone_processes(status)).collect()
}

/// States when a run ends, where that is known.
fn ending(run: &RunStatus, now: f64) -> Option<Statement> {
    let words = format!("Run {} ends {}.", run.run, run.end_words(now)?);
    Some(Statement::new(Claim::EndOfRun, words))
}

/// States what the ranks hold of memory beyond that of their processes.
fn host_memory(status: &Status) -> impl Iterator<Item = Statement> {
    let has_runs = status.runs.len() > 1;
    status.ranks.iter().filter_map(move |rank| {
        let words = rank.host.as_deref()?.sentence.as_str();
        let run = if has_runs { format!("Run {}, rank", rank.run) } else { "Rank".to_owned() };
        let told = || format!("{run} {}: {words}.", rank.rank);
        (!words.is_empty()).then(|| Statement::new(Claim::HostHeld, told()))
    })
}

/// States each reason for which the device memory of a rank's process is unknown.
fn unknown_memory(status: &Status) -> impl Iterator<Item = Statement> {
    let is_known = |rank: &&RankStatus| rank.process_estimated_bytes.is_some();
    let unknown = status.ranks.iter().filter(|rank| !is_known(rank));
    let reasons: BTreeSet<_> = unknown.filter_map(|rank| rank.process_used_state).collect();
    reasons.into_iter().map(|state| {
        let (words, name) = (state.words(), state.as_label());
        let words =
            format!("Device memory of a rank's process is unknown: NVML {words} ({name}).");
        Statement::new(Claim::ProcessMemoryUnknown, words)
    })
}

/// States that NVML or a device does not answer. A finding tells of a device that is lost.
fn nvml_failures(status: &Status) -> impl Iterator<Item = Statement> {
    let gpu = &status.gpu;
    let whole = gpu.failure.as_deref().map(|code| {
        if code == LIBRARY_MISSING {
            let words = "No NVIDIA driver here: the memory of devices is not read.";
            return Statement::new(Claim::NoDriver, words);
        }
        let ago = gpu.last_success_time.map(|time| (status.time - time).max(0.0));
        let last = ago.map_or_else(
            || "; it has not since the exporter began".to_owned(),
            |ago| format!("; it last did {} ago", duration(ago)),
        );
        let words =
            format!("NVML does not answer ({code}){last}: what devices hold now is unknown.");
        Statement::new(Claim::NvmlSilent, words).of(ago)
    });
    let has_finding = |uuid: &GpuUuid| {
        status.findings.iter().any(|finding| finding.subject == SubjectId::Device(uuid.clone()))
    };
    let failing = gpu.failing.iter().filter(move |failing| !has_finding(&failing.uuid));
    let of_device = failing.map(|FailingDevice { uuid, code }| {
        let words = format!(
            "Device {uuid} answers only with an error ({code}): what it holds is unknown."
        );
        Statement::new(Claim::DeviceError, words)
    });
    whole.into_iter().chain(of_device)
}

/// States which devices hold memory for processes that no longer exist.
fn gone_processes(status: &Status) -> impl Iterator<Item = Statement> {
    status.devices.iter().filter_map(|device| {
        let gone: Vec<_> = device.processes.iter().filter(|process| process.is_gone).collect();
        let first = gone.first()?;
        let used: f64 = gone.iter().filter_map(|of| of.used).map(Bytes::as_f64).sum();
        let pid = first.pid;
        let (of, them) = match gone.len() {
            1 => (format!("process {pid}"), "no longer exists"),
            n => (format!("{n} processes, {pid} and others"), "no longer exist"),
        };
        // What is not known of each of them is not said of all.
        let held = match gone.iter().all(|of| of.used.is_some()) {
            true => bytes(used),
            false if used > 0.0 => format!("at least {}", bytes(used)),
            false => "memory".to_owned(),
        };
        let words = format!("{} still holds {held} for {of}, which {them}.", device.uuid);
        Some(Statement::new(Claim::GoneHolds, words).of(Some(used).filter(|used| *used > 0.0)))
    })
}

/// States the consequences of two programs under one run name.
pub fn shared_names(status: &Status) -> impl Iterator<Item = Statement> {
    status.runs.iter().flat_map(shared_name)
}

fn shared_name(run: &RunStatus) -> impl Iterator<Item = Statement> {
    let n_refused = u32::try_from(run.challengers).unwrap_or(u32::MAX);
    let refused = (run.challengers > 0).then(|| {
        let words = format!(
            "Two programs push under the name {}; refused lately: {}. Give one of them another name (STEPMEM_RUN).",
            run.run, run.challengers
        );
        Statement::new(Claim::NameShared, words).of(f64::from(n_refused))
    });
    let renamed = run.asked_for.as_ref().map(|name| {
        let words = format!(
            "{} requested the name {name}, under which another program pushes. Give one of them another name (STEPMEM_RUN).",
            run.run
        );
        Statement::new(Claim::NameTaken, words)
    });
    refused.into_iter().chain(renamed)
}

/// States which findings an operator acknowledged, and for how long yet.
pub fn acknowledged(status: &Status) -> impl Iterator<Item = Statement> {
    status.acks.iter().map(|ack| {
        let AckStatus { kind, subject, reason, until, .. } = ack;
        let left = (until - status.time).max(0.0);
        let (title, shown) = (kind.about().title, duration(left));
        let words = format!("Acknowledged for {shown} more: {title}, {subject}: {reason}");
        Statement::new(Claim::AcknowledgedFor, words).of(left)
    })
}
