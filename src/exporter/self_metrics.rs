//! The figures of the exporter itself, which the engine does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::core::Collector;

use crate::exporter::access::ReloadCounts;
use crate::exporter::collectors::collected::{CollectorRound, DropCounts};
use crate::exporter::own_process::OwnProcess;
use crate::exporter::recording::queue::EventRecorder;
use crate::exporter::summaries::writer::Summaries;
use crate::input::push::inbox::PushCounts;
use crate::net::access::AccessCounts;
use crate::net::server::ServerCounts;
use crate::output::otlp::delivery::ExportCounts;
use stepmem_engine::status::{CollectorStatus, ExporterStatus, LabelCounts};

/// The figures of the exporter itself that the engine does not know.
pub(super) struct ExporterFigures {
    pub(super) push: Arc<PushCounts>,
    pub(super) servers: [(&'static str, Arc<ServerCounts>); 2],
    pub(super) access: Arc<AccessCounts>,
    pub(super) web_reloads: Option<Arc<ReloadCounts>>,
    pub(super) export: Option<Arc<ExportCounts>>,
    pub(super) collectors: BTreeMap<&'static str, CollectorRound>,
    /// The counts of what the collectors left out to keep their bounds.
    pub(super) dropped: DropCounts,
    /// The reason that no device is opened, and the setting to change.
    pub(super) devices_hint: Option<&'static str>,
    pub(super) own: OwnProcess,
    pub(super) process: BTreeMap<String, f64>,
    /// Number of the command's processes that the kernel killed for lack of memory; `None`
    /// where that is not known.
    pub(super) oom_kills: Option<u64>,
    pub(super) ends_with_command: bool,
    pub(super) series: usize,
    pub(super) startup_problems: Vec<String>,
}

impl ExporterFigures {
    /// Returns the figures together with those that only the engine's task knows.
    pub(super) fn status(
        &self,
        inbox_depth: usize,
        summaries: &Summaries,
        recorder: Option<&EventRecorder>,
    ) -> ExporterStatus {
        let shed = self.servers.iter().map(|(listener, counts)| (*listener, counts.shed()));
        let reloads = self.web_reloads.as_ref().map(|counts| counts.results());
        let exports = self.export.as_ref().map(|counts| counts.results());
        ExporterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            pushes: labeled(self.push.results()),
            push_seconds: self.push.durations(),
            inbox_depth,
            devices_hint: self.devices_hint.map(Into::into),
            collectors: self.collectors.values().map(collector_status).collect(),
            snapshots: LabelCounts::new(),
            summaries: labeled(summaries.results()),
            recording_lines: labeled(recorder.into_iter().flat_map(EventRecorder::results)),
            recordings_given_up: recorder.map(EventRecorder::given_up),
            snapshot_analyses: LabelCounts::new(),
            snapshot_timelines: LabelCounts::new(),
            looks: LabelCounts::new(),
            connections_shed: labeled(shed),
            access_refused: labeled(self.access.reasons()),
            web_reloads: labeled(reloads.into_iter().flatten()),
            otlp_exports: labeled(exports.into_iter().flatten()),
            otlp_rejected_points: self
                .export
                .as_ref()
                .and_then(|counts| counts.rejected_points()),
            oom_kills: self.oom_kills,
            ends_with_command: self.ends_with_command,
            series: self.series,
            series_dropped: labeled([
                ("containers", self.dropped.containers),
                ("devices", self.dropped.devices),
                ("pods", self.dropped.pods),
                ("processes", self.dropped.processes),
            ]),
            process: self.process.clone(),
            startup_problems: self.startup_problems.clone(),
        }
    }

    /// Reads the figures of the operating system about this process.
    pub(super) fn read_process(&mut self) {
        self.process = self
            .own
            .collect()
            .iter()
            .filter_map(|family| {
                let metric = family.get_metric().first()?;
                let value = metric.get_counter().get_value() + metric.get_gauge().get_value();
                Some((family.name().to_owned(), value))
            })
            .collect();
    }
}

fn collector_status(round: &CollectorRound) -> CollectorStatus {
    let CollectorRound { collector, duration_seconds, is_success, .. } = *round;
    CollectorStatus { collector: collector.into(), duration_seconds, is_success }
}

fn labeled(counts: impl IntoIterator<Item = (&'static str, u64)>) -> LabelCounts {
    counts.into_iter().map(|(label, count)| (label.into(), count)).collect()
}
