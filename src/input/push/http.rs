//! The push endpoint: limits, authorization and status codes, on TCP and on a Unix socket.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::input::push::bodies::Bodies;
use crate::input::push::deadline::{Deadline, steps_by};
use crate::input::push::inbox::{Inbox, PushResult, Releases, SubmitError};
use crate::input::push::problem::PushRefusal;
use crate::input::push::refusal_log::RefusalLog;
use crate::input::push::roles::{AccessRefusal, Caller, ReadClock, Role, Roles, Token, Tokens};
use crate::net::access::HEALTHY;
use crate::net::peer::Peer;
use crate::net::problem::{PATH_NOT_UTF8, PROBLEM_JSON, problem};
use crate::net::server::Connection;
use stepmem_engine::wire::{
    Layout, decode_ack, decode_device_ack, decode_end, decode_holders, decode_lines_request,
    decode_release, decode_snapshot, decode_snapshot_request, decode_steps, encode_accepted,
    encode_acknowledged, encode_elsewhere, encode_requested,
};
use stepmem_engine::{Event, HoldersReport, Receipt};
use stepmem_types::end::EndAuthority;
use stepmem_types::ids::{GpuUuid, Run};
use stepmem_types::units::Seconds;

/// The paths of the endpoint, for a response to any other.
const ROUTES: &str = "the push endpoint has POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end, /v1/runs/RUN/ack, /v1/runs/RUN/snapshot, /v1/runs/RUN/lines, /v1/holders, /v1/devices/UUID/ack and /v1/nvml/release";

/// The limits of pushes.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// The largest body after decompression, in bytes.
    pub body_bytes_max: usize,
    /// The token that clients must send; `None` accepts every client.
    pub token_file: Option<TokenFile>,
    /// The secret that identifies an operator; `None` without one.
    pub admin_token_file: Option<TokenFile>,
    /// Set when root over the Unix socket and any client over loopback administer where no
    /// token of admins is set.
    pub trusts_machine: bool,
    /// Set where admins may also send requests from the page.
    pub has_page_buttons: bool,
    /// The time when every run is ended from outside; `None` where that is unknown.
    pub deadline: Option<Deadline>,
}

/// The file of a token, with its content at the start.
#[derive(Clone, Debug)]
pub struct TokenFile {
    pub path: PathBuf,
    pub token: Token,
}

/// The clock of the endpoint.
pub struct EndpointClock {
    pub uptime: ReadClock,
    /// The Unix time at which the exporter started.
    pub started: f64,
}

/// The receivers of the endpoint's requests.
#[derive(Clone, Debug)]
pub struct Receivers {
    pub inbox: Inbox,
    /// The queue to the collector that holds devices open; `None` without one.
    pub releases: Option<Releases>,
}

/// Creates the routes of the push endpoint. Requests for anything else learn the address of
/// the page, `page_url`; empty without one.
pub fn router(endpoint: Arc<PushEndpoint>, page_url: String) -> Router {
    let page_url: Arc<str> = page_url.into();
    let no_such = move |status, title| {
        let page_url = Arc::clone(&page_url);
        move || std::future::ready(elsewhere(status, title, &page_url))
    };
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/v1/steps", post(steps))
        .route("/v1/snapshots", post(snapshots))
        .route("/v1/holders", post(holders))
        .route("/v1/runs/{run}/end", post(end))
        .route("/v1/runs/{run}/ack", post(ack))
        .route("/v1/runs/{run}/snapshot", post(want_snapshot))
        .route("/v1/runs/{run}/lines", post(want_lines))
        .route("/v1/devices/{uuid}/ack", post(device_ack))
        .route("/v1/nvml/release", post(release))
        .fallback(no_such(StatusCode::NOT_FOUND, "No such path"))
        .method_not_allowed_fallback(no_such(StatusCode::METHOD_NOT_ALLOWED, "No such method"))
        .with_state(endpoint)
}

