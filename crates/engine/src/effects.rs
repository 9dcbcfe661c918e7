//! What the program has to do after an event: the engine compares what holds now with what it
//! told the program last.

use std::collections::BTreeSet;

use crate::engine::Engine;
use crate::event::{Effect, Event};
use crate::findings::TransitionState;
use crate::requests::causes::FoundCause;
use stepmem_types::ids::{GpuUuid, RankId, Run};
use stepmem_types::units::Uptime;

impl Engine {
    /// Returns the effects of an event, which the program has to bring about.
    pub(super) fn effects(&mut self, event: &Event, now: Uptime) -> Vec<Effect> {
        match event {
            Event::End(run, _) => {
                let mut effects = Vec::from_iter(self.summary_of(run, now));
                effects.append(&mut self.news(now));
                effects
            }
            Event::SnapshotReport(_)
            | Event::SnapshotAnalyzed(..)
            | Event::Scraped
            | Event::Tick => self.news(now),
            // A tick has the devices of new ranks opened, within a second.
            Event::Steps(_)
            | Event::Ack(_)
            | Event::HoldersReport(_)
            | Event::SnapshotWanted(..)
            | Event::LinesWanted(_)
            | Event::CauseFound(_)
            | Event::Reading(_)
            | Event::DeviceLost(_)
            | Event::DevicesReleased
            | Event::Xid(..)
            | Event::Pods(_)
            | Event::PodMemory(_)
            | Event::ClockSet(_) => Vec::new(),
        }
    }

    /// Returns the effects of a cause that was found. The summary of a run that is over is
    /// written again with it.
    pub(super) fn effects_of_cause(&self, found: FoundCause, now: Uptime) -> Vec<Effect> {
        let rank = found.rank.clone();
        let mut effects = vec![Effect::Record(Event::CauseFound(found))];
        effects.extend(self.named(&rank, now));
        effects.extend(self.summary_of(&rank.run, now));
        effects
    }

    /// Returns the effects that the program has not been told yet. Analyses come last: one that
    /// finds no place is over at once, which is an event of its own.
    fn news(&mut self, now: Uptime) -> Vec<Effect> {
        let awaits_scrape = self.ranks.awaits_scrape();
        let awaits_analyses = self.snapshots.awaits_analysis();
        let mut effects = Vec::new();
        if awaits_scrape != self.told.awaits_scrape {
            effects.push(Effect::AwaitScrape(awaits_scrape));
        }
        effects.extend(self.devices_to_open(now));
        if awaits_analyses != self.told.awaits_analyses {
            effects.push(Effect::AwaitAnalyses(awaits_analyses));
        }
        self.told.awaits_scrape = awaits_scrape;
        self.told.awaits_analyses = awaits_analyses;
        while let Some(request) = self.snapshots.next_analysis() {
            effects.push(Effect::Analyze(request));
        }
        effects
    }

    /// Returns the devices that ranks push from, if they are not those that are open.
    fn devices_to_open(&mut self, now: Uptime) -> Option<Effect> {
        let ttl = self.config.rank_ttl;
        let pushing = self.ranks.states().filter(|state| state.is_pushing(now, ttl));
        let devices: BTreeSet<&GpuUuid> =
            pushing.filter_map(|state| state.identity().device.as_ref()).collect();
        if devices.iter().copied().eq(&self.told.devices) {
            return None;
        }
        self.told.devices = devices.into_iter().cloned().collect();
        Some(Effect::OpenDevices(self.told.devices.clone()))
    }

    /// Returns the effect to write the summary of a run, if the run is over.
    fn summary_of(&self, run: &Run, now: Uptime) -> Option<Effect> {
        (!self.is_going_on(run, now)).then(|| Effect::Summarize(run.clone()))
    }

    /// Returns the findings of a rank that name the code or the object behind its memory.
    fn named(&self, rank: &RankId, now: Uptime) -> impl Iterator<Item = Effect> {
        let time = self.unix_time(now);
        let findings = self.findings.iter().map(|active| &active.finding);
        let of_rank = findings.filter(|finding| finding.subject.rank() == Some(rank));
        of_rank.filter(|finding| finding.evidence.names_cause()).map(move |finding| {
            let transition = self.transition(finding.clone(), TransitionState::Raised, time);
            Effect::Announce(Box::new(transition))
        })
    }
}
