//! The end of a rank, as its process reports it.

use serde::{Deserialize, Serialize};

use crate::ids::Rank;
use crate::launch::Instance;
use crate::saved;
use crate::units::{Bytes, Count, Seconds};

/// The longest name of an error's type that is taken, in bytes.
pub const ERROR_TYPE_BYTES_MAX: usize = 128;
/// The type of error of a process that the kernel killed for lack of memory: the counter of its
/// control group that rose.
pub const OOM_KILL: &str = "oom_kill";
/// The type of error of a process of which only the exit code shows that it ran out of memory.
const EXIT_CODE: &str = "exit_code";
/// The longest message of an error that is taken, in bytes.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 256;

/// The kinds of a rank's end, the worst last.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndOutcome {
    /// An end without an error.
    Completed,
    /// A stop with an error.
    Failed,
    /// An end for lack of memory.
    Oom,
}

impl EndOutcome {
    /// The key and the label that has it.
    pub const KEY: &'static str = "outcome";

    /// Returns the outcome in words.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Oom => "oom",
        }
    }
}

/// The ranks that an end may end.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndAuthority {
    /// Only what the process that it names pushed, and what was pushed without a name.
    Own,
    /// Whichever process pushed it.
    Any,
}

/// The end of a rank, or of a whole run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RankEnd {
    /// The rank that ended; `None` for the whole run.
    pub rank: Option<Rank>,
    /// The process that ended; `None` where it does not name itself.
    pub instance: Option<Instance>,
    /// The processes that it may end.
    pub authority: EndAuthority,
    /// The known facts of the end.
    pub report: EndReport,
}

impl RankEnd {
    /// Returns whether it ends ranks whichever process holds them.
    pub fn is_of_operator(&self) -> bool {
        self.authority == EndAuthority::Any && self.instance.is_none()
    }
}

/// The known facts of an end.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct EndReport {
    /// The kind of the end.
    pub outcome: EndOutcome,
    /// The time of the end, as a Unix time.
    pub time: Option<Seconds>,
    /// The step that it was in.
    pub step: Option<Count>,
    /// The train steps after the last record, whose memory was not read; at most
    /// [`STEPS_PER_RECORD_MAX`](crate::step::STEPS_PER_RECORD_MAX).
    pub unread_steps: Option<u32>,
    /// The most that was allocated since the last record.
    #[serde(rename = "peak_allocated_bytes")]
    pub peak_allocated: Option<Bytes>,
    /// The most that the allocator held since the last record.
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Option<Bytes>,
    /// The type of the error.
    #[serde(default, deserialize_with = "saved::texts::<_, _, ERROR_TYPE_BYTES_MAX>")]
    pub error_type: Option<Box<str>>,
    /// The first line of the error.
    #[serde(default, deserialize_with = "saved::texts::<_, _, ERROR_MESSAGE_BYTES_MAX>")]
    pub error_message: Option<Box<str>>,
    /// Out-of-memory errors since the process started, by its own count, with the one that
    /// ended it.
    #[serde(default)]
    pub ooms: Option<Count>,
    /// Bytes that the failed allocation requested.
    #[serde(rename = "requested_bytes")]
    pub requested: Option<Bytes>,
    /// The most that its allocator may reserve, where the error names such a limit.
    #[serde(default, rename = "reserved_limit_bytes")]
    pub reserved_limit: Option<Bytes>,
}

impl EndReport {
    /// Returns the end of a process that the kernel killed for lack of memory.
    pub fn killed_out_of_memory(time: Option<Seconds>) -> Self {
        Self {
            outcome: EndOutcome::Oom,
            time,
            step: None,
            unread_steps: None,
            peak_allocated: None,
            peak_reserved: None,
            error_type: Some(OOM_KILL.into()),
            error_message: Some("oom_kill of its control group rose".into()),
            ooms: None,
            requested: None,
            reserved_limit: None,
        }
    }

    /// Returns the end of a process that exited with `code`, not 0, after an out-of-memory
    /// error that it caught.
    pub fn exited_out_of_memory(code: u8) -> Self {
        let message = format!("the command ended with exit code {code} after this error");
        Self {
            error_type: Some(EXIT_CODE.into()),
            error_message: Some(message.into()),
            ..Self::killed_out_of_memory(None)
        }
    }

    /// Returns the most that its allocator may reserve; of a report without it by the error's
    /// message, to the digits that it gives (`11.18 GiB allowed; …`).
    pub fn allowed(&self) -> Option<Bytes> {
        let in_message = || allowed_in(self.error_message.as_deref()?);
        self.reserved_limit.filter(|limit| limit.get() > 0).or_else(in_message)
    }

    /// Returns whether the kernel killed the process for lack of memory.
    pub fn is_oom_kill(&self) -> bool {
        self.outcome == EndOutcome::Oom && self.error_type.as_deref() == Some(OOM_KILL)
    }

    /// Returns whether a person stopped it, as by Ctrl-C.
    pub fn is_keyboard_interrupt(&self) -> bool {
        self.error_type.as_deref() == Some("KeyboardInterrupt")
    }

    /// Returns whether a step that ended at the Unix time `time` was before it, as far as is
    /// known.
    pub fn is_after(&self, step: Count, time: f64) -> bool {
        self.time.is_some_and(|end| time <= end.get())
            && self.step.is_none_or(|end| step <= end)
    }
}

/// Returns the limit that the message of PyTorch's out-of-memory error names.
fn allowed_in(message: &str) -> Option<Bytes> {
    let (before, _) = message.split_once(" allowed;")?;
    let mut words = before.rsplit(' ');
    let (unit, number) = (words.next()?, words.next()?);
    let shift = match unit {
        "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let digits: u64 = format!("{whole}{part}").parse().ok()?;
    let limit = Bytes::new(u64::try_from((u128::from(digits) << shift) / scale).ok()?);
    limit.ok().filter(|limit| limit.get() > 0)
}
