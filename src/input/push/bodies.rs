//! Bodies of pushes: read within bounds of size and time and within a byte budget, and
//! decompressed one at a time.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, HeaderValue, Request};
use flate2::bufread::MultiGzDecoder;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::input::push::problem::PushRefusal;
use crate::net::byte_budget::{ByteBudget, HeldBytes};

/// The greatest value of the setting that limits one body after decompression, in bytes.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Byte budget of incomplete bodies, or twice the limit of one body where that is more. The
/// oldest of them is evicted for a new one.
pub const BODIES_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Time limit for a complete body.
pub const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of bodies that may be decoded and wait for the engine at a time; or one body of any
/// size.
const TURN_BYTES: u32 = 64 * 1024;
/// Bytes that a read to the end needs beyond the end.
const READ_BYTES: usize = 32;
/// Bytes that are decompressed before others have a turn.
const UNPACKED_AT_ONCE: usize = 64 * 1024;
/// Compressed bytes that are read before others have a turn: empty members of gzip decompress
/// to nothing.
const PACKED_AT_ONCE: usize = 2 * 1024;

/// The bodies of all pushes.
pub(super) struct Bodies {
    budget: Arc<ByteBudget>,
    budget_bytes_max: usize,
    body_bytes_max: usize,
    turns: Semaphore,
}

/// A body as received.
pub(super) struct ReceivedBody {
    bytes: Vec<u8>,
    is_gzip: bool,
    /// The body's part of the byte budget, if it did not come at once.
    held: Option<HeldBytes>,
}

impl Bodies {
    pub(super) fn new(body_bytes_max: usize) -> Self {
        let budget_bytes_max = BODIES_BYTES_MAX.max(2 * body_bytes_max);
        Self {
            budget: ByteBudget::new(budget_bytes_max),
            budget_bytes_max,
            body_bytes_max,
            turns: Semaphore::new(usize::try_from(TURN_BYTES).unwrap_or(usize::MAX)),
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// It is too large or too slow, has an unknown coding, was evicted, or its client left.
    pub(super) async fn read(
        &self,
        request: Request<Body>,
    ) -> Result<ReceivedBody, PushRefusal> {
        let is_gzip = is_gzip(request.headers())?;
        let received = ReceivedBody { bytes: Vec::new(), is_gzip, held: None };
        let whole = self.whole(request.into_body(), received);
        let whole = tokio::time::timeout(BODY_WITHIN, whole).await;
        whole.map_err(|_| PushRefusal::Slow(BODY_WITHIN))?
    }

    async fn whole(
        &self,
        mut body: Body,
        mut received: ReceivedBody,
    ) -> Result<ReceivedBody, PushRefusal> {
        loop {
            // Most bodies come together with their head: these take no part of the budget.
            let frame = if let Some(frame) = body.frame().now_or_never() {
                frame
            } else {
                let held = received.held.get_or_insert_with(|| {
                    self.budget.hold(received.bytes.len(), Arc::default())
                });
                tokio::select! {
                    biased;
                    () = held.evicted() => return Err(self.flooded()),
                    frame = body.frame() => frame,
                }
            };
            let Some(frame) = frame else { return Ok(received) };
            let frame = frame.map_err(|error| PushRefusal::Interrupted(error.to_string()))?;
            if let Some(chunk) = frame.data_ref() {
                self.take(chunk, &body, &mut received)?;
            }
        }
    }

    fn take(
        &self,
        chunk: &[u8],
        body: &Body,
        received: &mut ReceivedBody,
    ) -> Result<(), PushRefusal> {
        let ReceivedBody { bytes, held, .. } = received;
        let after = bytes.len().saturating_add(chunk.len());
        if after > self.body_bytes_max {
            return Err(PushRefusal::TooLarge(self.body_bytes_max));
        }
        if let Some(held) = held {
            held.grow(chunk.len());
        }
        if after > bytes.capacity() {
            // Memory that is not written to takes no physical memory. With this capacity, the
            // body need not be copied as it grows.
            let rest = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            let rest = rest.min(self.body_bytes_max.saturating_sub(after));
            bytes.reserve_exact(chunk.len().saturating_add(rest));
        }
        bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Waits until a body may be decoded. The turn lasts until the engine has answered, so that
    /// decoded batches do not accumulate in addition to those in the queue.
    ///
    /// # Errors
    /// The body was evicted meanwhile.
    pub(super) async fn turn(
        &self,
        body: &ReceivedBody,
    ) -> Result<SemaphorePermit<'_>, PushRefusal> {
        let n_bytes = u32::try_from(body.bytes.len()).unwrap_or(u32::MAX);
        let n_bytes = if body.is_gzip { TURN_BYTES } else { n_bytes.clamp(1, TURN_BYTES) };
        let turn = self.turns.acquire_many(n_bytes);
        let turn = match &body.held {
            None => turn.await,
            Some(held) => tokio::select! {
                biased;
                turn = turn => turn,
                () = held.evicted() => return Err(self.flooded()),
            },
        };
        // The semaphore is never closed.
        turn.map_err(|_| self.flooded())
    }

    fn flooded(&self) -> PushRefusal {
        PushRefusal::Flooded(self.budget_bytes_max)
    }
}

impl ReceivedBody {
    /// Returns the content, decompressed up to a limit.
    ///
    /// # Errors
    /// It is longer, or not gzip although it should be.
    pub(super) async fn decoded(&self, bytes_max: usize) -> Result<Cow<'_, [u8]>, PushRefusal> {
        if !self.is_gzip {
            return Ok(Cow::Borrowed(&self.bytes));
        }
        let mut decoder = MultiGzDecoder::new(Sips::of(&self.bytes));
        // If they are right, the last bytes are the length of the content.
        let length = self.bytes.last_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let mut content = Vec::with_capacity(length.min(bytes_max).saturating_add(READ_BYTES));
        loop {
            let rest = bytes_max.saturating_add(1).saturating_sub(content.len());
            let rest = u64::try_from(rest.min(UNPACKED_AT_ONCE)).unwrap_or(u64::MAX);
            // Content that was decompressed before an error stays.
            let read = decoder.by_ref().take(rest).read_to_end(&mut content);
            if content.len() > bytes_max {
                return Err(PushRefusal::TooLarge(bytes_max));
            }
            match read {
                Ok(0) => return Ok(Cow::Owned(content)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    decoder.get_mut().n_left = PACKED_AT_ONCE;
                }
                Err(error) => return Err(PushRefusal::NoGzip(error.to_string())),
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Bytes that can be read a part at a time: after each part, a read would block until `n_left`
/// is set again.
struct Sips<'b> {
    rest: &'b [u8],
    n_left: usize,
}

impl<'b> Sips<'b> {
    fn of(bytes: &'b [u8]) -> Self {
        Self { rest: bytes, n_left: PACKED_AT_ONCE }
    }
}

impl Read for Sips<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n_read = self.fill_buf()?.read(into)?;
        self.consume(n_read);
        Ok(n_read)
    }
}

impl BufRead for Sips<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.n_left == 0 && !self.rest.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.rest.get(..self.n_left).unwrap_or(self.rest))
    }

    fn consume(&mut self, n_bytes: usize) {
        self.rest = self.rest.get(n_bytes..).unwrap_or_default();
        self.n_left = self.n_left.saturating_sub(n_bytes);
    }
}

