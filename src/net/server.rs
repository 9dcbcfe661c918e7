//! An HTTP/1.1 server with bounds on the number of connections and on the time that each may
//! idle or stall. It knows no route: inputs and outputs bring theirs.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::net::access::{Gate, GateRefusal};
use crate::net::first_head::HeadFirst;
use crate::net::guard::{self, Guard, GuardRefusal, RequestHead};
use crate::net::listener::{Listener, NewConnection, Stream};
use crate::net::peer::Peer;

/// Maximum number of connections of a listener. One more evicts the one that has been idle for
/// longest.
pub const CONNECTIONS_MAX: usize = 256;
/// Time limit for the head of a new client's first request.
pub const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Time without a request after which a connection is closed. Longer than a usual scrape
/// interval, so that Prometheus keeps its connection.
pub const IDLE_MAX: Duration = Duration::from_secs(90);
/// Time after which a client that reads nothing of its response is disconnected.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// The largest request head, and the size of a connection's read buffer, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Requested size of the system's send buffer of one connection, in bytes. Linux takes twice as
/// much, to account for its own structures. By default, it holds up to 4 MiB for each client
/// that does not read.
pub const UNSENT_BYTES_MAX: u32 = 128 * 1024;
/// Time limit for requests in flight after the server was stopped.
pub const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Number of connections that may be up for eviction at once; meanwhile, a listener holds so
/// many more than it may.
const ASKED_AT_ONCE: usize = 16;
/// Time within which a request saves a connection from eviction: the request of a new client
/// may already have arrived, unread.
const MAKE_WAY_WITHIN: Duration = Duration::from_millis(5);
/// Number of ended connections after which their memory is worth returning.
const CROWD: usize = 128;
/// Minimum interval between warnings that connections are not accepted.
const WARNED_EVERY: Duration = Duration::from_mins(1);

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

/// The parts that a listener serves, and its stop.
#[derive(Clone, Debug)]
pub struct Service {
    pub router: Router,
    pub counts: Arc<ServerCounts>,
    /// The checks that a request must pass.
    pub guard: Arc<Guard>,
    /// The access rules for clients over TCP.
    pub gate: Arc<Gate>,
    /// The connections of all listeners of the process.
    pub connections: Arc<Connections>,
    pub stop: watch::Receiver<bool>,
}

/// Serves until `stop` becomes true, then waits up to [`STOP_WITHIN`] for requests in flight.
pub async fn serve(listener: Listener, service: Service) {
    let Service { router, counts, guard, gate, connections, stop } = service;
    let routes = Routes { router, guard, gate };
    let mut stopped = stop.clone();
    let mut handled = FuturesUnordered::new();
    let mut slots: Vec<Arc<ConnectionSlot>> = Vec::new();
    let mut warnings = tokio::time::interval(WARNED_EVERY);
    loop {
        slots.retain(|slot| !slot.is_closed());
        // Meanwhile, new clients wait in the system's queue: connections that are already
        // accepted get their turn first.
        let is_full = slots.len() >= CONNECTIONS_MAX + ASKED_AT_ONCE;
        tokio::select! {
            () = is_stopping(&mut stopped) => break,
            accepted = listener.accept(&routes.gate), if !is_full => match accepted {
                Ok(NewConnection { stream, peer, evict }) => {
                    if slots.len() >= CONNECTIONS_MAX {
                        longest_idle(&slots).inspect(|slot| slot.ask_for_way());
                    }
                    let slot = connections.enter(peer, evict);
                    slots.push(Arc::clone(&slot));
                    handled.push(handle(stream, routes.clone(), slot, stop.clone()));
                }
                Err(error) => connections.make_way(&error),
            },
            () = tokio::time::sleep(MAKE_WAY_WITHIN), if is_full => {
                counts.shed.fetch_add(1, Ordering::Relaxed);
                evict_oldest(&mut slots);
            }
            _ = warnings.tick() => connections.has_warned.store(false, Ordering::Relaxed),
            Some(has_made_way) = handled.next(), if !handled.is_empty() => {
                connections.leave();
                counts.shed.fetch_add(u64::from(has_made_way), Ordering::Relaxed);
            }
        }
    }
    let all_ended = async { while handled.next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        tracing::warn!("requests in flight were aborted at the stop");
    }
}

