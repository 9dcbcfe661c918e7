//! Binds the sockets that the exporter listens on.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use anyhow::Context;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::config::settings::PushSocket;
use crate::net::server::Listener;

/// The addresses that the exporter listens on.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Of the page and the metrics.
    pub web: Vec<SocketAddr>,
    /// Of the push endpoint.
    pub push: Vec<SocketAddr>,
}

/// Listens on every address. Returns the listeners and their addresses, with ports chosen by the system.
pub(super) async fn listen(
    what: &'static str,
    addresses: &[SocketAddr],
) -> anyhow::Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let mut listeners = Vec::new();
    let mut bound = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} ({what})"))?;
        let address = listener.local_addr()?;
        tracing::info!(%address, what, "listening");
        listeners.push(Listener::Tcp(listener));
        bound.push(address);
    }
    Ok((listeners, bound))
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
