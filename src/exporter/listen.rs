//! Binds the sockets that the exporter listens on.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::Mode;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use crate::config::keys;
use crate::config::settings::{PUSH_PORT_DEFAULT, PushSocket, StartMode};
use crate::exporter::startup::Startup;
use crate::net::listener::Listener;
use crate::net::server::UNSENT_BYTES_MAX;
use crate::store::{atomic, open, writable};

/// The addresses that the exporter listens on.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The addresses of the page and the metrics.
    pub web: Vec<SocketAddr>,
    /// The addresses of the push endpoint.
    pub push: Vec<SocketAddr>,
    /// The push endpoint's Unix socket.
    pub socket: Option<PathBuf>,
    /// True if the addresses speak TLS; the socket does not.
    pub speaks_tls: bool,
    /// The features that the exporter runs without, a sentence each.
    pub problems: Vec<String>,
}

impl Addresses {
    /// Returns the URL of one of the addresses.
    pub fn url(&self, address: SocketAddr) -> String {
        format!("{}://{address}", self.scheme())
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.speaks_tls { "https" } else { "http" }
    }
}

/// Returns the address at which a person on this host opens what listens on an address. Nobody
/// can open the address of all interfaces: loopback stands for it.
pub fn opened(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}

/// Number of ports above a taken one that are tried.
const NEXT_PORTS: u16 = 64;

/// Number of connections that the system queues until the exporter accepts them.
const BACKLOG: u32 = 1024;

/// Time that an exporter waits for the lock of its socket.
const LOCKED_WITHIN: Duration = Duration::from_secs(1);
/// Time between two attempts to lock it.
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// The purpose of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerKind {
    /// The name of the listener in the log.
    pub(super) what: &'static str,
    /// The setting of its addresses.
    pub(super) setting: &'static str,
    /// Set when a lenient exporter listens on a free port if its own is taken.
    pub(super) takes_free_port: bool,
}

/// The page and the metrics.
pub(super) const WEB: ListenerKind =
    ListenerKind { what: "web", setting: keys::WEB_ADDRESS, takes_free_port: true };
/// The push endpoint, whose clients know one address.
pub(super) const PUSH: ListenerKind =
    ListenerKind { what: "push", setting: keys::PUSH_ADDRESS, takes_free_port: false };

/// Listens on every address. Returns the listeners and their addresses, with ports chosen by
/// the system.
pub(super) fn listen(
    kind: ListenerKind,
    addresses: &[SocketAddr],
    startup: &mut Startup,
) -> anyhow::Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let ListenerKind { what, setting, .. } = kind;
    let mut listeners = Vec::new();
    let mut bound = Vec::new();
    for address in addresses {
        let binding = explained(kind, *address, bind(kind, *address, startup));
        let Some(listener) = startup.started(setting, binding) else { continue };
        let address = listener.local_addr()?;
        tracing::info!(%address, what, "listening");
        listeners.push(Listener::Tcp(listener));
        bound.push(address);
    }
    Ok((listeners, bound))
}

/// Checks that an exporter could listen on an address. Takes it from none that starts meanwhile.
pub(super) fn may_listen(kind: ListenerKind, address: SocketAddr) -> anyhow::Result<()> {
    let bound = socket_at(address).map_err(anyhow::Error::from);
    explained(kind, address, bound.map(drop))
}

/// Adds to an error what it is about, and the remedy.
fn explained<T>(
    kind: ListenerKind,
    address: SocketAddr,
    result: anyhow::Result<T>,
) -> anyhow::Result<T> {
    result
        .map_err(|error| match remedy(kind, address, &error) {
            Some(remedy) => error.context(remedy),
            None => error,
        })
        .with_context(|| format!("cannot listen on {address} ({})", kind.what))
}

/// Returns the remedy for an address that another program has, that needs a right, or that is
/// not one of this machine; `None` of another error.
fn remedy(kind: ListenerKind, address: SocketAddr, error: &anyhow::Error) -> Option<String> {
    let (ip, port, setting) = (address.ip(), address.port(), kind.setting);
    let free = SocketAddr::new(ip, 0);
    match error.downcast_ref::<io::Error>()?.kind() {
        ErrorKind::AddrInUse => Some(format!(
            "another program listens on port {port}, perhaps another stepmem: stop it, or take another port with --{setting} \
             ({free} takes any that is free)"
        )),
        ErrorKind::PermissionDenied => Some(format!(
            "this user may not listen on port {port} (below net.ipv4.ip_unprivileged_port_start, usually 1024, that needs \
             CAP_NET_BIND_SERVICE): take another port with --{setting}"
        )),
        ErrorKind::AddrNotAvailable => Some(format!(
            "{ip} is not an address of this machine: give --{setting} one that is, or :{port} for all"
        )),
        _ => None,
    }
}