/// Serves one connection of `peer` that no listener accepted, such as one over memory, until it
/// ends.
pub async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    peer: Peer,
    service: Service,
) {
    let Service { router, guard, gate, connections, stop, .. } = service;
    let slot = connections.enter(peer, Arc::default());
    handle(Box::pin(stream), Routes { router, guard, gate }, slot, stop).await;
}

/// The connections of all listeners, which share the process's file descriptors.
#[derive(Debug, Default)]
pub struct Connections {
    n_left: AtomicUsize,
    crowd_left: Notify,
    /// Counts the actions of all connections: an order, not a time.
    order: Arc<AtomicU64>,
    slots: Mutex<Vec<Arc<ConnectionSlot>>>,
    has_warned: AtomicBool,
}

impl Connections {
    /// Waits until a crowd of connections has ended since the last time.
    pub async fn crowd_left(&self) {
        self.crowd_left.notified().await;
    }

    fn leave(&self) {
        if self.n_left.fetch_add(1, Ordering::Relaxed) % CROWD == CROWD - 1 {
            self.crowd_left.notify_one();
        }
    }

    fn enter(&self, peer: Peer, evict: Arc<Notify>) -> Arc<ConnectionSlot> {
        let slot = Arc::new(ConnectionSlot::new(peer, Arc::clone(&self.order), evict));
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| !slot.is_closed());
        slots.push(Arc::clone(&slot));
        slot
    }

    /// Selects connections that wait for their clients for eviction, the longest inactive
    /// first, so that up to [`ASKED_AT_ONCE`] are selected. Warns of the first `error` within
    /// [`WARNED_EVERY`].
    fn make_way(&self, error: &io::Error) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "connections are not accepted; idle ones are closed");
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| !slot.is_closed());
        let mut n_asked = slots.iter().filter(|slot| slot.is_asked()).count();
        while n_asked < ASKED_AT_ONCE {
            let Some(slot) = longest_idle(&slots) else { break };
            slot.ask_for_way();
            n_asked += 1;
        }
    }
}

/// Resolves when `stop` becomes true or its sender is dropped.
async fn is_stopping(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|is_stopping| *is_stopping).await);
}

/// Evicts the connection that has been inactive for longest.
fn evict_oldest(slots: &mut Vec<Arc<ConnectionSlot>>) {
    let active_at = |slot: &ConnectionSlot| slot.active_at.load(Ordering::Relaxed);
    let oldest = slots.iter().enumerate().min_by_key(|(_, slot)| active_at(slot));
    if let Some(idx) = oldest.map(|(idx, _)| idx) {
        slots.swap_remove(idx).evict.notify_one();
    }
}

/// Returns the least recently active connection that waits for its client and is not up for
/// eviction.
fn longest_idle(slots: &[Arc<ConnectionSlot>]) -> Option<&Arc<ConnectionSlot>> {
    let is_idle = |slot: &&Arc<ConnectionSlot>| !slot.is_busy.load(Ordering::Relaxed);
    let idle = slots.iter().filter(is_idle).filter(|slot| !slot.is_asked());
    idle.min_by_key(|slot| slot.active_at.load(Ordering::Relaxed))
}

/// The connection of a request, for its handlers.
#[derive(Clone, Debug)]
pub struct Connection(Arc<ConnectionSlot>);

impl Connection {
    /// Returns the identity of its other end.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Returns when its client last took something, in the order of all actions on all
    /// connections.
    pub fn written_at(&self) -> f64 {
        let order = self.0.written_at.load(Ordering::Relaxed);
        let (high, low) = (order >> 32, order & u64::from(u32::MAX));
        let float = |half| u32::try_from(half).map_or(0.0, f64::from);
        float(high) * 4_294_967_296.0 + float(low)
    }

