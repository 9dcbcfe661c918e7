//! The status of one rank, from what others see of it.

use crate::diagnosis::shared::balance::RankBalance;
use crate::diagnosis::shared::filling::Filling;
use crate::diagnosis::shared::host_words;
use crate::diagnosis::shared::kept_blocks::KeptBlocks;
use crate::diagnosis::shared::malloc_figures::{MallocFigures, is_bystander};
use crate::diagnosis::shared::pressure;
use crate::diagnosis::shared::trend_figures::{TrendFigures, soonest};
use crate::output::status::{RankStatus, SignalStatus};
use crate::ranks::view::{RankActivity, RankView};
use stepmem_detect::Signal;
use stepmem_types::device::OwnProcessMemory;
use stepmem_types::ids::RankId;
use stepmem_types::site::TensorHolder;
use stepmem_types::step::StepFigures;

impl RankStatus {
    /// A present rank, without its launch; `last_push_time` is a Unix time.
    pub fn of(
        id: RankId,
        view: &RankView<'_>,
        balance: Option<&RankBalance>,
        last_push_time: f64,
    ) -> Self {
        let (of_device, of_host) = ends(view);
        let headroom = view.headroom();
        let kept_blocks = KeptBlocks::of(view.detectors.of(Signal::Allocated))
            .filter(|_| view.ended.is_none());
        let growth_headroom = view.growth_headroom_bytes([Signal::Allocated, Signal::Children]);
        Self {
            rank_label: id.rank.to_string(),
            run: id.run,
            rank: id.rank,
            identity: view.identity.clone(),
            launch: None,
            last_train: last_train(view),
            host: host_words::described(view),
            state: RankActivity::of(view),
            silent_seconds: view.silent.map(|silent| silent.as_secs_f64()),
            end: view.ended.map(|ended| ended.report.clone()),
            totals: view.totals,
            marks_total: view.marks(),
            is_by_time: view.is_by_time(),
            without_steps_seconds: view.seconds_without_steps(),
            last_push_time,
            checkpoint_asked_time: None,
            interval_peak_allocated: view.interval_peak_allocated,
            recent_peak_allocated: view.recent_peak_allocated,
            high_water_allocated: view.high_water_allocated,
            capacity: view.capacity,
            capacity_set_by: view.capacity_set_by(),
            headroom_bytes: growth_headroom.or(headroom.map(|headroom| headroom.bytes)),
            headroom_basis: headroom
                .filter(|_| growth_headroom.is_none())
                .map(|headroom| headroom.basis),
            pressures: pressure::of_rank(view)
                .chain(pressure::of_host(view))
                .map(|of| (of.basis, of.ratio))
                .collect(),
            fragmentation_ratio: view
                .fragmentation_ratio()
                .filter(|_| !view.identity.is_host()),
            outside_allocator_bytes: view.outside_allocator_bytes,
            process_estimated_bytes: view.device.process_estimated,
            process_used_bytes: view.own_process.and_then(OwnProcessMemory::bytes),
            process_used_state: view.own_process.and_then(OwnProcessMemory::state),
            imbalance_ratio: balance.map(|balance| balance.imbalance_ratio),
            is_judged: view.detectors.own().samples_until_judged() == 0,
            judging_from_step: view.judging_from_step(),
            creep: Signal::ALL
                .into_iter()
                .filter_map(|signal| SignalStatus::of(signal, view.detectors.of(signal)))
                .collect(),
            kept_blocks,
            kept_blocks_sentence: kept_blocks
                .map(|kept| kept.full_statement(view.identity.unit).words().to_owned()),
            reserved_slope_bytes_per_step: view
                .detectors
                .of(Signal::Reserved)
                .reserved_slope()
                .and_then(|slope| slope.bytes_per_step)
                .filter(|_| last_train(view).is_some_and(|last| last.reserved.is_some()))
                .map(|slope| slope.value),
            phases_left_out_total: view.phase_floors.n_left_out(),
            oom_eta_steps: of_device.as_ref().and_then(|trend| trend.oom_eta_steps),
            oom_eta_seconds: of_device.as_ref().and_then(|trend| trend.oom_eta_seconds),
            oom_eta_lower_steps: of_device.as_ref().and_then(|trend| trend.oom_eta_lower_steps),
            oom_eta_lower_seconds: of_device.and_then(|trend| trend.oom_eta_lower_seconds),
            host_oom_eta_seconds: of_host.as_ref().and_then(|trend| trend.oom_eta_seconds),
            host_oom_eta_lower_seconds: of_host.and_then(|trend| trend.oom_eta_lower_seconds),
            site: view.site.leak.cloned(),
            holder: holder(view),
        }
    }

    /// Returns the run and the rank that it is about.
    pub fn id(&self) -> RankId {
        RankId { run: self.run.clone(), rank: self.rank }
    }
}

/// Returns the figures of the last train step. Nothing reserves host memory, whatever a pusher
/// says: its live memory.
fn last_train(rank: &RankView<'_>) -> Option<StepFigures> {
    let last = *rank.last_train?;
    let reserved = last.reserved.filter(|_| !rank.identity.is_host());
    Some(StepFigures { reserved, ..last })
}

/// Returns the object that holds the rank's own memory, unless it was only seen to grow beside that.
fn holder(rank: &RankView<'_>) -> Option<TensorHolder> {
    let holder = &rank.site.own.holder?.holder;
    let outlook = rank.outlook(Signal::Allocated).filter(|_| rank.identity.is_host());
    let is_beside = outlook.is_some_and(|outlook| {
        let slope = outlook.slope.bytes_per_step.map(|slope| slope.value);
        is_bystander(holder, slope, MallocFigures::of_rank(rank, &outlook).as_ref())
    });
    (!is_beside).then(|| holder.clone())
}

/// Returns the figures of what is first to run out of memory: by the rank's own signals, and on
/// the host next to a device.
fn ends(rank: &RankView<'_>) -> (Option<TrendFigures>, Option<TrendFigures>) {
    let is_endless = |signal: &Signal| {
        let outlook = rank.outlook(*signal);
        let filling = outlook.and_then(|outlook| Filling::of(rank, &outlook));
        outlook.is_some() && !filling.is_some_and(|filling| filling.withholds())
    };
    let end = |is_of_host: bool| {
        let asked = Signal::ALL.into_iter().filter(|of| of.is_beside() == is_of_host);
        soonest(asked.filter(is_endless).filter_map(|signal| rank.end(signal)))
    };
    (end(false), end(true))
}
