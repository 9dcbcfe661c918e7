//! Name conflicts: two live processes claim one rank of one run. One is refused, and gets
//! another name.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use stepmem_types::ids::{Rank, RankId, Run};
use stepmem_types::launch::{Instance, Launch};
use stepmem_types::step::StepSample;
use stepmem_types::units::Uptime;

/// Number of refused processes that are remembered, one a rank; the one refused longest ago is
/// forgotten.
pub(crate) const CLAIMANTS_MAX: usize = 1024;
/// Number of proposed names that are remembered; the oldest is forgotten.
pub(crate) const OFFERS_MAX: usize = 64;
/// A refused process that did not ask for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(1);
/// The character between a run's name and the number that distinguishes it.
const NUMBER_MARK: char = '~';

/// One of two processes that claim a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// The process id in its own namespace.
    pub pid: Option<u32>,
    /// The attempt that it reports.
    pub attempt: u64,
    /// The time when it was first heard of, as a Unix time.
    pub started: f64,
}

/// A rank that two live processes claim.
#[derive(Clone, Debug, PartialEq)]
pub struct NameConflict {
    /// The rank that both push.
    pub rank: RankId,
    /// The process that holds it.
    pub holder: Claim,
    /// The process that is refused.
    pub claimant: Claim,
    /// The name that the refused process may take: only once the holder has pushed again.
    pub offer: Option<Run>,
    /// The time after which the refused process should ask again.
    pub retry_after: Duration,
    /// Set when this refusal, or the name proposed in it, is the first.
    pub is_news: bool,
}

/// The refused processes and the names that were proposed to them.
#[derive(Debug, Default)]
pub(crate) struct NameConflicts {
    by_rank: BTreeMap<RankId, Claimant>,
    offers: VecDeque<OfferedName>,
}

#[derive(Debug)]
struct Claimant {
    instance: Option<Instance>,
    started: f64,
    /// The time of the holder's last push, at the first refusal.
    holder_pushed: Uptime,
    asked: Uptime,
    is_offered: bool,
}

#[derive(Debug)]
struct OfferedName {
    run: Run,
    launch: Option<Launch>,
    instance: Option<Instance>,
    name: Run,
}

/// The known facts of the process that holds a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    /// The claim as it is shown to the other.
    pub claim: Claim,
    /// The time when its last accepted push came.
    pub pushed: Uptime,
    /// The time after which the other should ask again.
    pub retry_after: Duration,
}

/// A record of a process that claims the rank of a live one, and when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankClaim<'a> {
    /// The record.
    pub sample: &'a StepSample,
    /// The process that holds the rank.
    pub holder: Holder,
    /// The uptime.
    pub now: Uptime,
    /// The Unix time.
    pub time: f64,
}

impl NameConflicts {
    /// Refuses the process that pushed a sample; `is_taken` returns whether a name is in use by
    /// another launch than the sample's.
    pub(crate) fn refuse(
        &mut self,
        claim: RankClaim<'_>,
        is_taken: impl Fn(&Run) -> bool,
    ) -> NameConflict {
        let RankClaim { sample, holder, now, time: arrival } = claim;
        self.forget(now);
        let rank = RankId { run: sample.run.clone(), rank: sample.rank };
        let known = self.by_rank.get(&rank);
        let is_new = known.is_none_or(|known| known.instance != sample.instance);
        if is_new {
            let claimant = Claimant {
                instance: sample.instance,
                started: arrival,
                holder_pushed: holder.pushed,
                asked: now,
                is_offered: false,
            };
            self.by_rank.insert(rank.clone(), claimant);
        }
        let may_rename = self
            .by_rank
            .get(&rank)
            .is_some_and(|claimant| holder.pushed > claimant.holder_pushed);
        let offer = may_rename.then(|| self.offer(sample, is_taken));
        let mut is_news = is_new;
        let mut started = arrival;
        if let Some(claimant) = self.by_rank.get_mut(&rank) {
            is_news |= offer.is_some() && !claimant.is_offered;
            claimant.is_offered |= offer.is_some();
            claimant.asked = now;
            started = claimant.started;
        }
        let claimant =
            Claim { pid: sample.identity.pid, attempt: sample.identity.attempt.get(), started };
        let Holder { claim, retry_after, .. } = holder;
        NameConflict { rank, holder: claim, claimant, offer, retry_after, is_news }
    }