    /// Notes that its client gets an answer: that counts as if the client had just taken
    /// something.
    pub fn offer(&self) {
        self.0.wrote();
    }

    /// Returns whether the request arrived before an earlier one on the connection was
    /// answered.
    pub fn is_pipelined(&self) -> bool {
        self.0.is_pipelined.load(Ordering::Relaxed)
    }

    /// Returns the notification that closes the connection.
    pub fn evict(&self) -> Arc<Notify> {
        Arc::clone(&self.0.evict)
    }
}

/// One connection among the [`CONNECTIONS_MAX`].
#[derive(Debug)]
struct ConnectionSlot {
    peer: Peer,
    /// True while a complete request awaits its response.
    is_busy: AtomicBool,
    /// Counts the actions of all connections of the listener: an order, not a time.
    order: Arc<AtomicU64>,
    /// This connection's last action in that order.
    active_at: AtomicU64,
    /// The time when the system last took bytes of an answer, in that order.
    written_at: AtomicU64,
    /// Requests whose heads were read.
    n_requests: AtomicU64,
    /// Number of reads that brought bytes, in total and when the last request was answered.
    n_reads: AtomicU64,
    n_reads_answered: AtomicU64,
    /// True if the last request came without a read after that.
    is_pipelined: AtomicBool,
    requested: Notify,
    /// True if the connection is up for eviction.
    asked: AtomicBool,
    way_wanted: Notify,
    evict: Arc<Notify>,
    closed: AtomicBool,
}

impl ConnectionSlot {
    fn new(peer: Peer, order: Arc<AtomicU64>, evict: Arc<Notify>) -> Self {
        let slot = Self {
            peer,
            is_busy: AtomicBool::new(false),
            order,
            active_at: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            n_requests: AtomicU64::new(0),
            n_reads: AtomicU64::new(0),
            n_reads_answered: AtomicU64::new(0),
            is_pipelined: AtomicBool::new(false),
            requested: Notify::new(),
            asked: AtomicBool::new(false),
            way_wanted: Notify::new(),
            evict,
            closed: AtomicBool::new(false),
        };
        slot.act();
        slot
    }

