//! The state that outlasts a restart of the exporter: an engine is saved, part by part, and
//! another one goes on from there.

use serde::Serialize;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::findings::acks::SavedAck;
use crate::output::saved_state::{
    NextPart, PartToSave, SaveCursor, SavedFinding, SavedRest, SavedState,
};
use crate::ranks::state::RankState;
use crate::ranks::table::RankTable;
use stepmem_types::host::ContainerId;
use stepmem_types::ids::{ProcessId, RankId};
use stepmem_types::units::Uptime;

impl Engine {
    /// Returns the next part of what a later engine needs to go on, and where the one after it
    /// begins. The parts may be of different times: each rank is saved as it stands.
    pub fn save(
        &self,
        cursor: SaveCursor,
        now: Uptime,
    ) -> Option<(impl Serialize, SaveCursor)> {
        let (part, next) = match cursor.0 {
            NextPart::FirstRank => self.save_rank(None),
            NextPart::RankAfter(id) => self.save_rank(Some(&id)),
            NextPart::ProcessAfter(id) => self.save_process(Some(&id)),
            NextPart::ContainerAfter(id) => self.save_container(Some(&id)),
            NextPart::SitesAfter(id) => self.save_sites(Some(&id)),
            NextPart::HeapScans => {
                (PartToSave::HeapScans(self.heap_scans.saved()), NextPart::Rest)
            }
            NextPart::Rest => (self.save_rest(now), NextPart::End),
            NextPart::End => return None,
        };
        Some((part, SaveCursor(next)))
    }

    fn save_rank(&self, after: Option<&RankId>) -> (PartToSave<'_>, NextPart) {
        let Some((run, rank, state)) = self.ranks.first_after(after) else {
            return self.save_process(None);
        };
        let id = RankId { run: run.clone(), rank };
        (PartToSave::Rank(run, rank, state), NextPart::RankAfter(id))
    }

    fn save_process(&self, after: Option<&ProcessId>) -> (PartToSave<'_>, NextPart) {
        let Some((id, state)) = self.processes.first_after(after) else {
            return self.save_container(None);
        };
        (PartToSave::Process(id, state), NextPart::ProcessAfter(id.clone()))
    }

    fn save_container(&self, after: Option<&ContainerId>) -> (PartToSave<'_>, NextPart) {
        let Some((id, state)) = self.containers.first_after(after) else {
            return self.save_sites(None);
        };
        (PartToSave::Container(state), NextPart::ContainerAfter(id.clone()))
    }

    fn save_sites(&self, after: Option<&RankId>) -> (PartToSave<'_>, NextPart) {
        let Some((run, rank, sites)) = self.sites.first_after(after) else {
            return (
                PartToSave::Snapshots(self.snapshots.requests.saved()),
                NextPart::HeapScans,
            );
        };
        let id = RankId { run: run.clone(), rank };
        (PartToSave::Sites(run, rank, sites), NextPart::SitesAfter(id))
    }

    fn save_rest(&self, now: Uptime) -> PartToSave<'_> {
        PartToSave::Rest(SavedRest {
            started: self.started,
            uptime: now,
            findings: SavedFinding::of_all(&self.findings),
            acks: self.acks.iter().map(SavedAck::of).collect(),
        })
    }

    /// An engine that goes on where another stood. A finding that held then and still does is
    /// not raised again, and no rank is asked about it again.
    pub fn resume(config: EngineConfig, saved: SavedState, now: Uptime) -> Self {
        let SavedState {
            ranks, processes, containers, sites, snapshots, heap_scans, rest, ..
        } = saved;
        let SavedRest { started, uptime: _, findings, acks } = rest;
        let mut engine = Self::new(config, started);
        engine.ranks = RankTable::resume(engine.config.ranks(), ranks);
        engine.processes = processes;
        engine.processes.configure(&engine.config.creep);
        engine.containers = containers;
        engine.containers.configure(&engine.config.creep);
        engine.sites = sites;
        engine.snapshots.resume(snapshots);
        engine.heap_scans.resume(heap_scans);
        for ack in acks {
            engine.acks.restore(ack, now);
        }
        engine.ranks.forget(now, engine.config.rank_retention);
        // A finding that is raised here was raised before, unless the state is older than the
        // finding.
        let (_, raised) = engine.judged(now);
        let is_new = |finding: &&_| !findings.iter().any(|saved| saved.is_of(finding));
        for finding in raised.iter().filter(is_new) {
            engine.ask_about(finding, now);
        }
        for finding in findings {
            finding.restore(&mut engine.findings);
        }
        engine
    }

    /// Returns whether all ranks that push were judged by a record that came after `since`.
    pub fn has_judged_since(&self, since: Uptime, now: Uptime) -> bool {
        let pushed_since = |state: &RankState| state.last_seen() > since;
        self.last_judged > since
            && self.ranks.pushing(now).all(|(_, state)| pushed_since(state))
    }
}
