//! Requests for summaries: if several readers ask for the same one, it is built once for all of
//! them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::exporter::summaries::writer::{SummarySource, summary};
use crate::output::answers::SharedText;
use crate::output::web::{SummaryFormat, SummaryRequest};
use stepmem_report::explain::{self, WindowsNow};
use stepmem_types::ids::{Rank, Run};

/// Maximum number of summaries that are built and written out at a time; further readers wait.
pub(in crate::exporter) const SUMMARIES_AT_ONCE_MAX: usize = 2;

/// The requests that wait.
pub(in crate::exporter) struct SummaryRequests {
    asked: mpsc::Receiver<SummaryRequest>,
    /// The requests that were taken from the queue while another one was answered: at most as
    /// many as it holds.
    waiting: VecDeque<SummaryRequest>,
    turns: Arc<Semaphore>,
}

/// One or several readers' request for a summary, and the turn to build it.
pub(in crate::exporter) struct SummaryGroup {
    run: String,
    format: SummaryFormat,
    requests: Vec<SummaryRequest>,
    /// The turn to build the summary, which ends once the readers have it.
    turn: OwnedSemaphorePermit,
}

impl SummaryRequests {
    pub(in crate::exporter) fn new(asked: mpsc::Receiver<SummaryRequest>) -> Self {
        let turns = Arc::new(Semaphore::new(SUMMARIES_AT_ONCE_MAX));
        Self { asked, waiting: VecDeque::new(), turns }
    }

    /// Returns the next request, with every request for the same, once there is a turn for it.
    pub(in crate::exporter) async fn next(
        &mut self,
        resting_until: Instant,
    ) -> Option<SummaryGroup> {
        tokio::time::sleep_until(resting_until).await;
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        if self.waiting.is_empty() {
            self.waiting.push_back(self.asked.recv().await?);
        }
        // No await follows: each request that is taken is answered.
        while self.waiting.len() < self.asked.max_capacity()
            && let Ok(request) = self.asked.try_recv()
        {
            self.waiting.push_back(request);
        }
        let first = self.waiting.front()?;
        let (run, format) = (first.run.clone(), first.format);
        let (requests, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request| request.run == run && request.format == format);
        self.waiting = others.into();
        Some(SummaryGroup { run, format, requests, turn })
    }
}

impl SummaryGroup {
    /// Builds the summary and answers the requests. Drops them if the run is unknown.
    pub(in crate::exporter) fn answer(mut self, known: &SummarySource<'_>) {
        self.requests.retain(|request| !request.answer.is_closed());
        if self.requests.is_empty() {
            return;
        }
        let Ok(run) = Run::new(&self.run) else { return };
        let of_rank = |rank: u32| Rank::new(rank.into()).ok();
        let view = |rank| known.engine.rank(&run, of_rank(rank)?, known.now);
        let held = match self.format {
            SummaryFormat::Windows(rank) => {
                view(rank).map(|rank| explain::windows(&rank).into_bytes())
            }
            SummaryFormat::WindowsJson(rank) => {
                view(rank).map(|rank| json(&WindowsNow::of(&rank)))
            }
            SummaryFormat::History(rank) => {
                let history = of_rank(rank).and_then(|rank| known.engine.history(&run, rank));
                history.map(|history| json(&history))
            }
            SummaryFormat::RunHistory => {
                known.engine.run_history(&run).map(|history| json(&history))
            }
            SummaryFormat::Json | SummaryFormat::Text => {
                self.answer_summary(&run, known);
                return;
            }
        };
        if let Some(text) = held {
            self.send(text);
        }
    }

    fn answer_summary(self, run: &Run, known: &SummarySource<'_>) {
        let view = known.engine.run(run, known.now);
        let Some(summary) = view.map(|view| summary(known, &view)) else { return };
        // Formatting many ranks takes long; the engine does not wait for it.
        drop(tokio::task::spawn_blocking(move || {
            let text = match self.format {
                SummaryFormat::Json => json(&summary),
                // All others were answered before, without a summary.
                _ => summary.text.into_bytes(),
            };
            self.send(text);
        }));
    }

    fn send(self, text: Vec<u8>) {
        let text = SharedText::new(text);
        for request in self.requests {
            // The reader may have left.
            request.answer.send(Arc::clone(&text)).ok();
        }
        drop(self.turn);
    }
}

/// Returns an answer as JSON, in a buffer of exactly its length. The answer is therefore
/// serialized twice: to count its bytes, then to write them.
fn json(answer: &impl Serialize) -> Vec<u8> {
    let mut length = LengthOnly(0);
    if serde_json::to_writer(&mut length, answer).is_err() {
        return Vec::new();
    }
    let mut text = Vec::with_capacity(length.0);
    serde_json::to_writer(&mut text, answer).map(|()| text).unwrap_or_default()
}

/// Counts the bytes that are written to it.
struct LengthOnly(usize);

impl Write for LengthOnly {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{mpsc, oneshot};
    use tokio::time::Instant;

    use crate::exporter::summaries::requests::SummaryRequests;
    use crate::output::answers::SharedText;
    use crate::output::web::{SummaryFormat, SummaryRequest};

    fn ask(
        to: &mpsc::Sender<SummaryRequest>,
        run: &str,
        format: SummaryFormat,
    ) -> oneshot::Receiver<Arc<SharedText>> {
        let (answer, answered) = oneshot::channel();
        to.try_send(SummaryRequest { run: run.to_owned(), format, answer }).unwrap();
        answered
    }

    #[test]
    fn requests_for_the_same_summary_get_the_same_text() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(async {
            let (to, asked) = mpsc::channel(8);
            let mut requests = SummaryRequests::new(asked);
            let first = ask(&to, "a", SummaryFormat::Json);
            let other = ask(&to, "b", SummaryFormat::Json);
            let text = ask(&to, "a", SummaryFormat::Text);
            let second = ask(&to, "a", SummaryFormat::Json);
            let now = Instant::now();
            requests.next(now).await.unwrap().send(b"{}".to_vec());
            assert!(Arc::ptr_eq(&first.await.unwrap(), &second.await.unwrap()));
            let group = requests.next(now).await.unwrap();
            assert_eq!((group.run.as_str(), group.requests.len()), ("b", 1));
            // It holds a turn until it is answered.
            let third = requests.next(now).await.unwrap();
            assert_eq!((third.run.as_str(), third.format), ("a", SummaryFormat::Text));
            drop((group, third));
            assert!(other.await.is_err() && text.await.is_err());
        });
    }
}