    fn act(&self) {
        self.active_at.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn wrote(&self) {
        self.written_at.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn read(&self) {
        self.n_reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request begins.
    fn request(&self) {
        let is_pipelined = self.n_reads.load(Ordering::Relaxed)
            == self.n_reads_answered.load(Ordering::Relaxed);
        self.is_pipelined.store(is_pipelined, Ordering::Relaxed);
        self.n_requests.fetch_add(1, Ordering::Relaxed);
        self.requested.notify_one();
        self.act();
    }

    /// Notes that a request has its response.
    fn respond(&self) {
        self.n_reads_answered.store(self.n_reads.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_busy.store(false, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn ask_for_way(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.way_wanted.notify_one();
    }

    /// Resolves when the connection was up for eviction and had no request within
    /// [`MAKE_WAY_WITHIN`].
    async fn makes_way(&self) {
        loop {
            self.way_wanted.notified().await;
            let n_before = self.n_requests.load(Ordering::Relaxed);
            tokio::time::sleep(MAKE_WAY_WITHIN).await;
            let has_requested = self.n_requests.load(Ordering::Relaxed) > n_before;
            if !has_requested && !self.is_busy.load(Ordering::Relaxed) {
                return;
            }
            self.asked.store(false, Ordering::Relaxed);
        }
    }
}

/// Serves a connection to its end. Returns whether it ended because it was evicted.
async fn handle(
    stream: Pin<Box<dyn Stream>>,
    routes: Routes,
    slot: Arc<ConnectionSlot>,
    mut stop: watch::Receiver<bool>,
) -> bool {
    slot.wrote();
    let stream = Watched { stream, slot: Arc::clone(&slot) };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_MAX));
    let requests = Arc::clone(&slot);
    let service = service_fn(move |request: Request<Incoming>| {
        answer(routes.clone(), request, Arc::clone(&requests))
    });
    let connection = async {
        let mut stream = HeadFirst::<_, HEAD_BYTES_MAX>::new(Box::pin(stream));
        tokio::select! {
            biased;
            // An error means that the client left.
            head = stream.head() => if head.is_err() { return },
            () = is_stopping(&mut stop) => return,
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            // An error means that the client left or sent broken HTTP, which hyper has
            // answered.
            _ = connection.as_mut() => {}
            () = is_stopping(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                drop(connection.await);
            }
        }
    };
    let silent = async {
        let first = tokio::time::timeout(FIRST_REQUEST_WITHIN, slot.requested.notified()).await;
        if first.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let has_made_way = tokio::select! {
        // The connection first: a request that has arrived saves the connection from eviction.
        biased;
        () = connection => false,
        () = slot.makes_way() => true,
        () = silent => false,
        () = slot.evict.notified() => false,
    };
    slot.closed.store(true, Ordering::Relaxed);
    has_made_way
}

/// The parts that answer requests.
#[derive(Clone)]
struct Routes {
    router: Router,
    guard: Arc<Guard>,
    gate: Arc<Gate>,
}

async fn answer(
    routes: Routes,
    request: Request<Incoming>,
    slot: Arc<ConnectionSlot>,
) -> Result<Response<Body>, Infallible> {
    slot.request();
    slot.is_busy.store(request.body().is_end_stream(), Ordering::Relaxed);
    let head = RequestHead {
        method: request.method(),
        uri: request.uri(),
        version: request.version(),
        headers: request.headers(),
    };
    match routes.guard.check(&head) {
        Ok(()) => {}
        Err(GuardRefusal::Malformed(reason)) => {
            return Ok(refused(StatusCode::BAD_REQUEST, reason));
        }
        Err(GuardRefusal::Foreign(reason)) => {
            return Ok(refused(StatusCode::FORBIDDEN, reason));
        }
    }
    let (gate, path) = (&routes.gate, request.uri().path());
    if let Err(refusal) = gate.admit(slot.peer, path, request.headers()).await {
        let GateRefusal { status, reason, header: (name, value) } = refusal;
        let mut response = refused(status, reason);
        response.headers_mut().insert(name, value);
        return Ok(response);
    }
    let body_slot = Arc::clone(&slot);
    let mut request = request.map(|body| Body::new(RequestBody { body, slot: body_slot }));
    request.extensions_mut().insert(Connection(Arc::clone(&slot)));
    let mut response = routes.router.oneshot(request).await;
    if let Ok(response) = &mut response {
        routes.gate.complete(slot.peer, response.headers_mut());
        guard::complete(response.headers_mut());
    }
    slot.respond();
    response
}

/// Returns the refusal of a request by its head, which closes the connection.
fn refused(status: StatusCode, reason: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(reason));
    *response.status_mut() = status;
    guard::complete(response.headers_mut());
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of a request. Updates its connection's slot when more of it arrives and when it is
/// complete.
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

// Same name as detect::behaviour::Watched: that one stands in a test.
/// A stream that notes when it is read and written to.
struct Watched {
    stream: Pin<Box<dyn Stream>>,
    slot: Arc<ConnectionSlot>,
}

impl Watched {
    fn written(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = result {
            self.slot.wrote();
        }
        result
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buffer.filled().len();
        ready!(self.stream.as_mut().poll_read(cx, buffer))?;
        if buffer.filled().len() > n_before {
            self.slot.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = self.stream.as_mut().poll_write(cx, bytes);
        self.written(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = self.stream.as_mut().poll_write_vectored(cx, bytes);
        self.written(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}
