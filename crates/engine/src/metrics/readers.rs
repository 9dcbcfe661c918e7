//! The readers that take the values of metrics from a [`Status`]. Nothing is kept.

use crate::diagnosis::shared::plan::Plan;
use crate::metrics::types::Visit;
use crate::output::status::{
    ContainerStatus, DeviceStatus, FindingStatus, LabelCounts, ProcessStatus, RankStatus,
    RunStatus, SignalStatus, Status,
};
use crate::ranks::view::RankActivity;
use stepmem_detect::Signal;
use stepmem_types::device::DeviceMemoryKind;
use stepmem_types::end::EndOutcome;
use stepmem_types::host::{ContainerId, ContainerReading, PodMemory};
use stepmem_types::ids::{RankId, SubjectId};
use stepmem_types::launch::Launch;
use stepmem_types::site::{CodeLine, LeakSite, SiteText, SiteVerdict, TensorHolder};
use stepmem_types::units::{Bytes, Count, Seconds};

/// A count as every output gives it.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub fn float(value: u64) -> f64 {
    value as f64
}

pub(super) fn bytes(value: Option<Bytes>) -> Option<f64> {
    value.map(Bytes::as_f64)
}

pub(super) fn count(value: Option<Count>) -> Option<f64> {
    value.map(Count::as_f64)
}

pub(super) fn whole(value: Option<u64>) -> Option<f64> {
    value.map(float)
}

pub(super) fn size(value: usize, visit: &mut Visit<'_>) {
    visit.series(&[], float(u64::try_from(value).unwrap_or(u64::MAX)));
}

pub(super) fn ranks(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&RankStatus) -> Option<f64>,
) {
    for (at, rank) in status.ranks.iter().enumerate() {
        if let Some(value) = read(rank) {
            visit.of_rank(at, &[], value);
        }
    }
}

/// Visits the child processes of ranks that have any now: `worker` and `other`. `read` takes
/// their number, memory and slope.
pub(super) fn children(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(u32, Option<Bytes>, Option<f64>) -> Option<f64>,
) {
    for (at, rank) in status.ranks.iter().enumerate() {
        let Some(host) = &rank.host else { continue };
        for (kind, children) in [("worker", host.workers), ("other", host.child_processes)] {
            let value = children
                .filter(|children| !children.ended)
                .and_then(|of| read(of.count, of.bytes, of.bytes_per_step));
            if let Some(value) = value {
                visit.of_rank(at, &[kind], value);
            }
        }
    }
}

pub(super) fn signals(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&SignalStatus) -> Option<f64>,
) {
    for (at, rank) in status.ranks.iter().enumerate() {
        for signal in &rank.creep {
            if let Some(value) = read(signal) {
                visit.of_rank(at, &[signal.signal.as_label()], value);
            }
        }
    }
}

/// Visits slopes in time: of ranks that have no others, and of those that count calls.
pub(super) fn slopes_by_time(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        for signal in &rank.creep {
            let is_growing = signal.trend.is_some();
            let is_beside = matches!(signal.signal, Signal::Children | Signal::Shm);
            let is_told = match signal.slope_bytes_per_step {
                None => is_growing || !is_beside,
                Some(_) => is_growing && rank.identity.unit.is_calls(),
            };
            if let Some(slope) = signal.slope_bytes_per_second.filter(|_| is_told) {
                visit.of_rank(at, &[signal.signal.as_label()], slope);
            }
        }
    }
}

pub(super) fn ended(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        if let Some(end) = &rank.end {
            let time = end.time.map_or(rank.last_push_time, Seconds::get);
            visit.of_rank(at, &[end.outcome.as_label()], time);
        }
    }
}

pub(super) fn marks(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        for (mark, n) in &rank.marks_total {
            visit.of_rank(at, &[mark], float(*n));
        }
    }
}

pub(super) fn pressures(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        for (basis, ratio) in &rank.pressures {
            visit.of_rank(at, &[basis.as_label()], *ratio);
        }
    }
}

