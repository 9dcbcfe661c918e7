//! The push endpoint: limits, authorization and status codes, on TCP and on a Unix socket.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, SemaphorePermit};
use tower_http::decompression::RequestDecompressionLayer;

use crate::analysis::refusal::Refusal;
use crate::input::push::inbox::{Delivery, Inbox, OfferError, PushResult, Receipt, Releases};
use crate::input::push::wire::answer::{
    encode_accepted, encode_contest, encode_demanded, encode_problem,
};
use crate::input::push::wire::control::{
    decode_ack, decode_demand, decode_device_ack, decode_end, decode_release, decode_snapshot,
};
use crate::input::push::wire::error::DecodeError;
use crate::input::push::wire::holders::decode_holders;
use crate::input::push::wire::step::{Layout, decode};
use crate::model::ids::{GpuUuid, Run};
use crate::model::units::Uptime;
use crate::net::server::Peer;

/// Maximum number of bytes of all bodies in memory. Together with the connections' own buffers, it bounds the memory
/// that a flood of requests can take.
pub const BODIES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A body must arrive completely within this time.
pub const BODY_WITHIN: Duration = Duration::from_secs(10);
/// The value of `Retry-After`, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";
/// The detail of a response to an unknown path.
const ROUTES: &str = "the push endpoint has POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end, /v1/runs/RUN/ack, /v1/runs/RUN/snapshot, /v1/holders, /v1/devices/UUID/ack and /v1/nvml/release";
/// The media type of a refusal.
const PROBLEM_JSON: &str = "application/problem+json";

/// The limits of pushes.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// The largest body after decompression, in bytes.
    pub body_bytes_max: usize,
    /// The token that clients must send; `None` accepts every client.
    pub token: Option<Vec<u8>>,
}

/// Returns the time since the start.
pub type ReadUptime = Arc<dyn Fn() -> Uptime + Send + Sync>;

/// Creates the routes of the push endpoint.
/// `releases`: the queue to the collector that holds devices open; `None` without one.
pub fn router(
    config: PushConfig,
    inbox: Inbox,
    releases: Option<Releases>,
    clock: ReadUptime,
) -> Router {
    let bodies = Semaphore::new(BODIES_BYTES_MAX);
    let endpoint = Arc::new(PushEndpoint { config, inbox, releases, clock, bodies });
    Router::new()
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
        // Bodies with an unknown encoding are passed on, so that the refusal is ours.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .with_state(endpoint)
}

struct PushEndpoint {
    config: PushConfig,
    inbox: Inbox,
    releases: Option<Releases>,
    clock: ReadUptime,
    bodies: Semaphore,
}

async fn steps(State(endpoint): State<Arc<PushEndpoint>>, request: Request<Body>) -> Response {
    endpoint
        .timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            let layout = layout_of(request.headers())?;
            let (body, _held) = endpoint.body(request.into_body()).await?;
            let batch = decode(&body, layout)?;
            endpoint.offer(Delivery::Steps(batch)).await
        })
        .await
}

async fn snapshots(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    endpoint
        .timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            let owner = request.extensions().get::<Peer>().and_then(|peer| peer.uid);
            let (body, _held) = endpoint.json(request).await?;
            endpoint.offer(Delivery::Snapshot(decode_snapshot(&body, owner)?)).await
        })
        .await
}

async fn holders(
    State(endpoint): State<Arc<PushEndpoint>>,
    request: Request<Body>,
) -> Response {
    endpoint
        .timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            let (body, _held) = endpoint.json(request).await?;
            endpoint.offer(Delivery::Holders(decode_holders(&body)?)).await
        })
        .await
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
            let (body, _held) = endpoint.json(request).await?;
            let time = decode_release(&body)?;
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

    /// Handles a request about what its path names, whose body is the JSON that `read` decodes.
    async fn about<N>(
        &self,
        name: Result<N, PushRefusal>,
        request: Request<Body>,
        read: impl FnOnce(N, &[u8]) -> Result<Delivery, DecodeError>,
    ) -> Response {
        self.timed(async |endpoint| {
            endpoint.authorize(request.headers())?;
            let (body, _held) = endpoint.json(request).await?;
            endpoint.offer(read(name?, &body)?).await
        })
        .await
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<(), PushRefusal> {
        let Some(token) = &self.config.token else { return Ok(()) };
        let shown = headers
            .get(AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .and_then(|value| value.split_at_checked(b"Bearer ".len()))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
            .ok_or(PushRefusal::NoToken)?
            .1;
        if bool::from(shown.ct_eq(token)) { Ok(()) } else { Err(PushRefusal::WrongToken) }
    }

    /// Reads a body that is a single JSON value.
    async fn json(
        &self,
        request: Request<Body>,
    ) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), PushRefusal> {
        if layout_of(request.headers())? != Layout::Json {
            return Err(PushRefusal::MediaType("application/x-ndjson".to_owned()));
        }
        self.body(request.into_body()).await
    }

    /// Reads a body within the limits of size and time. Its bytes count towards the limit of all bodies until the
    /// second value is dropped.
    async fn body(
        &self,
        body: Body,
    ) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), PushRefusal> {
        tokio::time::timeout(BODY_WITHIN, self.read(body))
            .await
            .map_err(|_| PushRefusal::Slow)?
    }

    async fn read(
        &self,
        body: Body,
    ) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), PushRefusal> {
        let limit = self.config.body_bytes_max;
        let mut body = body;
        let mut bytes = Vec::new();
        let mut held = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| PushRefusal::of_body(&error))?;
            let Some(chunk) = frame.data_ref() else { continue };
            if bytes.len() + chunk.len() > limit {
                return Err(PushRefusal::TooLarge(limit));
            }
            let n_permits = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            held.push(
                self.bodies.try_acquire_many(n_permits).map_err(|_| PushRefusal::Flooded)?,
            );
            bytes.extend_from_slice(chunk);
        }
        Ok((bytes, held))
    }

    async fn offer(&self, delivery: Delivery) -> Result<Receipt, PushRefusal> {
        self.inbox.offer(delivery).await.map_err(PushRefusal::Offer)
    }
}

