//! One HTTP/1.1 server within bounds: how many connections, how long each may be silent or stuck. Inputs and
//! outputs both stand on it; it knows neither, and no route.

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

/// How many connections one listener holds. One more makes the one that was silent for longest give way.
pub const CONNECTIONS_MAX: usize = 256;
/// A client that connects must have sent the head of its first request within this time.
pub const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed; longer than a usual scrape interval, so that a
/// scraper keeps its connection.
pub const IDLE_MAX: Duration = Duration::from_secs(90);
/// A client that takes nothing of its answer for this long is cut off.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// The greatest head of a request, and the size of a connection's read buffer, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long requests in flight may take to end once the server stops.
pub const STOP_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait before accepting again when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Counts of one listener.
#[derive(Debug, Default)]
pub struct ServerCounts {
    shed: AtomicU64,
}

impl ServerCounts {
    /// Connections that gave way, or found no place, since the server began.
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }
}

/// Serves `router` to whoever connects until `stop` turns true, then lets requests in flight end.
pub async fn serve(
    listener: Listener,
    router: Router,
    counts: Arc<ServerCounts>,
    stop: watch::Receiver<bool>,
) {
    let mut stopped = stop.clone();
    let mut connections = FuturesUnordered::new();
    let mut places: Vec<Arc<Place>> = Vec::new();
    let order = Arc::new(AtomicU64::new(0));
    loop {
        tokio::select! {
            () = is_stopping(&mut stopped) => break,
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    places.retain(|place| !place.is_left());
                    if places.len() >= CONNECTIONS_MAX {
                        counts.shed.fetch_add(1, Ordering::Relaxed);
                        if !give_way(&mut places) {
                            continue;
                        }
                    }
                    let place = Arc::new(Place::new(Arc::clone(&order)));
                    places.push(Arc::clone(&place));
                    connections.push(converse(stream, router.clone(), place, stop.clone()));
                }
                Err(error) => tracing::warn!(%error, "connection not accepted"),
            },
            Some(()) = connections.next(), if !connections.is_empty() => {}
        }
    }
    let all_ended = async { while connections.next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        tracing::warn!("requests in flight were cut off at the stop");
    }
}

/// Waits for the stop; whoever could still say so being gone counts as one.
async fn is_stopping(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|is_stopping| *is_stopping).await);
}

/// Makes the connection that was active least lately give way, of those that wait for their client; false when
/// every one has a whole request in flight.
fn give_way(places: &mut Vec<Arc<Place>>) -> bool {
    let oldest = places
        .iter()
        .enumerate()
        .filter(|(_, place)| !place.is_busy.load(Ordering::Relaxed))
        .min_by_key(|(_, place)| place.active_at.load(Ordering::Relaxed))
        .map(|(idx, _)| idx);
    oldest.map(|idx| places.swap_remove(idx).evict.notify_one()).is_some()
}

/// One connection's place among the [`CONNECTIONS_MAX`].
#[derive(Debug)]
struct Place {
    /// Whether a request is whole and not yet answered.
    is_busy: AtomicBool,
    /// Counts what the connections of the listener do: an order, not a time.
    order: Arc<AtomicU64>,
    /// Where in that order this one was last active.
    active_at: AtomicU64,
    requested: Notify,
    evict: Notify,
    left: AtomicBool,
}

impl Place {
    fn new(order: Arc<AtomicU64>) -> Self {
        let place = Self {
            is_busy: AtomicBool::new(false),
            order,
            active_at: AtomicU64::new(0),
            requested: Notify::new(),
            evict: Notify::new(),
            left: AtomicBool::new(false),
        };
        place.act();
        place
    }

    fn act(&self) {
        self.active_at.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

async fn converse(
    stream: Pin<Box<dyn Stream>>,
    router: Router,
    place: Arc<Place>,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_MAX));
    let requests = Arc::clone(&place);
    let service = service_fn(move |request: Request<Incoming>| {
        answer(router.clone(), request, Arc::clone(&requests))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let silent = async {
        let first =
            tokio::time::timeout(FIRST_REQUEST_WITHIN, place.requested.notified()).await;
        if first.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // An error is the client's going away or its broken HTTP, to which hyper has answered.
        _ = connection.as_mut() => {}
        () = silent => {}
        () = place.evict.notified() => {}
        () = is_stopping(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
    }
    place.left.store(true, Ordering::Relaxed);
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    place: Arc<Place>,
) -> Result<Response<Body>, Infallible> {
    place.requested.notify_one();
    place.act();
    place.is_busy.store(request.body().is_end_stream(), Ordering::Relaxed);
    let arriving = Arc::clone(&place);
    let request = request.map(|body| Body::new(Arriving { body, place: arriving }));
    let response = router.oneshot(request).await;
    place.is_busy.store(false, Ordering::Relaxed);
    response
}

/// The body of a request, which tells its place when more of it came and when it is whole.
struct Arriving {
    body: Incoming,
    place: Arc<Place>,
}

impl hyper::body::Body for Arriving {
    type Data = <Incoming as hyper::body::Body>::Data;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.place.act();
        self.place
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
    async fn accept(&self) -> io::Result<Pin<Box<dyn Stream>>> {
        let accepted = self.try_accept().await;
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    }

    async fn try_accept(&self) -> io::Result<Pin<Box<dyn Stream>>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::pin(stream))
            }
            Self::Unix(listener) => Ok(Box::pin(listener.accept().await?.0)),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}