pub(super) fn own_limits(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        if let Some((origin, limit)) = rank.capacity_set_by.zip(rank.capacity) {
            visit.of_rank(at, &[origin.as_label()], limit.as_f64());
        }
    }
}

pub(super) fn rank_info(status: &Status, visit: &mut Visit<'_>) {
    let text = |value: Option<String>| value.unwrap_or_default();
    for (at, rank) in status.ranks.iter().enumerate() {
        let identity = &rank.identity;
        let container = rank.host.as_ref().and_then(|host| host.container.as_ref());
        let labels = [
            &*text(identity.local_rank.map(|local_rank| local_rank.to_string())),
            &text(identity.node_rank.map(|node_rank| node_rank.to_string())),
            &text(identity.world_size.map(|world_size| world_size.to_string())),
            &identity.attempt.get().to_string(),
            &text(identity.pid.map(|pid| pid.to_string())),
            container.map_or("", |container| container.id.as_str()),
            rank.launch.as_ref().map_or("", Launch::as_str),
            identity.unit.as_label(),
        ];
        visit.of_rank(at, &labels, 1.0);
    }
}

/// The label of what is counted by its outcome.
pub(super) const OUTCOME: &[&str] = &[EndOutcome::KEY];

/// The characters of a label's value, at most: the last ones, since a path's end is its most
/// telling part.
const LABEL_CHARS_MAX: usize = 128;

fn label(text: Option<&SiteText>) -> &str {
    let text = text.map_or("", SiteText::as_str);
    let n_chars = text.chars().count();
    let skipped = text.char_indices().nth(n_chars.saturating_sub(LABEL_CHARS_MAX));
    skipped.and_then(|(at, _)| text.get(at..)).unwrap_or_default()
}

fn line(line: Option<u64>) -> String {
    line.map(|line| line.to_string()).unwrap_or_default()
}

/// The line of a rank that leaks.
fn leaking(rank: &RankStatus) -> Option<(&LeakSite, &CodeLine)> {
    let site = rank.site.as_ref().filter(|site| site.verdict == SiteVerdict::Leak)?;
    Some((site, site.at.as_ref()?))
}

pub(super) fn leaking_share(rank: &RankStatus) -> Option<f64> {
    leaking(rank)?.0.share_ratio
}

pub(super) fn site_info(status: &Status, visit: &mut Visit<'_>) {
    for (idx, rank) in status.ranks.iter().enumerate() {
        let Some((_, at)) = leaking(rank) else { continue };
        let labels = [label(at.file.as_ref()), &line(at.line), label(at.function.as_ref())];
        visit.of_rank(idx, &labels, 1.0);
    }
}

pub(super) fn holder_info(status: &Status, visit: &mut Visit<'_>) {
    for (idx, rank) in status.ranks.iter().enumerate() {
        if let Some(holder) = &rank.holder {
            visit_holder(idx, holder, visit);
        }
    }
}

/// Reads the holders in the findings about host memory next to a device's.
pub(super) fn host_holder_info(status: &Status, visit: &mut Visit<'_>) {
    for finding in status.findings.iter().filter(|finding| finding.kind.is_of_host()) {
        let holder = finding.evidence.growth().and_then(|growth| growth.holder.as_deref());
        let (Some(holder), Some(id)) = (holder, finding.subject.rank()) else { continue };
        let is_own = |rank: &RankStatus| rank.rank == id.rank && rank.run == id.run;
        if let Some(idx) = status.ranks.iter().position(is_own) {
            visit_holder(idx, holder, visit);
        }
    }
}

fn visit_holder(idx: usize, holder: &TensorHolder, visit: &mut Visit<'_>) {
    let at = holder.at.as_ref();
    let labels = [
        label(Some(&holder.name)),
        label(Some(&holder.kind)),
        label(at.and_then(|at| at.file.as_ref())),
        &line(at.and_then(|at| at.line)),
        label(at.and_then(|at| at.function.as_ref())),
    ];
    visit.of_rank(idx, &labels, 1.0);
}

pub(super) fn runs(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&RunStatus) -> Option<f64>,
) {
    for run in &status.runs {
        if let Some(value) = read(run) {
            visit.series(&[run.run.as_str()], value);
        }
    }
}

