//! An HTTP/1.1 server with bounds on the number of connections and on the time that each may
//! idle or stall. It knows no route: inputs and outputs bring theirs.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::net::access::{Gate, GateRefusal};
use crate::net::guard::{self, Guard, GuardRefusal, RequestHead};
use crate::net::listener::{Listener, NewConnection, Stream};
use crate::net::peer::Peer;
use crate::net::problem::problem;

/// Maximum number of connections of a listener. One more evicts the least recently active.
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
/// The pause after the system ran out of file descriptors. A connection is evicted only if there is
/// none after it, either: one that has just come may not have sent its request yet.
const ACCEPT_PAUSE: Duration = Duration::from_millis(2);
/// Time after an answer within which the next request counts as sent before it: a reader who
/// waits for answers hardly asks again so soon.
const PIPELINED_WITHIN: Duration = Duration::from_millis(10);
/// Minimum interval between warnings that connections are not accepted.
const WARNED_EVERY: Duration = Duration::from_mins(1);

/// Counts of one listener.
#[derive(Debug, Default)]
pub struct ServerCounts {
    shed: AtomicU64,
}

impl ServerCounts {
    /// Connections that were evicted for newer ones since the server started.
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
    pub connections: Arc<Connections>,
    pub stop: watch::Receiver<bool>,
}

/// The connections of all listeners, which share the process's file descriptors.
#[derive(Debug, Default)]
pub struct Connections {
    slots: Mutex<Vec<Arc<ConnectionSlot>>>,
    /// Counts the actions of all connections: an order, not a time.
    order: Arc<AtomicU64>,
    has_warned: AtomicBool,
    /// The listener that lacked a file descriptor last, and until when others give way to it.
    lacking: Mutex<Option<(Arc<ServerCounts>, Instant)>>,
    /// Notified once it has got one.
    served: Notify,
}

impl Connections {
    /// Enters a connection of a listener. Beyond [`CONNECTIONS_MAX`], the listener's least
    /// recently active one is evicted.
    fn enter(&self, peer: Peer, listener: &Arc<ServerCounts>) -> Arc<ConnectionSlot> {
        let mut slots = self.slots();
        let is_own = |slot: &ConnectionSlot| Arc::ptr_eq(&slot.listener, listener);
        if slots.iter().filter(|slot| is_own(slot)).count() >= CONNECTIONS_MAX {
            evict(&mut slots, is_own);
        }
        let slot = Arc::new(ConnectionSlot {
            peer,
            listener: Arc::clone(listener),
            evict: Arc::default(),
            order: Arc::clone(&self.order),
            active_at: AtomicU64::default(),
            answered: Mutex::default(),
            requested: Notify::new(),
            is_closed: AtomicBool::default(),
        });
        slot.act();
        slots.push(Arc::clone(&slot));
        slot
    }

    /// A listener lacks a file descriptor, until one is freed after [`ACCEPT_PAUSE`]. Warns of the
    /// first `error` within [`WARNED_EVERY`].
    fn lack(&self, error: &io::Error, listener: &Arc<ServerCounts>) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "connections are not accepted; inactive ones are closed");
        }
        *self.lacking() = Some((Arc::clone(listener), Instant::now() + 2 * ACCEPT_PAUSE));
    }

    /// Evicts the least recently active connection of all listeners, for its file descriptor.
    fn free_descriptor(&self) {
        evict(&mut self.slots(), |_| true);
    }

    /// Waits while another listener lacks a file descriptor: the one whose connection is evicted
    /// for it would be the first to take what is freed, again and again.
    async fn give_way(&self, listener: &Arc<ServerCounts>) {
        let lacking =
            self.lacking().as_ref().map(|(of, until)| (Arc::ptr_eq(of, listener), *until));
        if let Some((false, until)) = lacking {
            // Whether it was served or the time is over: it is this one's turn.
            drop(tokio::time::timeout_at(until, self.served.notified()).await);
        }
    }

    /// A listener has accepted a connection.
    fn accepted(&self, listener: &Arc<ServerCounts>) {
        let mut lacking = self.lacking();
        if lacking.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, listener)) {
            *lacking = None;
            self.served.notify_waiters();
        }
    }

    fn lacking(&self) -> MutexGuard<'_, Option<(Arc<ServerCounts>, Instant)>> {
        self.lacking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open connections.
    fn slots(&self) -> MutexGuard<'_, Vec<Arc<ConnectionSlot>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| !slot.is_closed.load(Ordering::Relaxed));
        slots
    }
}

