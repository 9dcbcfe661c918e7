//! The bounded queue to the engine. Submissions never wait for a free place. Counts the results
//! of all push requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::net::peer::Peer;
use stepmem_engine::{Event, Receipt, Refusal};
use stepmem_types::units::{DurationBucket, DurationCounts};

/// Maximum number of waiting batches. A batch waits for microseconds. So many mean that the
/// engine is gone or that the machine's CPUs are overloaded.
pub const INBOX_CAPACITY: usize = 256;

/// Upper bounds of the histogram of push durations, in seconds.
pub const PUSH_SECONDS_BOUNDS: [f64; 10] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1, 1.0];

/// The channel for the engine's receipt or refusal.
pub type Reply = oneshot::Sender<Result<Receipt, Refusal>>;

/// An event for the engine.
#[derive(Debug)]
pub struct Submission {
    pub event: Event,
    /// The client that sent it.
    pub peer: Peer,
    pub reply: Reply,
}

/// Requests that no device is held open for a time.
#[derive(Debug)]
pub struct ReleaseRequest {
    /// The duration; zero resumes polling at once.
    pub time: Duration,
    /// Resolves once nothing is open; dropped when a call of the driver hangs.
    pub answer: oneshot::Sender<()>,
}

/// The queue to the collector that holds devices open; cheap to clone.
#[derive(Clone, Debug)]
pub struct Releases(mpsc::Sender<ReleaseRequest>);

impl Releases {
    /// Creates the queue and its receiver. At most one request waits.
    pub fn new() -> (Self, mpsc::Receiver<ReleaseRequest>) {
        let (requests, taken) = mpsc::channel(1);
        (Self(requests), taken)
    }

    /// Requests a release and waits until nothing is open.
    ///
    /// # Errors
    /// Another request is waiting, or a call of the driver hangs.
    pub async fn release(&self, time: Duration) -> Result<(), SubmitError> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(ReleaseRequest { time, answer }).map_err(|_| SubmitError::Hanging)?;
        answered.await.map_err(|_| SubmitError::Hanging)
    }
}

/// Reasons that a submission failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("{INBOX_CAPACITY} batches are waiting already")]
    Full,
    /// The exporter is stopping.
    #[error("the exporter is stopping")]
    Closed,
    /// A call of the driver hangs, so that devices cannot be released.
    #[error("a call to the driver hangs and keeps the devices open")]
    Hanging,
    /// The engine refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The result of a push request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushResult {
    Accepted,
    Malformed,
    OutOfRange,
    Unauthorized,
    Guessed,
    Forbidden,
    TooLarge,
    UnsupportedMediaType,
    TooMany,
    UnknownRank,
    NameTaken,
    Busy,
    Timeout,
    Interrupted,
}

impl PushResult {
    /// The label of every result, in order of declaration.
    pub const LABELS: [&'static str; 14] = [
        "accepted",
        "malformed",
        "out_of_range",
        "unauthorized",
        "guessed",
        "forbidden",
        "too_large",
        "unsupported_media_type",
        "too_many",
        "unknown_rank",
        "name_taken",
        "busy",
        "timeout",
        "interrupted",
    ];

    /// Returns the label of the result.
    pub(super) fn label(self) -> &'static str {
        Self::LABELS.get(self.idx()).copied().unwrap_or_default()
    }

    /// The index of its label in [`Self::LABELS`].
    #[expect(clippy::as_conversions, reason = "a discriminant is an index")]
    pub(super) fn idx(self) -> usize {
        self as usize
    }
}

/// The sending side of the queue; cheap to clone.
#[derive(Clone, Debug)]
pub struct Inbox {
    submissions: mpsc::Sender<Submission>,
    counts: Arc<PushCounts>,
}

/// Counts of push requests.
#[derive(Debug, Default)]
pub struct PushCounts {
    results: [AtomicU64; PushResult::LABELS.len()],
    buckets: [AtomicU64; PUSH_SECONDS_BOUNDS.len()],
    n_pushes: AtomicU64,
    nanoseconds: AtomicU64,
    recorder: OnceLock<Recorder>,
}

/// Receives each duration, in seconds, in addition to the counts.
struct Recorder(Box<dyn Fn(f64) + Send + Sync>);

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl Inbox {
    /// Creates the queue and its receiver.
    pub fn new() -> (Self, mpsc::Receiver<Submission>) {
        let (submissions, taken) = mpsc::channel(INBOX_CAPACITY);
        (Self { submissions, counts: Arc::default() }, taken)
    }

    /// Submits an event and waits for the engine's response, but never for a free place.
    ///
    /// # Errors
    /// The queue is full, the exporter is stopping, or the engine refuses the event. The engine
    /// took nothing then.
    pub async fn submit(&self, event: Event, peer: Peer) -> Result<Receipt, SubmitError> {
        let (reply, answered) = oneshot::channel();
        let submission = Submission { event, peer, reply };
        self.submissions.try_send(submission).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SubmitError::Full,
            mpsc::error::TrySendError::Closed(_) => SubmitError::Closed,
        })?;
        Ok(answered.await.map_err(|_| SubmitError::Closed)??)
    }

    /// The counts of push requests.
    pub fn counts(&self) -> Arc<PushCounts> {
        Arc::clone(&self.counts)
    }
}

impl PushCounts {
    /// Counts one request and its duration.
    pub fn add(&self, result: PushResult, took: Duration) {
        if let Some(counter) = self.results.get(result.idx()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        self.n_pushes.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let within = PUSH_SECONDS_BOUNDS.iter().zip(&self.buckets);
        for (_, bucket) in within.filter(|(bound, _)| seconds <= **bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(Recorder(record)) = self.recorder.get() {
            record(seconds);
        }
    }

    /// Also passes every duration from now on to `record`, in seconds. The first recorder
    /// stays.
    pub fn record_to(&self, record: impl Fn(f64) + Send + Sync + 'static) {
        self.recorder.set(Recorder(Box::new(record))).ok();
    }

    /// Requests by result.
    pub fn results(&self) -> Vec<(&'static str, u64)> {
        let counts = self.results.iter().map(|counter| counter.load(Ordering::Relaxed));
        PushResult::LABELS.into_iter().zip(counts).collect()
    }

    /// The durations of requests.
    pub fn durations(&self) -> DurationCounts {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let nanoseconds = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        DurationCounts {
            buckets: PUSH_SECONDS_BOUNDS
                .into_iter()
                .zip(counts)
                .map(|(within_seconds, count)| DurationBucket { within_seconds, count })
                .collect(),
            count: self.n_pushes.load(Ordering::Relaxed),
            sum_seconds: nanoseconds.as_secs_f64(),
        }
    }
}