/// Responds to a request for what the endpoint does not have: the page may have it.
fn elsewhere(status: StatusCode, title: &str, page_url: &str) -> Response {
    if page_url.is_empty() {
        return problem(status, title, ROUTES);
    }
    let detail = format!("the page, /metrics and /api are at {page_url}; {ROUTES}");
    let body = encode_elsewhere(status.as_u16(), title, &detail, page_url);
    (status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}

/// Creates the routes of the page's buttons, which end with the push endpoint. `scheme` is that
/// of the page's address.
pub fn page_router(endpoint: &Arc<PushEndpoint>, scheme: &'static str) -> Router {
    let of_push = Router::new()
        .route(
            "/v1/runs/{run}/end",
            post(|State(gate): State<PageGate>, run, request| {
                gate.pass(request, |endpoint, request| end(endpoint, run, request))
            }),
        )
        .route(
            "/v1/runs/{run}/ack",
            post(|State(gate): State<PageGate>, run, request| {
                gate.pass(request, |endpoint, request| ack(endpoint, run, request))
            }),
        )
        .route(
            "/v1/runs/{run}/snapshot",
            post(|State(gate): State<PageGate>, run, request| {
                gate.pass(request, |endpoint, request| want_snapshot(endpoint, run, request))
            }),
        )
        .route(
            "/v1/devices/{uuid}/ack",
            post(|State(gate): State<PageGate>, uuid, request| {
                gate.pass(request, |endpoint, request| device_ack(endpoint, uuid, request))
            }),
        )
        .with_state(PageGate { endpoint: Arc::downgrade(endpoint), scheme });
    Router::new().nest("/api", of_push)
}

/// The check of requests that a person makes in the page.
#[derive(Clone)]
struct PageGate {
    /// Gone with the listeners of pushes, since the engine stops with the last of its senders.
    endpoint: Weak<PushEndpoint>,
    scheme: &'static str,
}

impl PageGate {
    /// Passes a request on that the page sent, with the token of admins.
    async fn pass<F: Future<Output = Response>>(
        self,
        mut request: Request<Body>,
        handle: impl FnOnce(State<Arc<PushEndpoint>>, Request<Body>) -> F,
    ) -> Response {
        let Some(endpoint) = self.endpoint.upgrade() else {
            return PushRefusal::Submit(SubmitError::Closed).into_response();
        };
        let caller = endpoint.roles.caller_of_page(&request, self.scheme);
        match endpoint.admit(caller, &request).await {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                handle(State(endpoint), request).await
            }
            Err(refusal) => endpoint.timed(async |_| Err(refusal.into())).await,
        }
    }
}

/// The state that the routes share: limits, roles and queues.
pub struct PushEndpoint {
    body_bytes_max: usize,
    /// The deadline of every run, as a Unix time.
    deadline: Option<Seconds>,
    roles: Roles,
    inbox: Inbox,
    releases: Option<Releases>,
    clock: ReadClock,
    bodies: Bodies,
    refusals: RefusalLog,
}

/// Reports that the endpoint answers, to a probe that only its socket serves.
async fn healthy() -> &'static str {
    HEALTHY
}

async fn steps(State(endpoint): State<Arc<PushEndpoint>>, request: Request<Body>) -> Response {
    endpoint
        .timed(async |endpoint| {
            let Caller { peer, .. } = endpoint.authorize(&request).await?;
            let layout = layout_of(request.headers())?;
            let deadline = endpoint.deadline;
            let read = |content: &[u8]| Ok(steps_by(decode_steps(content, layout)?, deadline));
            endpoint.submit(request, peer, read).await
        })
        .await
}

async fn snapshots(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], Caller { peer, .. }| {
        let owner = match peer {
            Peer::Process { uid, .. } => Some(uid),
            _ => None,
        };
        Ok(Event::SnapshotReport(decode_snapshot(body, owner)?))
    };
    endpoint.about(request, read).await
}