/// Evicts the least recently active connection of those that `is_eligible` allows.
fn evict(slots: &mut Vec<Arc<ConnectionSlot>>, is_eligible: impl Fn(&ConnectionSlot) -> bool) {
    let eligible = slots.iter().enumerate().filter(|(_, slot)| is_eligible(slot));
    let oldest = eligible.min_by_key(|(_, slot)| slot.active_at.load(Ordering::Relaxed));
    if let Some(idx) = oldest.map(|(idx, _)| idx) {
        let slot = slots.swap_remove(idx);
        slot.listener.shed.fetch_add(1, Ordering::Relaxed);
        slot.evict.notify_one();
    }
}

/// Serves until `stop` becomes true, then waits up to [`STOP_WITHIN`] for requests in flight.
pub async fn serve(listener: Listener, service: Service) {
    let Service { router, counts, guard, gate, connections, stop } = service;
    let routes = Routes { router, guard, gate };
    let mut stopped = stop.clone();
    let mut handled = FuturesUnordered::new();
    let mut warnings = tokio::time::interval(WARNED_EVERY);
    // When to accept again, as there was no file descriptor, and whether that has been waited for.
    let mut accept_at: Option<Instant> = None;
    let mut has_paused = false;
    loop {
        let accepted = async {
            connections.give_way(&counts).await;
            listener.accept(&routes.gate).await
        };
        tokio::select! {
            // Connections that are accepted get their turn before new ones.
            biased;
            () = is_stopping(&mut stopped) => break,
            Some(()) = handled.next(), if !handled.is_empty() => {}
            () = due(accept_at) => accept_at = None,
            accepted = accepted, if accept_at.is_none() => match accepted {
                Ok(NewConnection { stream, peer }) => {
                    has_paused = false;
                    connections.accepted(&counts);
                    let slot = connections.enter(peer, &counts);
                    handled.push(handle(stream, routes.clone(), slot, stop.clone()));
                }
                Err(error) => {
                    connections.lack(&error, &counts);
                    if has_paused {
                        connections.free_descriptor();
                        // Its listener closes it, and accepts nothing in its place.
                        tokio::task::yield_now().await;
                    } else {
                        accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    }
                    has_paused = !has_paused;
                }
            },
            _ = warnings.tick() => connections.has_warned.store(false, Ordering::Relaxed),
        }
    }
    let all_ended = async { while handled.next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        tracing::warn!("requests in flight were aborted at the stop");
    }
}

/// Resolves at a moment; never without one.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Serves one connection of `peer` that no listener accepted, such as one over memory, until it
/// ends.
pub async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    peer: Peer,
    service: Service,
) {
    let Service { router, counts, guard, gate, connections, stop } = service;
    let slot = connections.enter(peer, &counts);
    handle(Box::pin(stream), Routes { router, guard, gate }, slot, stop).await;
}

/// Resolves when `stop` becomes true or its sender is dropped.
async fn is_stopping(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|is_stopping| *is_stopping).await);
}

/// The connection of a request, for its handlers.
#[derive(Clone, Debug)]
pub struct Connection(Arc<ConnectionSlot>);

impl Connection {
    /// Returns the identity of its other end.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Returns whether the request came within `PIPELINED_WITHIN` of the answer to an earlier
    /// one of the connection.
    pub fn is_pipelined(&self) -> bool {
        self.0.answered().is_some_and(|answered| answered.elapsed() < PIPELINED_WITHIN)
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
    listener: Arc<ServerCounts>,
    /// Closes the connection.
    evict: Arc<Notify>,
    order: Arc<AtomicU64>,
    /// The value of `order` when it last began or answered a request.
    active_at: AtomicU64,
    /// The time when it last answered a request.
    answered: Mutex<Option<Instant>>,
    requested: Notify,
    is_closed: AtomicBool,
}

impl ConnectionSlot {
    fn act(&self) {
        self.active_at.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    fn answered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a connection to its end.
async fn handle(
    stream: Pin<Box<dyn Stream>>,
    routes: Routes,
    slot: Arc<ConnectionSlot>,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL_MAX));
    let requests = Arc::clone(&slot);
    let service = service_fn(move |request: Request<Incoming>| {
        answer(routes.clone(), request, Arc::clone(&requests))
    });
    let connection = async {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
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
    tokio::select! {
        // The connection first: it takes a request that has arrived.
        biased;
        () = connection => {}
        () = silent => {}
        () = slot.evict.notified() => {}
    }
    slot.is_closed.store(true, Ordering::Relaxed);
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
    slot.act();
    slot.requested.notify_one();
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
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Connection(Arc::clone(&slot)));
    let mut response = routes.router.oneshot(request).await;
    if let Ok(response) = &mut response {
        routes.gate.complete(slot.peer, response.headers_mut());
        guard::complete(response.headers_mut());
    }
    slot.act();
    *slot.answered() = Some(Instant::now());
    response
}

/// Returns the refusal of a request by its head, which closes the connection.
fn refused(status: StatusCode, reason: &'static str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let mut response = problem(status, title, reason);
    guard::complete(response.headers_mut());
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