/// Visits the ranks whose findings state a verdict on the plan of their run.
pub(super) fn plans(status: &Status, visit: &mut Visit<'_>, read: fn(Plan) -> Option<f64>) {
    visit_plans(status, &mut |id, kind, plan| {
        if let Some(value) = read(plan) {
            visit.series(&[id.run.as_str(), &id.rank.to_string(), kind], value);
        }
    });
}

/// Reads the verdicts themselves.
pub(super) fn plan_info(status: &Status, visit: &mut Visit<'_>) {
    visit_plans(status, &mut |id, kind, plan| {
        visit.series(&[id.run.as_str(), &id.rank.to_string(), kind, plan.as_label()], 1.0);
    });
}

fn visit_plans(status: &Status, visit: &mut dyn FnMut(&RankId, &str, Plan)) {
    for finding in &status.findings {
        let plan = Plan::of_evidence(&finding.evidence);
        if let Some((plan, id)) = plan.zip(finding.subject.rank()) {
            visit(id, finding.kind.label(), plan);
        }
    }
}

pub(super) fn findings(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&FindingStatus) -> f64,
) {
    for finding in &status.findings {
        let kind = finding.kind.label();
        match &finding.subject {
            SubjectId::Rank(id) => {
                visit.series(
                    &[id.run.as_str(), &id.rank.to_string(), "", "", kind],
                    read(finding),
                );
            }
            SubjectId::Process(id) => {
                visit.series(
                    &["", "", id.uuid.as_str(), &id.pid.to_string(), kind],
                    read(finding),
                );
            }
            SubjectId::Device(uuid) => {
                visit.series(&["", "", uuid.as_str(), "", kind], read(finding));
            }
        }
    }
}

pub(super) fn processes(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&ProcessStatus) -> Option<f64>,
) {
    for process in &status.processes {
        if let Some(value) = read(process) {
            visit.series(&[process.id.uuid.as_str(), &process.id.pid.to_string()], value);
        }
    }
}

/// The figures of a control group.
pub(super) struct GroupFigures {
    pub(super) limit: Option<Bytes>,
    pub(super) used: Option<Bytes>,
    pub(super) oom_kills: Option<Count>,
}

/// Visits the control groups that ranks read, and those that only the exporter reads.
pub(super) fn containers(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&GroupFigures) -> Option<f64>,
) {
    let of_ranks = status.containers.iter().map(|container| {
        let ContainerReading { id, limit, used, oom_kills } = &container.reading;
        (id, GroupFigures { limit: Some(*limit), used: *used, oom_kills: *oom_kills })
    });
    let is_pushed = |id: &ContainerId| {
        status.containers.iter().any(|container| container.reading.id == *id)
    };
    let of_pods = status.pod_memory.iter().filter_map(|of| {
        let &PodMemory { limit, used, oom_kills, .. } = of;
        let id = of.group.as_ref().filter(|id| !is_pushed(id))?;
        Some((id, GroupFigures { limit, used, oom_kills }))
    });
    for (id, figures) in of_ranks.chain(of_pods) {
        if let Some(value) = read(&figures) {
            visit.series(&[id.as_str()], value);
        }
    }
}

pub(super) fn container_info(status: &Status, visit: &mut Visit<'_>) {
    for of in &status.pod_memory {
        let container = of.container_id.as_deref().unwrap_or_default();
        let group = of.group.as_ref().map_or("", ContainerId::as_str);
        visit.series(&[group, &of.pod_uid, container], 1.0);
    }
}

pub(super) fn container_growth(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&ContainerStatus) -> Option<f64>,
) {
    for container in &status.containers {
        if let Some(value) = read(container) {
            visit.series(&[container.reading.id.as_str()], value);
        }
    }
}

pub(super) fn devices(
    status: &Status,
    visit: &mut Visit<'_>,
    read: fn(&DeviceStatus) -> Option<f64>,
) {
    for device in &status.devices {
        if let Some(value) = read(device) {
            visit.series(&[device.uuid.as_str()], value);
        }
    }
}