async fn holders(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], caller: Caller| {
        let report = decode_holders(body)?;
        Ok(Event::HoldersReport(HoldersReport { is_known: caller.is_known, ..report }))
    };
    endpoint.about(request, read).await
}

async fn end(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], caller: Caller| {
        let run = named("run", run, Run::new)?;
        let mut end = decode_end(body)?;
        if caller.role == Role::Admin {
            end.authority = EndAuthority::Any;
        } else if end.rank.is_none() && end.instance.is_none() {
            return Err(AccessRefusal::NeedsAdmin.into());
        }
        Ok(Event::End(run, end))
    };
    endpoint.about(request, read).await
}

async fn ack(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], _| {
        let run = named("run", run, Run::new);
        Ok(Event::Ack(decode_ack(run?, body)?))
    };
    endpoint.administer(request, read).await
}

async fn want_snapshot(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], _| {
        let (rank, steps) = decode_snapshot_request(named("run", run, Run::new)?, body)?;
        Ok(Event::SnapshotWanted(rank, steps))
    };
    endpoint.administer(request, read).await
}

async fn want_lines(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], _| {
        let run = named("run", run, Run::new)?;
        Ok(Event::LinesWanted(decode_lines_request(run, body)?))
    };
    endpoint.administer(request, read).await
}

async fn device_ack(
    State(endpoint): State<Arc<PushEndpoint>>,
    uuid: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |body: &[u8], _| {
        let uuid = named("uuid", uuid, GpuUuid::new);
        Ok(Event::Ack(decode_device_ack(uuid?, body)?))
    };
    endpoint.administer(request, read).await
}

async fn release(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    endpoint
        .timed(async |endpoint| {
            let Caller { peer, .. } = endpoint.authorize(&request).await?.administering()?;
            json_only(request.headers())?;
            let body = endpoint.bodies.read(request).await?;
            let time = {
                let _turn = endpoint.bodies.turn(&body).await?;
                decode_release(&body.decoded(endpoint.body_bytes_max).await?)?
            };
            drop(body);
            tracing::info!(?time, %peer, "release requested");
            // Without a collector, no device is open.
            if let Some(releases) = &endpoint.releases {
                releases.release(time).await.map_err(PushRefusal::Submit)?;
            }
            Ok(Receipt::default())
        })
        .await
}

/// Parses a name in the path of a request.
fn named<N, E: Display>(
    field: &'static str,
    path: Result<Path<String>, PathRejection>,
    parse: impl FnOnce(&str) -> Result<N, E>,
) -> Result<N, PushRefusal> {
    let not_utf8 = |_| PushRefusal::subject(field, PATH_NOT_UTF8.to_owned());
    let Path(name) = path.map_err(not_utf8)?;
    parse(&name).map_err(|error| PushRefusal::subject(field, error.to_string()))
}

impl PushEndpoint {
    pub fn new(
        config: &PushConfig,
        receivers: Receivers,
        tokens: Tokens,
        clock: EndpointClock,
    ) -> Arc<Self> {
        let EndpointClock { uptime: clock, started } = clock;
        let Receivers { inbox, releases } = receivers;
        let body_bytes_max = config.body_bytes_max;
        let deadline = config.deadline.and_then(|deadline| deadline.since(started));
        let bodies = Bodies::new(body_bytes_max);
        let roles = Roles::new(tokens, config.trusts_machine, Arc::clone(&clock));
        let refusals = RefusalLog::default();
        Arc::new(Self {
            body_bytes_max,
            deadline,
            roles,
            inbox,
            releases,
            clock,
            bodies,
            refusals,
        })
    }