    /// Returns the number of processes of a run that are refused at `now`.
    pub(crate) fn count(&self, run: &Run, now: Uptime) -> usize {
        let is_recent = |claimant: &Claimant| now.since(claimant.asked) < FORGOTTEN_AFTER;
        let least = RankId { run: run.clone(), rank: Rank::default() };
        let of_run = self.by_rank.range(least..).take_while(|(id, _)| id.run == *run);
        of_run.filter(|(_, claimant)| is_recent(claimant)).count()
    }

    /// Returns the name that the program of a run asked for before this one was proposed.
    pub(crate) fn asked_for(&self, run: &Run) -> Option<&Run> {
        self.offers.iter().find(|offer| offer.name == *run).map(|offer| &offer.run)
    }

    fn forget(&mut self, now: Uptime) {
        self.by_rank.retain(|_, claimant| now.since(claimant.asked) < FORGOTTEN_AFTER);
        if self.by_rank.len() >= CLAIMANTS_MAX {
            let oldest = self.by_rank.iter().min_by_key(|(_, claimant)| claimant.asked);
            let oldest = oldest.map(|(rank, _)| rank.clone());
            oldest.and_then(|rank| self.by_rank.remove(&rank));
        }
    }

    /// Returns the name for all ranks of the sample's launch.
    fn offer(&mut self, sample: &StepSample, is_taken: impl Fn(&Run) -> bool) -> Run {
        let run = &sample.run;
        let is_same = |offer: &&OfferedName| match (&offer.launch, &sample.launch) {
            (Some(known), Some(own)) => known == own,
            _ => offer.instance.is_some() && offer.instance == sample.instance,
        };
        if let Some(offer) = self.offers.iter().filter(|of| of.run == *run).find(is_same) {
            return offer.name.clone();
        }
        let is_offered = |name: &Run| self.offers.iter().any(|offer| offer.name == *name);
        let mut names = (2..).map(|number| numbered(run, number));
        let free = names.find(|name| !is_taken(name) && !is_offered(name));
        let name = free.unwrap_or_else(|| run.clone());
        if self.offers.len() >= OFFERS_MAX {
            self.offers.pop_front();
        }
        let (launch, instance) = (sample.launch.clone(), sample.instance);
        self.offers.push_back(OfferedName {
            run: run.clone(),
            launch,
            instance,
            name: name.clone(),
        });
        name
    }
}

/// The name with a number, instead of one that it has.
fn numbered(run: &Run, number: u32) -> Run {
    let base = match run.as_str().rsplit_once(NUMBER_MARK) {
        Some((base, digits)) if !base.is_empty() && digits.parse::<u32>().is_ok() => base,
        _ => run.as_str(),
    };
    let ending = format!("{NUMBER_MARK}{number}");
    let fits = |base: &str| base.len() + ending.len() <= Run::BYTES_MAX;
    let mut base = base.to_owned();
    while !fits(&base) {
        base.pop();
    }
    Run::new(&(base + &ending)).unwrap_or_else(|_| run.clone())
}

#[cfg(test)]
mod tests {
    use crate::ranks::name_conflicts::numbered;
    use stepmem_types::ids::Run;

    #[test]
    fn number_replaces_a_number_and_stays_within_the_bound() {
        let name = |run: &str, n| numbered(&Run::new(run).unwrap(), n).as_str().to_owned();
        assert_eq!((name("a", 2), name("a~2", 3)), ("a~2".to_owned(), "a~3".to_owned()));
        assert_eq!((name("~2", 2), name("a~b", 2)), ("~2~2".to_owned(), "a~b~2".to_owned()));
        let long = "ü".repeat(64);
        assert_eq!(name(&long, 12), "ü".repeat(62) + "~12");
    }
}