pub(super) fn device_info(status: &Status, visit: &mut Visit<'_>) {
    for device in &status.devices {
        let info = &device.info;
        let labels = [
            device.uuid.as_str(),
            info.index.as_deref().unwrap_or_default(),
            info.model.as_deref().unwrap_or_default(),
            info.driver_version.as_deref().unwrap_or_default(),
            info.mig_profile.as_deref().unwrap_or_default(),
            info.parent.as_ref().map_or("", |parent| parent.as_str()),
            info.addressing.as_deref().unwrap_or_default(),
            info.memory_kind.map_or("", DeviceMemoryKind::as_label),
            device.attribution.as_label(),
        ];
        visit.series(&labels, 1.0);
    }
}

fn listed_memory(status: &Status, visit: &mut Visit<'_>) {
    for device in &status.devices {
        for process in &device.processes {
            let Some(used) = process.used else { continue };
            let (run, rank) = process
                .owner
                .as_ref()
                .map_or(("", String::new()), |id| (id.run.as_str(), id.rank.to_string()));
            let labels = [device.uuid.as_str(), &process.pid.to_string(), &rank, run];
            visit.series(&labels, used.as_f64());
        }
    }
}

/// Visits the processes that the exporter's NVML lists, and those that only their rank's client
/// sees.
pub(super) fn process_memory(status: &Status, visit: &mut Visit<'_>) {
    listed_memory(status, visit);
    for rank in status.ranks.iter().filter(|rank| rank.state != RankActivity::Ended) {
        let identity = &rank.identity;
        if let (Some(used), Some(device), Some(pid)) =
            (rank.process_used_bytes, &identity.device, identity.pid)
        {
            let (pid, run) = (pid.to_string(), rank.run.as_str());
            visit.series(&[device.as_str(), &pid, &rank.rank_label, run], used.as_f64());
        }
    }
}

pub(super) fn process_unknown(status: &Status, visit: &mut Visit<'_>) {
    for (at, rank) in status.ranks.iter().enumerate() {
        if let Some(state) = rank.process_used_state {
            visit.of_rank(at, &[state.as_label()], 1.0);
        }
    }
}

pub(super) fn process_info(status: &Status, visit: &mut Visit<'_>) {
    for device in &status.devices {
        for process in &device.processes {
            let container = process.container.as_ref();
            if container.is_none() && process.name.is_none() {
                continue;
            }
            let labels = [
                device.uuid.as_str(),
                &process.pid.to_string(),
                container.map_or("", |container| &container.id),
                container
                    .and_then(|container| container.pod_uid.as_deref())
                    .unwrap_or_default(),
                process.name.as_deref().unwrap_or_default(),
            ];
            visit.series(&labels, 1.0);
        }
    }
}

pub(super) fn device_pods(status: &Status, visit: &mut Visit<'_>) {
    for of in &status.device_pods {
        visit.series(&[of.uuid.as_str(), &of.namespace, &of.pod, &of.container], 1.0);
    }
}

pub(super) fn xid_errors(status: &Status, visit: &mut Visit<'_>) {
    for error in &status.gpu.xids {
        visit.series(&[error.uuid.as_str(), &error.xid.to_string()], float(error.count));
    }
}

pub(super) fn records(status: &Status, visit: &mut Visit<'_>) {
    let records = status.records;
    for (result, n_records) in [
        ("accepted", records.accepted),
        ("clock_ahead", records.clock_ahead),
        ("duplicate", records.duplicate),
        ("inconsistent", records.inconsistent),
        ("late", records.late),
        ("restarted", records.restarted),
    ] {
        visit.series(&[result], float(n_records));
    }
}

pub(super) fn counts(counts: &LabelCounts, visit: &mut Visit<'_>) {
    for (label, n_events) in counts {
        visit.series(&[label], float(*n_events));
    }
}

pub(super) fn process(status: &Status, visit: &mut Visit<'_>, name: &str) {
    if let Some(value) = status.exporter.process.get(name) {
        visit.series(&[], *value);
    }
}
