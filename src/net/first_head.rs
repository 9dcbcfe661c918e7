//! The first head of a connection, read into no more memory than it takes. The parser has
//! buffers of 16 KiB, which a client that sends nothing, or half a head, does not get.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose first head, of at most `SIZE` bytes, is read before the rest.
pub(super) struct HeadFirst<S, const SIZE: usize> {
    stream: S,
    /// The bytes that were read from the stream and not taken yet.
    bytes: Vec<u8>,
    n_taken: usize,
}

impl<S: AsyncRead + Unpin, const SIZE: usize> HeadFirst<S, SIZE> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, bytes: Vec::new(), n_taken: 0 }
    }

    /// Waits until the first head is complete, cannot become one, or ends.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn head(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // On the stack, so that it takes no memory while the server waits for the client.
            let mut scratch = [MaybeUninit::uninit(); SIZE];
            let mut buffer = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let new = buffer.filled();
            if new.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let n_before = self.bytes.len();
            self.bytes.reserve_exact(new.len());
            self.bytes.extend_from_slice(new);
            if self.bytes.len() >= SIZE || is_settled(&self.bytes, n_before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Returns whether a head is complete, or cannot become one, by the bytes after its first
/// `n_before`.
fn is_settled(head: &[u8], n_before: usize) -> bool {
    let is_odd = |byte: &u8| byte.is_ascii_control() && !b"\r\n\t".contains(byte);
    let new = head.get(n_before..).unwrap_or_default();
    let tail = head.get(n_before.saturating_sub(3)..).unwrap_or_default();
    let is_whole = memchr::memchr_iter(b'\n', tail).any(|at| {
        let rest = tail.get(at + 1..).unwrap_or_default();
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
    });
    is_whole || new.iter().any(is_odd)
}

impl<S: AsyncRead + Unpin, const SIZE: usize> AsyncRead for HeadFirst<S, SIZE> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = self.bytes.get(self.n_taken..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let n_bytes = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..n_bytes).unwrap_or_default());
        self.n_taken += n_bytes;
        if self.n_taken == self.bytes.len() {
            self.bytes = Vec::new();
            self.n_taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, const SIZE: usize> AsyncWrite for HeadFirst<S, SIZE> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::net::first_head::HeadFirst;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Writes parts until the head is complete or invalid. Returns how many parts that took,
    /// and checks that no byte is lost.
    async fn parts_until_settled(parts: &[&[u8]]) -> usize {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let mut first = HeadFirst::<_, 8192>::new(server);
        let mut n_parts = 0;
        for part in parts {
            client.write_all(part).await.unwrap();
            n_parts += 1;
            let head = std::pin::pin!(first.head());
            if futures_util::poll!(head).is_ready() {
                break;
            }
        }
        client.write_all(b"rest").await.unwrap();
        drop(client);
        let mut all = Vec::new();
        first.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&parts[..n_parts].concat()[..], b"rest"].concat());
        n_parts
    }

    #[test]
    fn head_is_handed_on_when_it_is_whole_too_long_or_none() {
        for (parts, expected) in [
            (&[&b"GET / HTTP/1.1\r\n\r\nbody"[..], b"x"][..], 1),
            (&[b"GET / HTTP/1.1\r\nA: b\r", b"\n", b"\r", b"\n", b"x"], 4),
            (&[b"GET / HTTP/1.1\n", b"\n", b"x"], 2),
            (&[b"\x16\x03\x01", b"x"], 1),
            (&[&[b'a'; 8191], b"a", b"x"], 2),
            (&[b"GET / HTTP/1.1\r\n", b"A: b\r\n", b"C: d\r\n"], 3),
        ] {
            assert_eq!(block_on(parts_until_settled(parts)), expected, "{parts:?}");
        }
    }
}
