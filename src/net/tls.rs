//! An encrypted connection whose handshake is part of its first reads, so that it holds up no other connection and counts
//! into the time that a client has for its first request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::net::access::{AccessCounts, Gate};
use crate::net::half_records::{FREE_BYTES, HalfRecord, HalfRecords};

/// What a client may send until its handshake is complete, in bytes: 16 KiB for a chain of certificates; and what may come, and
/// be read, along with its end, the first record of a request and the beginning of the second.
pub const HANDSHAKE_BYTES_MAX: usize = 40 * 1024;
/// What is held of one connection to be sent, in bytes.
pub const SEND_BYTES_MAX: usize = 16 * 1024;

/// What a record takes beside its content, in bytes, where it takes most.
const FRAME_BYTES: usize = 29;

/// A TCP connection that speaks TLS.
pub(super) struct TlsConnection {
    state: TlsState,
    counts: Arc<AccessCounts>,
    half_records: Arc<HalfRecords>,
    /// What came and could not be read yet, where that is much.
    half: Option<HalfRecord>,
}

enum TlsState {
    Handshake(Box<Accept<Limited>>),
    Open(Box<TlsStream<Limited>>),
    /// The handshake failed.
    Closed,
}

impl TlsConnection {
    pub(super) fn new(stream: TcpStream, config: Arc<ServerConfig>, gate: &Gate) -> Self {
        let stream = Limited { stream, n_left: Some(HANDSHAKE_BYTES_MAX), n_held: 0 };
        let accept = TlsAcceptor::from(config)
            .accept_with(stream, |session| session.set_buffer_limit(Some(SEND_BYTES_MAX)));
        Self {
            state: TlsState::Handshake(Box::new(accept)),
            counts: Arc::clone(&gate.counts),
            half_records: Arc::clone(&gate.half_records),
            half: None,
        }
    }

    fn limited(&mut self) -> Option<&mut Limited> {
        match &mut self.state {
            TlsState::Handshake(accept) => accept.get_mut(),
            TlsState::Open(open) => Some(open.get_mut().0),
            TlsState::Closed => None,
        }
    }

    /// Waits for the rest of a record or a handshake, for as long as what came of it may be held.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.limited().is_none_or(|limited| limited.n_held <= FREE_BYTES) {
            return Poll::Pending;
        }
        let half = self.half.get_or_insert_with(|| self.half_records.enter());
        ready!(half.poll_evicted(cx));
        self.counts.add_record();
        self.half = None;
        self.state = TlsState::Closed;
        Poll::Ready(Err(io::Error::other("too many records are not whole")))
    }

    /// Returns the open connection, once its handshake is complete.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<Limited>>>> {
        if let TlsState::Handshake(accept) = &mut self.state {
            self.state = match ready!(Pin::new(accept.as_mut()).poll(cx)) {
                Ok(mut open) => {
                    let limited = open.get_mut().0;
                    (limited.n_left, limited.n_held) = (None, 0);
                    TlsState::Open(Box::new(open))
                }
                Err(error) => {
                    self.counts.add_handshake();
                    tracing::debug!(%error, "TLS handshake failed");
                    self.state = TlsState::Closed;
                    return Poll::Ready(Err(error));
                }
            };
        }
        Poll::Ready(match &mut self.state {
            TlsState::Open(open) => Ok(Pin::new(open.as_mut())),
            TlsState::Handshake(_) | TlsState::Closed => {
                Err(io::ErrorKind::NotConnected.into())
            }
        })
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buffer.filled().len();
        let polled = match self.poll_open(cx) {
            Poll::Ready(open) => open?.poll_read(cx, buffer),
            Poll::Pending => Poll::Pending,
        };
        if polled.is_pending() {
            return self.poll_rest(cx);
        }
        // More may have come with what is read now.
        let n_read = buffer.filled().len().saturating_sub(n_before) + FRAME_BYTES;
        let n_held = self.limited().map_or(0, |limited| {
            limited.n_held = limited.n_held.saturating_sub(n_read);
            limited.n_held
        });
        if n_held <= FREE_BYTES {
            self.half = None;
        }
        polled
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            TlsState::Open(open) => Pin::new(open.as_mut()).poll_flush(cx),
            TlsState::Handshake(_) | TlsState::Closed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            TlsState::Open(open) => Pin::new(open.as_mut()).poll_shutdown(cx),
            TlsState::Handshake(_) | TlsState::Closed => Poll::Ready(Ok(())),
        }
    }
}

/// A stream of which only so much is read.
struct Limited {
    stream: TcpStream,
    /// How many bytes may still come; `None` for any number.
    n_left: Option<usize>,
    /// Bytes that came, less what was read of them.
    n_held: usize,
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let n_read = buffer.filled().len().saturating_sub(before);
        self.n_held += n_read;
        if let Some(n_left) = &mut self.n_left {
            *n_left = n_left.checked_sub(n_read).ok_or_else(|| {
                io::Error::other(format!("the handshake exceeds {HANDSHAKE_BYTES_MAX} bytes"))
            })?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
