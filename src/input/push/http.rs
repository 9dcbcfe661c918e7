//! The push endpoint: limits, authorization and status codes, on TCP and on a Unix socket.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::input::push::bodies::{Bodies, ReadUptime};
use crate::input::push::inbox::{Delivery, Inbox, PushResult, Receipt, Releases};
use crate::input::push::problem::{PushRefusal, problem};
use crate::input::push::wire::answer::{encode_accepted, encode_demanded};
use crate::input::push::wire::control::{
    decode_ack, decode_demand, decode_device_ack, decode_end, decode_release, decode_snapshot,
};
use crate::input::push::wire::error::DecodeError;
use crate::input::push::wire::holders::decode_holders;
use crate::input::push::wire::step::{Layout, decode};
use crate::model::ids::{GpuUuid, Run};
use crate::net::peer::Peer;
use crate::net::server::Connection;

/// The detail of a response to an unknown path.
const ROUTES: &str = "the push endpoint has POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end, /v1/runs/RUN/ack, /v1/runs/RUN/snapshot, /v1/holders, /v1/devices/UUID/ack and /v1/nvml/release";

/// The limits of pushes.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// The largest body after decompression, in bytes.
    pub body_bytes_max: usize,
    /// The token that clients must send; `None` accepts every client.
    pub token_file: Option<TokenFile>,
}

/// The file of a token, as it was read at the start.
#[derive(Clone, Debug)]
pub struct TokenFile {
    pub path: PathBuf,
    pub token: Token,
}

/// The token that clients must send.
#[derive(Clone, Default)]
pub struct Token(pub Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What the endpoint hands requests on to.
#[derive(Clone, Debug)]
pub struct Receivers {
    pub inbox: Inbox,
    /// The queue to the collector that holds devices open; `None` without one.
    pub releases: Option<Releases>,
}

/// Creates the routes of the push endpoint.
/// `token`: the token that clients must send, as it is now; `None` accepts every client.
pub fn router(
    config: &PushConfig,
    receivers: Receivers,
    token: Option<watch::Receiver<Token>>,
    clock: ReadUptime,
) -> Router {
    let Receivers { inbox, releases } = receivers;
    let body_bytes_max = config.body_bytes_max;
    let bodies = Bodies::new(body_bytes_max, Arc::clone(&clock));
    let endpoint =
        Arc::new(PushEndpoint { body_bytes_max, token, inbox, releases, clock, bodies });
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/v1/steps", post(steps))
        .route("/v1/snapshots", post(snapshots))
        .route("/v1/holders", post(holders))
        .route("/v1/runs/{run}/end", post(end))
        .route("/v1/runs/{run}/ack", post(ack))
        .route("/v1/runs/{run}/snapshot", post(demand))
        .route("/v1/devices/{uuid}/ack", post(device_ack))
        .route("/v1/nvml/release", post(release))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "No such path", ROUTES) })
        .method_not_allowed_fallback(|| async {
            problem(StatusCode::METHOD_NOT_ALLOWED, "No such method", ROUTES)
        })
        .with_state(endpoint)
}

struct PushEndpoint {
    body_bytes_max: usize,
    token: Option<watch::Receiver<Token>>,
    inbox: Inbox,
    releases: Option<Releases>,
    clock: ReadUptime,
    bodies: Bodies,
}

/// Says that the endpoint answers, to a probe that reaches nothing but its socket.
async fn healthy() -> &'static str {
    "stepmem is healthy.\n"
}

async fn steps(State(endpoint): State<Arc<PushEndpoint>>, request: Request<Body>) -> Response {
    endpoint
        .timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            let layout = layout_of(request.headers())?;
            let read = |content: &[u8]| Ok(Delivery::Steps(decode(content, layout)?));
            endpoint.deliver(request, read).await
        })
        .await
}

async fn snapshots(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    let peer = request.extensions().get::<Connection>().map(Connection::peer);
    let owner = match peer {
        Some(Peer::Process { uid, .. }) => Some(uid),
        _ => None,
    };
    let read = |(), body: &[u8]| Ok(Delivery::Snapshot(decode_snapshot(body, owner)?));
    endpoint.about(Ok(()), request, read).await
}

async fn holders(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    let read = |(), body: &[u8]| Ok(Delivery::Holders(decode_holders(body)?));
    endpoint.about(Ok(()), request, read).await
}

