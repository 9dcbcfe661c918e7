//! Acknowledgments: findings that an operator has seen and lowered to info for a time. Each
//! names its subject, its reason and its end, and expires by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kind::DiagnosisKind;
use crate::ranks::refusal::Refusal;
use stepmem_types::ids::SubjectId;
use stepmem_types::saved;
use stepmem_types::units::{OutOfRange, Uptime, checked_text};

/// Number of acknowledgments that are in force at once, at most.
pub const ACKS_MAX: usize = 1024;
/// The longest reason that is taken, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// The longest time that a finding can be lowered for: 30 days.
pub const FOR_SECONDS_MAX: u32 = 30 * 24 * 3600;

/// The longest label of a diagnosis that is read back, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 64;

/// An acknowledgment as its author states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    subject: SubjectId,
    kind: DiagnosisKind,
    duration: Duration,
    reason: Box<str>,
}

impl Ack {
    /// Lowers the diagnosis `kind` of a subject for so many seconds.
    ///
    /// # Errors
    /// The reason is empty, too long, or contains a control character.
    pub fn new(
        subject: SubjectId,
        kind: DiagnosisKind,
        for_seconds: u32,
        reason: &str,
    ) -> Result<Self, OutOfRange> {
        let reason = checked_text(reason, REASON_BYTES_MAX)?;
        Ok(Self { subject, kind, duration: Duration::from_secs(for_seconds.into()), reason })
    }

    /// The subject that it is about.
    pub fn subject(&self) -> &SubjectId {
        &self.subject
    }

    /// The diagnosis that it lowers.
    pub fn kind(&self) -> DiagnosisKind {
        self.kind
    }

    /// Returns the duration, in seconds.
    pub fn seconds(&self) -> u64 {
        self.duration.as_secs()
    }

    /// Returns the operator's reason, at most [`REASON_BYTES_MAX`] bytes.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// An acknowledgment in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveAck {
    pub ack: Ack,
    pub since: Uptime,
    pub until: Uptime,
}

/// An acknowledgment as it outlasts a restart of the exporter.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SavedAck {
    subject: SubjectId,
    #[serde(deserialize_with = "saved::texts::<_, _, LABEL_BYTES_MAX>")]
    kind: String,
    #[serde(deserialize_with = "saved::texts::<_, _, REASON_BYTES_MAX>")]
    reason: String,
    since: Uptime,
    until: Uptime,
}

impl SavedAck {
    /// Returns the part of an acknowledgment that is saved.
    pub(crate) fn of(active: &ActiveAck) -> Self {
        let Ack { subject, kind, duration: _, reason } = active.ack.clone();
        let (kind, reason) = (kind.label().to_owned(), reason.into());
        Self { subject, kind, reason, since: active.since, until: active.until }
    }

    /// Returns the acknowledgment that was saved; `None` when it has expired at `now`, or its
    /// diagnosis is gone.
    fn restore(self, now: Uptime) -> Option<ActiveAck> {
        let Self { subject, kind, reason, since, until } = self;
        let kind = DiagnosisKind::from_label(&kind)?;
        let ack = Ack { subject, kind, duration: until.since(since), reason: reason.into() };
        (until > now).then_some(ActiveAck { ack, since, until })
    }
}

/// The acknowledgments in force, by subject and diagnosis; a newer one takes the place of an
/// older one.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    active: BTreeMap<(SubjectId, DiagnosisKind), ActiveAck>,
}

impl Acks {
    /// Puts an acknowledgment in force from `now` on.
    ///
    /// # Errors
    /// There are [`ACKS_MAX`], and it replaces none.
    pub(crate) fn insert(&mut self, ack: &Ack, now: Uptime) -> Result<(), Refusal> {
        let key = (ack.subject.clone(), ack.kind);
        if self.active.len() >= ACKS_MAX && !self.active.contains_key(&key) {
            return Err(Refusal::TooManyAcks { max: ACKS_MAX });
        }
        let until = Uptime(now.0 + ack.duration);
        self.active.insert(key, ActiveAck { ack: ack.clone(), since: now, until });
        Ok(())
    }

    /// Puts a saved acknowledgment in force again, unless it has expired at `now`.
    pub(crate) fn restore(&mut self, saved: SavedAck, now: Uptime) {
        if let Some(active) = saved.restore(now)
            && self.active.len() < ACKS_MAX
        {
            self.active.insert((active.ack.subject.clone(), active.ack.kind), active);
        }
    }

    /// Forgets those that have expired.
    pub(crate) fn expire(&mut self, now: Uptime) {
        self.active.retain(|_, active| active.until > now);
    }

    /// Returns whether a finding is lowered at `now`.
    pub(crate) fn lowers(&self, subject: &SubjectId, kind: DiagnosisKind, now: Uptime) -> bool {
        // No key is cloned while nothing is acknowledged.
        !self.active.is_empty()
            && self
                .active
                .get(&(subject.clone(), kind))
                .is_some_and(|active| active.until > now)
    }

    /// Returns the acknowledgments in force, ascending by subject and diagnosis.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ActiveAck> {
        self.active.values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ACKS_MAX, Ack, Acks};
    use crate::kind::DiagnosisKind;
    use stepmem_types::ids::{Rank, RankId, Run, SubjectId};
    use stepmem_types::units::Uptime;

    fn subject(rank: u64) -> SubjectId {
        let (run, rank) = (Run::new("r").unwrap(), Rank::new(rank).unwrap());
        SubjectId::Rank(RankId { run, rank })
    }

    fn ack(rank: u64, for_seconds: u32) -> Ack {
        let kind = DiagnosisKind::CreepConfirmed;
        Ack::new(subject(rank), kind, for_seconds, "a cache fills").unwrap()
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    #[test]
    fn acknowledgment_lowers_its_own_diagnosis_until_it_expires() {
        let mut acks = Acks::default();
        assert!(acks.insert(&ack(3, 60), at(10)).is_ok());
        assert!(acks.lowers(&subject(3), DiagnosisKind::CreepConfirmed, at(69)));
        assert!(!acks.lowers(&subject(3), DiagnosisKind::CreepConfirmed, at(70)));
        assert!(!acks.lowers(&subject(3), DiagnosisKind::Imbalance, at(20)));
        assert!(!acks.lowers(&subject(4), DiagnosisKind::CreepConfirmed, at(20)));
        acks.expire(at(70));
        assert_eq!(acks.iter().count(), 0);
    }

    #[test]
    fn no_more_than_the_limit_are_in_force() {
        let mut acks = Acks::default();
        for rank in 0..u64::try_from(ACKS_MAX).unwrap() {
            assert!(acks.insert(&ack(rank, 60), at(0)).is_ok());
        }
        assert!(acks.insert(&ack(5000, 60), at(0)).is_err());
        assert!(
            acks.insert(&ack(7, 120), at(0)).is_ok(),
            "a newer one takes the older one's place"
        );
    }
}
