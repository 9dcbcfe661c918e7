//! The log of what the engine took and refused, and of the findings that changed.

use crate::net::peer::Peer;
use stepmem_engine::{
    AnalysisOutcome, Event, HoldersOutcome, HoldersReport, RankRequest, Refusal, RequestKind,
    Severity, SnapshotAnalysis, Transition, TransitionState,
};
use stepmem_types::end::RankEnd;
use stepmem_types::ids::{ProcessId, Rank, RankId, SubjectId};

/// Logs an event that the engine took. Steps, readings and the time come too often.
pub(super) fn log_event(event: &Event, peer: Option<Peer>) {
    let peer = peer.map(tracing::field::display);
    match event {
        Event::End(run, RankEnd { rank, report, .. }) => {
            let (rank, outcome) = (rank.map(Rank::get), report.outcome.as_label());
            let (error, message) =
                (report.error_type.as_deref(), report.error_message.as_deref());
            tracing::info!(%run, rank, outcome, error, message, peer, "ended");
        }
        Event::Ack(ack) => {
            let (subject, kind) = (ack.subject().to_string(), ack.kind().label());
            tracing::info!(subject, kind, reason = ack.reason(), peer, "acknowledged");
        }
        Event::SnapshotReport(report) => {
            let RankId { run, rank } = &report.rank;
            let outcome = report.outcome.as_label();
            tracing::info!(%run, rank = rank.get(), outcome, "snapshot");
        }
        Event::HoldersReport(report) => log_holders(report),
        Event::SnapshotWanted(RankId { run, rank }, steps) => {
            tracing::info!(%run, rank = rank.get(), steps, peer, "snapshot requested");
        }
        Event::LinesWanted(RankId { run, rank }) => {
            tracing::info!(%run, rank = rank.get(), peer, "lines requested");
        }
        Event::SnapshotAnalyzed(number, analysis) => log_analysis(*number, analysis),
        Event::Xid(device, xid) => tracing::warn!(%device, xid, "xid error"),
        Event::Steps(_)
        | Event::CauseFound(_)
        | Event::Reading(_)
        | Event::DeviceLost(_)
        | Event::DevicesReleased
        | Event::Pods(_)
        | Event::PodMemory(_)
        | Event::Scraped
        | Event::ClockSet(_)
        | Event::Tick => {}
    }
}

/// Logs the ranks that are asked to checkpoint.
pub(super) fn log_checkpoints(requests: &[RankRequest]) {
    for RankRequest { rank: RankId { run, rank }, kind, .. } in requests {
        if let RequestKind::Checkpoint(due) = kind {
            let (rank, reason) = (rank.get(), due.reason.as_ref());
            tracing::info!(%run, rank, reason, seconds_left = due.seconds_left, "asked to checkpoint");
        }
    }
}

/// Logs the first refusal of a process whose rank another one holds, and the first conflict
/// over a name.
pub(super) fn log_refusal(refusal: &Refusal) {
    let Refusal::Held(conflict) = refusal else { return };
    if conflict.is_news {
        let (run, rank) = (&conflict.rank.run, conflict.rank.rank.get());
        tracing::warn!(%run, rank, reason = %refusal, "two programs use one run name");
    }
}

/// Logs the result of a snapshot's analysis, or the reason that there is none.
fn log_analysis(number: u64, analysis: &SnapshotAnalysis) {
    let outcome = analysis.outcome.as_label();
    let reason = analysis.reason.as_ref().map(tracing::field::display);
    if analysis.outcome != AnalysisOutcome::Analysed {
        tracing::warn!(number, outcome, reason, "snapshot not analyzed");
        return;
    }
    let leak = analysis.leak.as_ref();
    let site = leak.and_then(|leak| leak.at.as_ref()).map(tracing::field::display);
    let verdict = leak.map(|leak| tracing::field::debug(leak.verdict));
    let share = leak.and_then(|leak| leak.share_ratio);
    let slope = leak.and_then(|leak| leak.bytes_per_step);
    tracing::info!(
        number,
        verdict,
        site,
        share_ratio = share,
        bytes_per_step = slope,
        "snapshot analyzed"
    );
}

/// Logs the holders of a rank's tensors.
fn log_holders(report: &HoldersReport) {
    let RankId { run, rank } = &report.rank;
    let (rank, outcome) = (rank.get(), report.outcome.as_label());
    let first = match &report.outcome {
        HoldersOutcome::Named(holders) => holders.first(),
        _ => None,
    };
    let at = first.and_then(|holder| holder.at.as_ref()).map(tracing::field::display);
    let holder = first.map(|holder| tracing::field::display(&holder.name));
    tracing::info!(%run, rank, outcome, holder, at, "holders");
}

/// Logs a transition: a finding that holds as a warning, one that is informative or over as
/// information.
pub(super) fn log_transition(transition: &Transition) {
    let (run, rank, uuid, pid) = match &transition.subject {
        SubjectId::Rank(RankId { run, rank }) => (Some(run), Some(rank.get()), None, None),
        SubjectId::Process(ProcessId { uuid, pid }) => (None, None, Some(uuid), Some(*pid)),
        SubjectId::Device(uuid) => (None, None, Some(uuid), None),
    };
    let (run, uuid) = (run.map(tracing::field::display), uuid.map(tracing::field::display));
    let (kind, severity) = (transition.kind.label(), transition.severity.as_label());
    let diagnosis = transition.kind.about().title;
    if transition.state == TransitionState::Cleared {
        tracing::info!(run, rank, uuid, pid, diagnosis, kind, severity, "cleared");
        return;
    }
    let sentence = transition.evidence.sentence();
    let sentence = sentence.words();
    let evidence = serde_json::to_value(&transition.evidence).unwrap_or_default();
    let figure = |name: &str| evidence.get(name).and_then(serde_json::Value::as_f64);
    macro_rules! raised {
        ($level:ident) => {
            tracing::$level!(
                run,
                rank,
                uuid,
                pid,
                diagnosis,
                kind,
                severity,
                sentence,
                slope_bytes_per_step = figure("slope_bytes_per_step"),
                growth_bytes = figure("growth_bytes"),
                headroom_bytes = figure("headroom_bytes"),
                oom_eta_seconds = figure("oom_eta_seconds"),
                oom_eta_lower_seconds = figure("oom_eta_lower_seconds"),
                pressure_ratio = figure("pressure_ratio"),
                imbalance_ratio = figure("imbalance_ratio"),
                "raised"
            )
        };
    }
    if transition.severity == Severity::Info { raised!(info) } else { raised!(warn) }
}