/// Returns whether a body is compressed.
///
/// # Errors
/// It has another coding, or several.
fn is_gzip(headers: &HeaderMap) -> Result<bool, PushRefusal> {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let coding = codings.next().unwrap_or(b"identity");
    let is = |name: &[u8]| coding.eq_ignore_ascii_case(name);
    if codings.next().is_some() || !(is(b"identity") || is(b"gzip") || is(b"x-gzip")) {
        return Err(PushRefusal::Encoding(String::from_utf8_lossy(coding).into_owned()));
    }
    Ok(!is(b"identity"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::io::Write;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::{PACKED_AT_ONCE, ReceivedBody};
    use crate::input::push::problem::PushRefusal;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Decodes a compressed body. Also returns how often others had a turn.
    fn decoded(bytes: Vec<u8>) -> (Result<Vec<u8>, PushRefusal>, usize) {
        let body = ReceivedBody { bytes, is_gzip: true, held: None };
        let mut future = pin!(body.decoded(1 << 20));
        let mut context = Context::from_waker(Waker::noop());
        for n_turns in 0.. {
            if let Poll::Ready(content) = future.as_mut().poll(&mut context) {
                return (content.map(Cow::into_owned), n_turns);
            }
        }
        unreachable!("polled without end")
    }

    #[test]
    fn members_that_hold_nothing_leave_others_their_turn() {
        let bytes = packed(b"").repeat(20_000);
        let n_turns_min = bytes.len() / PACKED_AT_ONCE - 1;
        let (content, n_turns) = decoded(bytes);
        assert_eq!(content.unwrap(), b"");
        assert!(n_turns >= n_turns_min, "{n_turns} turns, at least {n_turns_min}");
    }

    #[test]
    fn members_are_joined_wherever_a_turn_ends_between_or_within_them() {
        let square = |i: u32| i.wrapping_mul(i).wrapping_mul(2_654_435_761);
        let noise: Vec<u8> = (0..6000).map(|i| square(i).to_be_bytes()[1]).collect();
        for n_before in 0..PACKED_AT_ONCE / 16 {
            let content = [vec![b'x'; n_before * 9], noise.clone()].concat();
            let bytes = content.chunks(n_before * 7 + 100).flat_map(packed).collect();
            let (joined, n_turns) = decoded(bytes);
            assert!(joined.unwrap() == content, "{n_before}");
            assert!(n_turns > 0);
        }
        let whole = packed(&noise);
        for n_bytes in
            [10, PACKED_AT_ONCE - 1, PACKED_AT_ONCE, PACKED_AT_ONCE + 1, whole.len() - 1]
        {
            let (content, _) = decoded(whole[..n_bytes].to_vec());
            assert!(matches!(content, Err(PushRefusal::NoGzip(_))), "{n_bytes}");
        }
    }
}
