//! Binds the sockets that the exporter listens on.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::Context;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::app::startup::Startup;
use crate::config::keys;
use crate::config::settings::{PushSocket, StartMode};
use crate::net::server::Listener;

/// The addresses that the exporter listens on.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Of the page and the metrics.
    pub web: Vec<SocketAddr>,
    /// Of the push endpoint.
    pub push: Vec<SocketAddr>,
    /// The push endpoint's Unix socket.
    pub socket: Option<PathBuf>,
    /// What the exporter does without, a sentence each.
    pub problems: Vec<String>,
}

/// How many ports above a taken one are tried.
const NEXT_PORTS: u16 = 64;

/// What a listener is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerKind {
    /// Its name in the log.
    pub(super) what: &'static str,
    /// The setting of its addresses.
    pub(super) setting: &'static str,
    /// Whether a lenient exporter listens on a free port where its own is taken.
    pub(super) takes_free_port: bool,
}

/// The page and the metrics.
pub(super) const WEB: ListenerKind =
    ListenerKind { what: "web", setting: keys::WEB_ADDRESS, takes_free_port: true };
/// The push endpoint, whose clients know one address.
pub(super) const PUSH: ListenerKind =
    ListenerKind { what: "push", setting: keys::PUSH_ADDRESS, takes_free_port: false };

/// Listens on every address. Returns the listeners and their addresses, with ports chosen by the system.
pub(super) async fn listen(
    kind: ListenerKind,
    addresses: &[SocketAddr],
    startup: &mut Startup,
) -> anyhow::Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let ListenerKind { what, setting, .. } = kind;
    let mut listeners = Vec::new();
    let mut bound = Vec::new();
    for address in addresses {
        let binding = bind(kind, *address, startup)
            .await
            .with_context(|| format!("cannot listen on {address} ({what})"));
        let Some(listener) = startup.started(setting, binding)? else { continue };
        let address = listener.local_addr()?;
        tracing::info!(%address, what, "listening");
        listeners.push(Listener::Tcp(listener));
        bound.push(address);
    }
    Ok((listeners, bound))
}

async fn bind(
    kind: ListenerKind,
    address: SocketAddr,
    startup: &mut Startup,
) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if error.kind() == ErrorKind::AddrInUse && kind.takes_free_port => {
            let listener = match startup.mode() {
                StartMode::Strict => return Err(error.into()),
                StartMode::Sidecar => {
                    TcpListener::bind(SocketAddr::new(address.ip(), 0)).await?
                }
                StartMode::Command => bind_above(address).await?,
            };
            let port = listener.local_addr()?.port();
            startup.note(kind.setting, &format!("{address} is taken; port {port} instead"));
            Ok(listener)
        }
        bound => Ok(bound?),
    }
}

/// Binds the next free port, so that a person finds it again; any free one if the next [`NEXT_PORTS`] are taken.
async fn bind_above(address: SocketAddr) -> io::Result<TcpListener> {
    for port in (1..=NEXT_PORTS).filter_map(|more| address.port().checked_add(more)) {
        match TcpListener::bind(SocketAddr::new(address.ip(), port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
}

/// Binds a Unix socket; replaces one that no process listens on.
pub(super) async fn bind_socket(
    PushSocket { path, mode }: &PushSocket,
) -> anyhow::Result<Listener> {
    let shown = path.display();
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        anyhow::ensure!(metadata.file_type().is_socket(), "{shown} exists and is not a socket");
        anyhow::ensure!(
            UnixStream::connect(path).await.is_err(),
            "another process listens on {shown}"
        );
        std::fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {shown} (push)"))?;
    std::fs::set_permissions(path, Permissions::from_mode(*mode))
        .with_context(|| format!("cannot set the mode of {shown}"))?;
    tracing::info!(address = %shown, what = "push", "listening");
    Ok(Listener::Unix(listener))
}