fn layout_of(headers: &HeaderMap) -> Result<Layout, PushRefusal> {
    let encoding =
        headers.get(CONTENT_ENCODING).map_or(&b"identity"[..], HeaderValue::as_bytes);
    if !encoding.eq_ignore_ascii_case(b"identity") {
        return Err(PushRefusal::Encoding(String::from_utf8_lossy(encoding).into_owned()));
    }
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

/// Why a push is refused. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
enum PushRefusal {
    #[error("the header Authorization: Bearer TOKEN is missing")]
    NoToken,
    #[error("the token is not the one of this exporter")]
    WrongToken,
    #[error("content type {0:?} is neither application/json nor application/x-ndjson")]
    MediaType(String),
    #[error("content encoding {0:?} is neither gzip nor identity")]
    Encoding(String),
    #[error("the decoded body exceeds {0} bytes")]
    TooLarge(usize),
    #[error("the body was not whole within {BODY_WITHIN:?}")]
    Slow,
    #[error("the body could not be read: {0}")]
    Interrupted(String),
    #[error("the body is not gzip: {0}")]
    NoGzip(String),
    #[error("all bodies together exceed {BODIES_BYTES_MAX} bytes")]
    Flooded,
    #[error("{field}: {problem}")]
    Subject {
        /// `run` or `uuid`, of the path.
        field: &'static str,
        problem: String,
    },
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error(transparent)]
    Offer(OfferError),
}

impl PushRefusal {
    fn subject(field: &'static str, problem: String) -> Self {
        Self::Subject { field, problem }
    }

    /// Distinguishes a broken connection from invalid gzip.
    fn of_body(error: &axum::Error) -> Self {
        let reason = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            if error.is::<hyper::Error>() {
                return Self::Interrupted(reason);
            }
            cause = error.source();
        }
        Self::NoGzip(reason)
    }

    fn result(&self) -> PushResult {
        match self {
            Self::NoToken | Self::WrongToken => PushResult::Unauthorized,
            Self::MediaType(_) | Self::Encoding(_) => PushResult::UnsupportedMediaType,
            Self::TooLarge(_) => PushResult::TooLarge,
            Self::Slow => PushResult::Timeout,
            Self::Interrupted(_) => PushResult::Interrupted,
            Self::Subject { .. } => PushResult::OutOfRange,
            Self::Malformed(error) if error.is_too_long() => PushResult::TooLarge,
            Self::Malformed(error) if error.is_out_of_range() => PushResult::OutOfRange,
            Self::NoGzip(_) | Self::Malformed(_) => PushResult::Malformed,
            Self::Offer(OfferError::Refused(Refusal::UnknownSubject(_))) => {
                PushResult::UnknownRank
            }
            Self::Offer(OfferError::Refused(Refusal::Held(_) | Refusal::EndOfAnother(_))) => {
                PushResult::NameTaken
            }
            Self::Offer(OfferError::Refused(_)) => PushResult::TooMany,
            Self::Flooded
            | Self::Offer(OfferError::Full | OfferError::Closed | OfferError::Hanging) => {
                PushResult::Busy
            }
        }
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self.result() {
            PushResult::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            PushResult::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported content")
            }
            PushResult::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Body too large"),
            PushResult::Timeout => (StatusCode::REQUEST_TIMEOUT, "Body too slow"),
            PushResult::TooMany => (StatusCode::TOO_MANY_REQUESTS, "Too many"),
            PushResult::UnknownRank => (StatusCode::NOT_FOUND, "No such rank"),
            PushResult::NameTaken => (StatusCode::CONFLICT, "Run name taken"),
            PushResult::Busy => (StatusCode::SERVICE_UNAVAILABLE, "No room"),
            PushResult::Accepted
            | PushResult::Malformed
            | PushResult::OutOfRange
            | PushResult::Interrupted => (StatusCode::BAD_REQUEST, "Not a push"),
        }
    }
}

impl IntoResponse for PushRefusal {
    fn into_response(self) -> Response {
        let (status, title) = self.status();
        if let Self::Offer(OfferError::Refused(Refusal::Held(contest))) = &self {
            let body = encode_contest(title, &self.to_string(), contest);
            let seconds = contest.retry_after.as_secs_f64().ceil();
            let headers = [
                (CONTENT_TYPE, PROBLEM_JSON.to_owned()),
                (RETRY_AFTER, format!("{seconds:.0}")),
            ];
            return (status, headers, body).into_response();
        }
        let mut response = problem(status, title, &self.to_string());
        let header = match status {
            StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Bearer")),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Some((RETRY_AFTER, RETRY_AFTER_SECONDS))
            }
            _ => None,
        };
        if let Some((name, value)) = header {
            let (name, value): (HeaderName, _) = (name, HeaderValue::from_static(value));
            response.headers_mut().insert(name, value);
        }
        response
    }
}

fn problem(status: StatusCode, title: &str, detail: &str) -> Response {
    let body = encode_problem(status.as_u16(), title, detail);
    (status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}