fn bind(
    kind: ListenerKind,
    address: SocketAddr,
    startup: &mut Startup,
) -> anyhow::Result<TcpListener> {
    match bind_to(address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && kind.takes_free_port => {
            let listener = match startup.mode() {
                StartMode::Strict => return Err(error.into()),
                StartMode::Sidecar => bind_to(SocketAddr::new(address.ip(), 0))?,
                StartMode::Command => bind_above(address)?,
            };
            let port = listener.local_addr()?.port();
            startup.note(kind.setting, &format!("{address} is taken; port {port} instead"));
            Ok(listener)
        }
        bound => Ok(bound?),
    }
}

/// Binds the next free port, so that a person finds it again, but never the one to which clients
/// push by default. Binds any free one if the next [`NEXT_PORTS`] are taken.
fn bind_above(address: SocketAddr) -> io::Result<TcpListener> {
    let next = (1..=NEXT_PORTS).filter_map(|more| address.port().checked_add(more));
    for port in next.filter(|port| *port != PUSH_PORT_DEFAULT) {
        match bind_to(SocketAddr::new(address.ip(), port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    bind_to(SocketAddr::new(address.ip(), 0))
}

/// Binds an address, whose connections get a send buffer of [`UNSENT_BYTES_MAX`].
fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket_at(address)?;
    socket.set_send_buffer_size(UNSENT_BYTES_MAX)?;
    socket.listen(BACKLOG)
}

/// Returns a socket at an address on which no other listens.
fn socket_at(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A socket that this process listens on, and its lock.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    /// Held until the process ends; `None` where another process holds it.
    _lock: Option<File>,
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, unless another took its place.
    ///
    /// # Errors
    /// The file system refused.
    pub(super) fn remove(&self) -> io::Result<()> {
        let metadata = std::fs::symlink_metadata(&self.path)?;
        if (metadata.dev(), metadata.ino()) == self.identity {
            std::fs::remove_file(&self.path)
        } else {
            Err(io::Error::other("another socket has replaced it and stays"))
        }
    }
}

/// Binds a Unix socket; replaces one that no process listens on.
pub(super) async fn bind_socket(
    PushSocket { path, mode }: &PushSocket,
) -> anyhow::Result<(Listener, SocketFile)> {
    let shown = path.display();
    let lock = lock_of(path).await;
    if is_abandoned(path).await? {
        std::fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
    }
    // The socket has its mode from its first moment.
    let umask = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    let listener = bound.with_context(|| format!("cannot listen on {shown} (push)"))?;
    let metadata = std::fs::symlink_metadata(path)?;
    let identity = (metadata.dev(), metadata.ino());
    tracing::info!(address = %shown, what = "push", "listening");
    Ok((Listener::Unix(listener), SocketFile { path: path.clone(), identity, _lock: lock }))
}

/// Returns whether there is a socket at a path that no process listens on; false if nothing is
/// there.
async fn is_abandoned(path: &Path) -> anyhow::Result<bool> {
    let shown = path.display();
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(false) };
    anyhow::ensure!(
        metadata.file_type().is_socket(),
        "{shown} exists and is not a socket: remove it, or set --{} to another path",
        keys::PUSH_SOCKET
    );
    // A process that is busy refuses in another way, or not at all.
    let connecting = UnixStream::connect(path).await;
    let is_abandoned = connecting.is_err_and(|error| {
        [ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&error.kind())
    });
    anyhow::ensure!(is_abandoned, "another process listens on {shown}");
    Ok(true)
}

/// Checks that an exporter could bind a Unix socket.
pub(super) async fn may_bind(path: &Path) -> anyhow::Result<()> {
    is_abandoned(path).await?;
    writable::file(path).with_context(|| format!("cannot listen on {} (push)", path.display()))
}

/// Locks the file next to a socket, so that of exporters that start at the same time one finds
/// it dead. Only that: who can read the file can lock it, also through a mount that is
/// read-only, so that the exporter starts without the lock after [`LOCKED_WITHIN`].
async fn lock_of(path: &Path) -> Option<File> {
    let lock_path = atomic::beside(path, "lock");
    let lock = open::lock_file(&lock_path).ok()?;
    let began = tokio::time::Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Some(lock),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCKED_WITHIN => {
                tokio::time::sleep(LOCK_EVERY).await;
            }
            Err(TryLockError::WouldBlock) => {
                let lock = lock_path.display();
                tracing::warn!(%lock, "another process holds the lock of the push socket");
                return None;
            }
            // A file system without locks.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(lock = %lock_path.display(), %error, "the push socket has no lock");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use crate::exporter::listen::{WEB, explained};

    #[test]
    fn address_that_cannot_be_had_is_said_with_its_reason_and_setting() {
        for (error, why) in [
            (ErrorKind::AddrInUse, "another program listens on port 80"),
            (ErrorKind::PermissionDenied, "this user may not listen on port 80 (below net."),
            (ErrorKind::AddrNotAvailable, "10.0.0.9 is not an address of this machine"),
        ] {
            let failed: anyhow::Result<()> = Err(io::Error::from(error).into());
            let error = explained(WEB, "10.0.0.9:80".parse().unwrap(), failed).unwrap_err();
            let said = format!("{error:#}");
            for part in ["cannot listen on 10.0.0.9:80 (web): ", why, "--web.listen-address"] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
    }
}
