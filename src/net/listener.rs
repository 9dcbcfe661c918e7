//! The sources of connections: a TCP port, over which TLS may be spoken, or a Unix socket.

use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::net::access::Gate;
use crate::net::peer::Peer;
use crate::net::tls::TlsConnection;

/// A source of connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A new connection.
pub(super) struct NewConnection {
    pub(super) stream: Pin<Box<dyn Stream>>,
    pub(super) peer: Peer,
}

impl Listener {
    pub(super) async fn accept(&self, gate: &Gate) -> io::Result<NewConnection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let stream: Pin<Box<dyn Stream>> = match gate.tls() {
                    Some(tls) => Box::pin(TlsConnection::new(stream, tls, gate)),
                    None => Box::pin(stream),
                };
                let peer = Peer::Address(address.ip().to_canonical());
                Ok(NewConnection { stream, peer })
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred().map_or(Peer::Unknown, |peer| Peer::Process {
                    uid: peer.uid(),
                    pid: peer.pid().unwrap_or_default(),
                });
                Ok(NewConnection { stream: Box::pin(stream), peer })
            }
        }
    }
}

/// A connection of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}