async fn end(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |run, body: &[u8]| Ok(Delivery::End(run, decode_end(body)?));
    endpoint.about(named("run", run, Run::new), request, read).await
}

async fn ack(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |run, body: &[u8]| Ok(Delivery::Ack(decode_ack(run, body)?));
    endpoint.about(named("run", run, Run::new), request, read).await
}

async fn demand(
    State(endpoint): State<Arc<PushEndpoint>>,
    run: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |run, body: &[u8]| {
        let (rank, steps) = decode_demand(run, body)?;
        Ok(Delivery::Demand(rank, steps))
    };
    endpoint.about(named("run", run, Run::new), request, read).await
}

async fn device_ack(
    State(endpoint): State<Arc<PushEndpoint>>,
    uuid: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let read = |uuid, body: &[u8]| Ok(Delivery::Ack(decode_device_ack(uuid, body)?));
    endpoint.about(named("uuid", uuid, GpuUuid::new), request, read).await
}

async fn release(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    endpoint
        .timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            json_only(request.headers())?;
            let body = endpoint.bodies.read(request).await?;
            let time = {
                let _turn = endpoint.bodies.turn(&body).await?;
                decode_release(&body.decoded(endpoint.body_bytes_max).await?)?
            };
            drop(body);
            // Without a collector, no device is open.
            if let Some(releases) = &endpoint.releases {
                releases.release(time).await.map_err(PushRefusal::Offer)?;
            }
            Ok(Receipt { n_records: 1, ..Receipt::default() })
        })
        .await
}

/// What the path of a request names.
fn named<N, E: Display>(
    field: &'static str,
    path: Result<Path<String>, PathRejection>,
    parse: impl FnOnce(&str) -> Result<N, E>,
) -> Result<N, PushRefusal> {
    let Path(name) = path.map_err(|error| PushRefusal::subject(field, error.body_text()))?;
    parse(&name).map_err(|error| PushRefusal::subject(field, error.to_string()))
}

impl PushEndpoint {
    /// Responds with the result of `handle`, and counts the result and its duration.
    async fn timed(
        &self,
        handle: impl AsyncFnOnce(&Self) -> Result<Receipt, PushRefusal>,
    ) -> Response {
        let began = (self.clock)();
        let outcome = handle(self).await;
        let result =
            outcome.as_ref().map_or_else(PushRefusal::result, |_| PushResult::Accepted);
        self.inbox.counts().add(result, (self.clock)().since(began));
        match outcome {
            Ok(Receipt { n_records, asks, id }) => {
                let body = match id {
                    Some(id) => encode_demanded(&id),
                    None => encode_accepted(n_records, &asks),
                };
                ([(CONTENT_TYPE, "application/json")], body).into_response()
            }
            Err(refused) => {
                tracing::debug!(error = %refused, "push refused");
                refused.into_response()
            }
        }
    }

    /// Handles a request about what its path names, if it names anything, whose body is the JSON that `read` decodes.
    async fn about<N>(
        &self,
        name: Result<N, PushRefusal>,
        request: Request<Body>,
        read: impl FnOnce(N, &[u8]) -> Result<Delivery, DecodeError>,
    ) -> Response {
        self.timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            json_only(request.headers())?;
            endpoint.deliver(request, |content| Ok(read(name?, content)?)).await
        })
        .await
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<(), PushRefusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let shown = headers
            .get(AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .and_then(|value| value.split_at_checked(b"Bearer ".len()))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
            .ok_or(PushRefusal::NoToken)?
            .1;
        if bool::from(shown.ct_eq(&token.borrow().0)) {
            Ok(())
        } else {
            Err(PushRefusal::WrongToken)
        }
    }

    /// Reads and decodes a body, and delivers it.
    async fn deliver(
        &self,
        request: Request<Body>,
        read: impl FnOnce(&[u8]) -> Result<Delivery, PushRefusal>,
    ) -> Result<Receipt, PushRefusal> {
        let body = self.bodies.read(request).await?;
        let _turn = self.bodies.turn(&body).await?;
        let delivery = read(&body.decoded(self.body_bytes_max).await?)?;
        drop(body);
        self.offer(delivery).await
    }

    async fn offer(&self, delivery: Delivery) -> Result<Receipt, PushRefusal> {
        self.inbox.offer(delivery).await.map_err(PushRefusal::Offer)
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
