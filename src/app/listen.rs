//! Binds the sockets that the exporter listens on.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use anyhow::Context;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::net::server::Listener;

/// Where the exporter listens.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The page and the metrics.
    pub web: Vec<SocketAddr>,
    /// Pushes over TCP.
    pub push: Vec<SocketAddr>,
}

/// Listens on every address, and gives the addresses with the ports that the system chose.
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

/// Binds a Unix socket in place of one that nobody listens on any more.
pub(super) async fn bind_socket(path: &Path, mode: u32) -> anyhow::Result<Listener> {
    let shown = path.display();
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        anyhow::ensure!(metadata.file_type().is_socket(), "{shown} exists and is no socket");
        anyhow::ensure!(
            UnixStream::connect(path).await.is_err(),
            "another process listens on {shown}"
        );
        std::fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {shown} (push)"))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {shown}"))?;
    tracing::info!(address = %shown, what = "push", "listening");
    Ok(Listener::Unix(listener))
}
