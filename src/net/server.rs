//! An HTTP/1.1 server with bounds on the number of connections and on how long each may idle or stall. It knows no
//! route: inputs and outputs bring theirs.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, watch};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

/// Connections that one listener holds. One more evicts the connection that has been idle for longest.
pub const CONNECTIONS_MAX: usize = 256;
/// A new client must send the head of its first request within this time.
pub const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed. Longer than a usual scrape interval, so that Prometheus
/// keeps its connection.
pub const IDLE_MAX: Duration = Duration::from_secs(90);
/// A client that reads nothing of its response for this long is disconnected.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// The largest request head, and the size of a connection's read buffer, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long requests in flight may take after the server was stopped.
pub const STOP_WITHIN: Duration = Duration::from_secs(5);
/// The pause before accepting again after the system ran out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A source of connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The process at the other end of a request's connection; an extension of the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// Its user id, where the connection is a Unix socket.
    pub uid: Option<u32>,
}

/// A connection and its peer.
type Accepted = (Pin<Box<dyn Stream>>, Peer);

/// Counts of one listener.
#[derive(Debug, Default)]
pub struct ServerCounts {
    shed: AtomicU64,
}

impl ServerCounts {
    /// Connections that were evicted or refused since the server started.
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }
}

/// Serves `router` until `stop` becomes true, then waits up to [`STOP_WITHIN`] for requests in flight.
pub async fn serve(
    listener: Listener,
    router: Router,
    counts: Arc<ServerCounts>,
    stop: watch::Receiver<bool>,
) {
    let mut stopped = stop.clone();
    let mut connections = FuturesUnordered::new();
    let mut slots: Vec<Arc<ConnectionSlot>> = Vec::new();
    let order = Arc::new(AtomicU64::new(0));
    loop {
        tokio::select! {
            () = is_stopping(&mut stopped) => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    slots.retain(|slot| !slot.is_closed());
                    if slots.len() >= CONNECTIONS_MAX {
                        counts.shed.fetch_add(1, Ordering::Relaxed);
                        if !evict_idle(&mut slots) {
                            continue;
                        }
                    }
                    let slot = Arc::new(ConnectionSlot::new(Arc::clone(&order)));
                    slots.push(Arc::clone(&slot));
                    connections.push(handle(accepted, router.clone(), slot, stop.clone()));
                }
                Err(error) => tracing::warn!(%error, "connection not accepted"),
            },
            Some(()) = connections.next(), if !connections.is_empty() => {}
        }
    }
    let all_ended = async { while connections.next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        tracing::warn!("requests in flight were aborted at the stop");
    }
}

/// Resolves when `stop` becomes true or its sender is dropped.
async fn is_stopping(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|is_stopping| *is_stopping).await);
}

/// Evicts the least recently active connection that waits for its client; returns false when every connection has a
/// whole request in flight.
fn evict_idle(slots: &mut Vec<Arc<ConnectionSlot>>) -> bool {
    let oldest = slots
        .iter()
        .enumerate()
        .filter(|(_, slot)| !slot.is_busy.load(Ordering::Relaxed))
        .min_by_key(|(_, slot)| slot.active_at.load(Ordering::Relaxed))
        .map(|(idx, _)| idx);
    oldest.map(|idx| slots.swap_remove(idx).evict.notify_one()).is_some()
}

/// One connection among the [`CONNECTIONS_MAX`].
#[derive(Debug)]
struct ConnectionSlot {
    /// Whether a whole request awaits its response.
    is_busy: AtomicBool,
    /// Counts the actions of all connections of the listener: an order, not a time.
    order: Arc<AtomicU64>,
    /// This connection's last action in that order.
    active_at: AtomicU64,
    requested: Notify,
    evict: Notify,
    closed: AtomicBool,
}

impl ConnectionSlot {
    fn new(order: Arc<AtomicU64>) -> Self {
        let slot = Self {
            is_busy: AtomicBool::new(false),
            order,
            active_at: AtomicU64::new(0),
            requested: Notify::new(),
            evict: Notify::new(),
            closed: AtomicBool::new(false),
        };
        slot.act();
        slot
    }

    fn act(&self) {
        self.active_at.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

async fn handle(
    accepted: Accepted,
    router: Router,
    slot: Arc<ConnectionSlot>,
    mut stop: watch::Receiver<bool>,
) {
    let (stream, peer) = accepted;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_MAX));
    let requests = Arc::clone(&slot);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        answer(router.clone(), request, Arc::clone(&requests))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let silent = async {
        let first = tokio::time::timeout(FIRST_REQUEST_WITHIN, slot.requested.notified()).await;
        if first.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // An error means that the client left or sent broken HTTP, which hyper has answered.
        _ = connection.as_mut() => {}
        () = silent => {}
        () = slot.evict.notified() => {}
        () = is_stopping(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
    }
    slot.closed.store(true, Ordering::Relaxed);
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    slot: Arc<ConnectionSlot>,
) -> Result<Response<Body>, Infallible> {
    slot.requested.notify_one();
    slot.act();
    slot.is_busy.store(request.body().is_end_stream(), Ordering::Relaxed);
    let body_slot = Arc::clone(&slot);
    let request = request.map(|body| Body::new(RequestBody { body, slot: body_slot }));
    let response = router.oneshot(request).await;
    slot.is_busy.store(false, Ordering::Relaxed);
    response
}

/// The body of a request. Updates its connection's slot when more of it arrives and when it is whole.
struct RequestBody {
    body: Incoming,
    slot: Arc<ConnectionSlot>,
}

impl hyper::body::Body for RequestBody {
    type Data = <Incoming as hyper::body::Body>::Data;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.slot.act();
        self.slot
            .is_busy
            .store(self.body.is_end_stream() || frame.is_none(), Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        let accepted = self.try_accept().await;
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    }

    async fn try_accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::pin(stream), Peer::default()))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
                Ok((Box::pin(stream), Peer { uid }))
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}
