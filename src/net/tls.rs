//! An encrypted connection whose handshake is part of its first reads. The handshake thus holds
//! up no other connection, and counts into a client's time for its first request.

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

/// Bytes that a client may send until its handshake is complete. 16 KiB are for a chain of
/// certificates. The rest is for bytes that arrive along with its end: the first record of a
/// request and the beginning of the second.
pub const HANDSHAKE_BYTES_MAX: usize = 40 * 1024;
/// Bytes of one connection that may wait to be sent.
pub const SEND_BYTES_MAX: usize = 16 * 1024;

/// A TCP connection that speaks TLS.
pub(super) struct TlsConnection {
    state: TlsState,
    counts: Arc<AccessCounts>,
}

enum TlsState {
    Handshake(Box<Accept<Limited>>),
    Open(Box<TlsStream<Limited>>),
    /// The handshake failed.
    Closed,
}

impl TlsConnection {
    pub(super) fn new(stream: TcpStream, config: Arc<ServerConfig>, gate: &Gate) -> Self {
        let stream = Limited { stream, n_left: Some(HANDSHAKE_BYTES_MAX) };
        let accept = TlsAcceptor::from(config)
            .accept_with(stream, |session| session.set_buffer_limit(Some(SEND_BYTES_MAX)));
        Self { state: TlsState::Handshake(Box::new(accept)), counts: Arc::clone(&gate.counts) }
    }

    /// Returns the open connection, once its handshake is complete.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<Limited>>>> {
        if let TlsState::Handshake(accept) = &mut self.state {
            self.state = match ready!(Pin::new(accept.as_mut()).poll(cx)) {
                Ok(mut open) => {
                    open.get_mut().0.n_left = None;
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
        ready!(self.poll_open(cx))?.poll_read(cx, buffer)
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

    /// Writes are vectored: else the HTTP parser copies every answer into a buffer of the
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
