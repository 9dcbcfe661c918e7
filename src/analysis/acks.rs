//! Acknowledgements: findings that somebody looked at and lowered to info for a time. Each says who it is about, why
//! and until when, and expires by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::diagnosis::{Finding, wording};
use crate::model::ids::{Rank, Run};
use crate::model::units::{OutOfRange, Uptime, checked_text};

/// How many acknowledgements are held at once.
pub const ACKS_MAX: usize = 1024;
/// The longest reason that is taken, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// The longest time that a finding can be lowered for: 30 days.
pub const FOR_SECONDS_MAX: u32 = 30 * 24 * 3600;

/// The diagnoses that can be acknowledged: all of them.
pub const KINDS: &str =
    "CREEP_CONFIRMED, HIGH_PRESSURE, IMBALANCE, FRAGMENTATION, OUTSIDE_ALLOCATOR, CREEP_EARLY";

/// The diagnosis of that name.
pub fn kind(name: &str) -> Option<&'static str> {
    wording::diagnosis(name).map(|diagnosis| diagnosis.kind)
}

/// What somebody says about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    run: Run,
    rank: Rank,
    kind: &'static str,
    lasts: Duration,
    reason: Box<str>,
}

impl Ack {
    /// Lowers the diagnosis `kind` of a rank for so many seconds.
    ///
    /// # Errors
    /// The reason is empty, too long, or contains a control character.
    pub fn new(
        (run, rank): (Run, Rank),
        kind: &'static str,
        for_seconds: u32,
        reason: &str,
    ) -> Result<Self, OutOfRange> {
        let reason = checked_text(reason, REASON_BYTES_MAX)?;
        Ok(Self { run, rank, kind, lasts: Duration::from_secs(for_seconds.into()), reason })
    }

    /// The run and rank that it is about.
    pub fn about(&self) -> (&Run, Rank) {
        (&self.run, self.rank)
    }

    /// The diagnosis that it lowers.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Why.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// One acknowledgement that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAck {
    /// What was said.
    pub ack: Ack,
    /// When.
    pub since: Uptime,
    /// When it expires.
    pub until: Uptime,
}

/// An acknowledgement as it outlasts a restart of the exporter.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SavedAck {
    run: Run,
    rank: Rank,
    kind: String,
    reason: String,
    since: Uptime,
    until: Uptime,
}

impl SavedAck {
    /// What is held, to be saved.
    pub fn of(held: &HeldAck) -> Self {
        let Ack { run, rank, kind, lasts: _, reason } = held.ack.clone();
        let (kind, reason) = (kind.to_owned(), reason.into());
        Self { run, rank, kind, reason, since: held.since, until: held.until }
    }

    /// What was held, and since when; `None` when it has expired or its diagnosis is gone.
    pub fn restored(self, now: Uptime) -> Option<(Ack, Uptime)> {
        let Self { run, rank, kind: name, reason, since, until } = self;
        let lasts = until.since(since);
        let ack = Ack { run, rank, kind: kind(&name)?, lasts, reason: reason.into() };
        (until > now).then_some((ack, since))
    }
}

/// The acknowledgements that are held, by run, rank and diagnosis; a newer one takes the place of an older one.
#[derive(Debug, Default)]
pub struct Acks {
    held: BTreeMap<(Run, Rank, &'static str), HeldAck>,
}

impl Acks {
    /// Whether an acknowledgement can be held: there are fewer than [`ACKS_MAX`], or it takes the place of one.
    pub fn has_room(&self, ack: &Ack) -> bool {
        self.held.len() < ACKS_MAX
            || self.held.contains_key(&(ack.run.clone(), ack.rank, ack.kind))
    }

    /// Holds an acknowledgement from `now` on; false, and not held, when there is no room for it.
    pub fn hold(&mut self, ack: Ack, now: Uptime) -> bool {
        if !self.has_room(&ack) {
            return false;
        }
        let key = (ack.run.clone(), ack.rank, ack.kind);
        let until = Uptime(now.0 + ack.lasts);
        self.held.insert(key, HeldAck { ack, since: now, until });
        true
    }

    /// Forgets those that have expired.
    pub fn expire(&mut self, now: Uptime) {
        self.held.retain(|_, held| held.until > now);
    }

    /// Whether the finding is lowered at `now`.
    pub fn lowers(&self, finding: &Finding, now: Uptime) -> bool {
        // No key is cloned while nothing is acknowledged.
        !self.held.is_empty()
            && self
                .held
                .get(&(finding.run.clone(), finding.rank, finding.kind))
                .is_some_and(|held| held.until > now)
    }

    /// Those that are held, ascending by run, rank and diagnosis.
    pub fn iter(&self) -> impl Iterator<Item = &HeldAck> {
        self.held.values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ACKS_MAX, Ack, Acks, KINDS, kind};
    use crate::analysis::diagnosis::{DIAGNOSES, Evidence, Finding, Severity};
    use crate::model::ids::{Rank, Run};
    use crate::model::units::Uptime;

    fn ack(rank: u64, for_seconds: u32) -> Ack {
        let about = (Run::new("r").unwrap(), Rank::new(rank).unwrap());
        Ack::new(about, "CREEP_CONFIRMED", for_seconds, "a cache fills").unwrap()
    }

    fn finding(rank: u64, kind: &'static str) -> Finding {
        let evidence =
            Evidence::Pressure { pressure_ratio: 0.95, basis: "device", capacity_bytes: 1 };
        let (run, rank) = (Run::new("r").unwrap(), Rank::new(rank).unwrap());
        Finding { kind, run, rank, severity: Severity::Warning, evidence }
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    #[test]
    fn an_acknowledgement_lowers_its_own_diagnosis_until_it_expires() {
        let mut acks = Acks::default();
        assert!(acks.hold(ack(3, 60), at(10)));
        assert!(acks.lowers(&finding(3, "CREEP_CONFIRMED"), at(69)));
        assert!(!acks.lowers(&finding(3, "CREEP_CONFIRMED"), at(70)));
        assert!(!acks.lowers(&finding(3, "IMBALANCE"), at(20)));
        assert!(!acks.lowers(&finding(4, "CREEP_CONFIRMED"), at(20)));
        acks.expire(at(70));
        assert_eq!(acks.iter().count(), 0);
    }

    #[test]
    fn every_diagnosis_can_be_acknowledged() {
        let kinds: Vec<&str> = DIAGNOSES.iter().map(|diagnosis| diagnosis.kind).collect();
        assert_eq!(kinds.join(", "), KINDS);
        assert!(kinds.iter().all(|name| kind(name) == Some(name)));
    }

    #[test]
    fn no_more_than_the_limit_are_held() {
        let mut acks = Acks::default();
        for rank in 0..u64::try_from(ACKS_MAX).unwrap() {
            assert!(acks.hold(ack(rank, 60), at(0)));
        }
        assert!(!acks.has_room(&ack(5000, 60)) && acks.has_room(&ack(7, 120)));
        assert!(!acks.hold(ack(5000, 60), at(0)));
        assert!(acks.hold(ack(7, 120), at(0)), "a newer one takes the older one's place");
    }
}