    /// Responds with the result of `handle`, and counts the result and its duration.
    async fn timed(
        &self,
        handle: impl AsyncFnOnce(&Self) -> Result<Receipt, PushRefusal>,
    ) -> Response {
        let began = (self.clock)();
        let outcome = handle(self).await;
        let result =
            outcome.as_ref().map_or_else(PushRefusal::result, |_| PushResult::Accepted);
        let now = (self.clock)();
        self.inbox.counts().add(result, now.since(began));
        match outcome {
            Ok(Receipt { n_records, requests, id, is_found }) => {
                let body = match (id, is_found) {
                    (Some(id), _) => encode_requested(&id),
                    (None, Some(is_found)) => encode_acknowledged(is_found),
                    (None, None) => encode_accepted(n_records, &requests),
                };
                ([(CONTENT_TYPE, "application/json")], body).into_response()
            }
            Err(refused) => {
                self.refusals.add(result, &refused, now);
                refused.into_response()
            }
        }
    }

    /// Handles a request of a client that may push, whose body is the JSON that `read` decodes.
    async fn about(
        &self,
        request: Request<Body>,
        read: impl FnOnce(&[u8], Caller) -> Result<Event, PushRefusal>,
    ) -> Response {
        self.timed(async |endpoint| {
            let caller = endpoint.authorize(&request).await?;
            json_only(request.headers())?;
            endpoint.submit(request, caller.peer, |content| read(content, caller)).await
        })
        .await
    }

    /// Handles a request like [`Self::about`], for admins only.
    async fn administer(
        &self,
        request: Request<Body>,
        read: impl FnOnce(&[u8], Caller) -> Result<Event, PushRefusal>,
    ) -> Response {
        self.timed(async |endpoint| {
            let caller = endpoint.authorize(&request).await?.administering()?;
            json_only(request.headers())?;
            endpoint.submit(request, caller.peer, |content| read(content, caller)).await
        })
        .await
    }

    /// Returns the sender of a request, once the request may be answered.
    fn authorize<'e>(
        &'e self,
        request: &Request<Body>,
    ) -> impl Future<Output = Result<Caller, AccessRefusal>> + use<'e> {
        self.admit(self.roles.caller(request), request)
    }

    /// Slows the answer to a wrong token, if there were too many.
    fn admit<'e>(
        &'e self,
        caller: Result<Caller, AccessRefusal>,
        request: &Request<Body>,
    ) -> impl Future<Output = Result<Caller, AccessRefusal>> + use<'e> {
        let connection = request.extensions().get::<Connection>().cloned();
        async move {
            if !matches!(caller, Err(AccessRefusal::WrongToken)) {
                return caller;
            }
            if let Some(refusal) = self.roles.paced().await {
                return Err(refusal);
            }
            let (result, now) = (PushResult::Guessed, (self.clock)());
            self.inbox.counts().add(result, Duration::ZERO);
            self.refusals.add(result, &AccessRefusal::Guessed, now);
            if let Some(connection) = connection {
                connection.evict().notify_one();
            }
            // The connection ends, and with it this future.
            std::future::pending().await
        }
    }

    /// Reads and decodes a body, and submits it.
    async fn submit(
        &self,
        request: Request<Body>,
        peer: Peer,
        read: impl FnOnce(&[u8]) -> Result<Event, PushRefusal>,
    ) -> Result<Receipt, PushRefusal> {
        let body = self.bodies.read(request).await?;
        let _turn = self.bodies.turn(&body).await?;
        let event = read(&body.decoded(self.body_bytes_max).await?)?;
        drop(body);
        self.inbox.submit(event, peer).await.map_err(PushRefusal::Submit)
    }
}

/// Refuses a body that is not a single JSON value.
fn json_only(headers: &HeaderMap) -> Result<(), PushRefusal> {
    match layout_of(headers)? {
        Layout::Json => Ok(()),
        Layout::NdJson => Err(PushRefusal::MediaType("application/x-ndjson".to_owned())),
    }
}

fn layout_of(headers: &HeaderMap) -> Result<Layout, PushRefusal> {
    let value = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let media = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if media.eq_ignore_ascii_case(b"application/json") {
        Ok(Layout::Json)
    } else if media.eq_ignore_ascii_case(b"application/x-ndjson") {
        Ok(Layout::NdJson)
    } else {
        Err(PushRefusal::MediaType(String::from_utf8_lossy(media).into_owned()))
    }
}
