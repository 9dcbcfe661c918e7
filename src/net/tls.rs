//! An encrypted connection whose handshake is part of its first reads. The handshake thus holds
//! up no other connection, and counts into a client's time for its first request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::net::access::{AccessCounts, Gate};
use crate::net::half_records::{FREE_BYTES, HalfRecord, HalfRecords};

/// Bytes that a client may send until its handshake is complete. 16 KiB are for a chain of
/// certificates. The rest is for bytes that arrive along with its end: the first record of a
/// request and the beginning of the second.
pub const HANDSHAKE_BYTES_MAX: usize = 40 * 1024;
/// Bytes of one connection that may wait to be sent.
pub const SEND_BYTES_MAX: usize = 16 * 1024;

/// Bytes that a record takes in addition to its content, at most.
const FRAME_BYTES: usize = 29;

/// A TCP connection that speaks TLS.
pub(super) struct TlsConnection {
    state: TlsState,
    counts: Arc<AccessCounts>,
    half_records: Arc<HalfRecords>,
    /// The entry for bytes that have arrived and are not read yet, where they are many.
    half: Option<HalfRecord>,
    /// Closes the connection when it is notified.
    evict: Arc<Notify>,
}

enum TlsState {
    Handshake(Box<Accept<Limited>>),
    Open(Box<TlsStream<Limited>>),
    /// The handshake failed.
    Closed,
}

impl TlsConnection {
    pub(super) fn new(
        stream: TcpStream,
        config: Arc<ServerConfig>,
        gate: &Gate,
        evict: Arc<Notify>,
    ) -> Self {
        let stream = Limited { stream, n_left: Some(HANDSHAKE_BYTES_MAX), n_held: 0 };
        let accept = TlsAcceptor::from(config)
            .accept_with(stream, |session| session.set_buffer_limit(Some(SEND_BYTES_MAX)));
        Self {
            state: TlsState::Handshake(Box::new(accept)),
            counts: Arc::clone(&gate.counts),
            half_records: Arc::clone(&gate.half_records),
            half: None,
            evict,
        }
    }

    fn limited(&mut self) -> Option<&mut Limited> {
        match &mut self.state {
            TlsState::Handshake(accept) => accept.get_mut(),
            TlsState::Open(open) => Some(open.get_mut().0),
            TlsState::Closed => None,
        }
    }

    /// Enters unread bytes among the half records, or takes them out, after `n_read` bytes of
    /// them were read.
    fn enter_half(&mut self, n_read: usize) {
        let n_held = self.limited().map_or(0, |limited| {
            limited.n_held = limited.n_held.saturating_sub(n_read);
            limited.n_held
        });
        if n_held <= FREE_BYTES {
            self.half = None;
        } else if self.half.is_none() {
            let (half, has_evicted) = self.half_records.enter(Arc::clone(&self.evict));
            self.counts.add_records(has_evicted.into());
            self.half = Some(half);
        }
    }

    /// Returns the open connection, once its handshake is complete.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<Limited>>>> {
        if let TlsState::Handshake(accept) = &mut self.state {
            self.state = match ready!(Pin::new(accept.as_mut()).poll(cx)) {
                Ok(mut open) => {
                    let (limited, session) = open.get_mut();
                    limited.n_left = None;
                    // Bytes that were read along with its end, without the beginning of a
                    // further record.
                    let state = session.process_new_packets();
                    limited.n_held = state.map_or(0, |state| state.plaintext_bytes_to_read());
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
        let n_read = buffer.filled().len().saturating_sub(n_before);
        // More may have come with these bytes, and may stay while an answer is written.
        self.enter_half(if polled.is_ready() { n_read + FRAME_BYTES } else { 0 });
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write_vectored(cx, parts)
    }

    /// Without vectored writes, the HTTP parser copies every answer into a buffer of the
    /// connection.
    fn is_write_vectored(&self) -> bool {
        true
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

/// A stream with a limit on the bytes that are read.
struct Limited {
    stream: TcpStream,
    /// Number of bytes that may still come; `None` for any number.
    n_left: Option<usize>,
    /// Number of bytes that arrived, less those that were read.
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
