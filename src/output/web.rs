//! What people and scrapers read: the page, `/metrics`, health and the status as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{mpsc, oneshot, watch};
use tower_http::compression::CompressionLayer;

use crate::analysis::status::Status;
use crate::output::prometheus::{Format, render};

/// How long a reader waits for a status made for it before it takes the last one.
pub const FRESH_WITHIN: Duration = Duration::from_millis(50);
/// How long a reader waits for a summary.
pub const SUMMARY_WITHIN: Duration = Duration::from_secs(5);
/// How many readers may wait for a fresh status; the next one takes the last one at once.
pub const READERS_MAX: usize = 64;

const INDEX_HTML: &str = include_str!("page/index.html");
const STYLE_CSS: &str = include_str!("page/style.css");
const PAGE_JS: &str = include_str!("page/page.js");
const SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Asks for a status made now.
pub type StatusRequest = oneshot::Sender<Arc<Status>>;

/// Asks for the summary of a run; the answer never comes where that is not held.
#[derive(Debug)]
pub struct SummaryRequest {
    /// The run's name.
    pub run: String,
    /// As what.
    pub format: SummaryFormat,
    /// Where the summary goes.
    pub answer: oneshot::Sender<String>,
}

/// How a summary is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryFormat {
    /// As `final_summary.json`.
    Json,
    /// As `final_summary.txt`.
    Text,
}

/// Where outputs find the status.
#[derive(Clone, Debug)]
pub struct StatusSource {
    latest: watch::Receiver<Arc<Status>>,
    requests: mpsc::Sender<StatusRequest>,
    summaries: mpsc::Sender<SummaryRequest>,
}

impl StatusSource {
    /// A source over the last published status, with the side that fresh ones are asked from.
    pub fn new(
        latest: watch::Receiver<Arc<Status>>,
    ) -> (Self, mpsc::Receiver<StatusRequest>, mpsc::Receiver<SummaryRequest>) {
        let (requests, asked) = mpsc::channel(READERS_MAX);
        let (summaries, summaries_asked) = mpsc::channel(READERS_MAX);
        (Self { latest, requests, summaries }, asked, summaries_asked)
    }

    /// The summary of a run that is held.
    ///
    /// # Errors
    /// The status to answer with: no such run, or no room or time for another.
    async fn summary(&self, run: String, format: SummaryFormat) -> Result<String, StatusCode> {
        let (answer, answered) = oneshot::channel();
        let request = SummaryRequest { run, format, answer };
        self.summaries.try_send(request).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        match tokio::time::timeout(SUMMARY_WITHIN, answered).await {
            Ok(Ok(summary)) => Ok(summary),
            Ok(Err(_)) => Err(StatusCode::NOT_FOUND),
            Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// A status that holds every push answered before this call; the last published one where none comes in time.
    pub async fn fresh(&self) -> Arc<Status> {
        let (answer, answered) = oneshot::channel();
        if self.requests.try_send(answer).is_ok()
            && let Ok(Ok(status)) = tokio::time::timeout(FRESH_WITHIN, answered).await
        {
            return status;
        }
        Arc::clone(&self.latest.borrow())
    }
}

/// What the routes need.
#[derive(Clone, Debug)]
struct Site {
    source: StatusSource,
    index: Arc<str>,
    stop: watch::Receiver<bool>,
}

/// What the page links.
#[derive(Clone, Debug)]
pub struct WebConfig {
    /// The path of the table: letters, digits, `/`, `-`, `_` and `.`.
    pub telemetry_path: String,
    /// Where pushes are taken (`http://127.0.0.1:9478`, `unix:/run/stepmem/push.sock`).
    pub push_url: String,
}

/// The routes of the web server.
pub fn router(config: &WebConfig, source: StatusSource, stop: watch::Receiver<bool>) -> Router {
    let WebConfig { telemetry_path, push_url } = config;
    let index = INDEX_HTML
        .replace("{{telemetry_path}}", telemetry_path)
        .replace("{{push_url}}", &escaped(push_url))
        .into();
    Router::new()
        .route("/", get(index_page))
        .route("/style.css", get(|| async { asset("text/css; charset=utf-8", STYLE_CSS) }))
        .route("/page.js", get(|| async { asset("text/javascript; charset=utf-8", PAGE_JS) }))
        .route(telemetry_path, get(metrics))
        .route("/api/v1/status", get(status))
        .route("/api/v1/runs/{run}/summary", get(summary))
        .route("/-/healthy", get(|| async { "stepmem is healthy.\n" }))
        .route("/-/ready", get(ready))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such path; / links what there is\n") })
        .layer(CompressionLayer::new())
        .with_state(Site { source, index, stop })
}

/// A text as an attribute's value.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

async fn index_page(State(site): State<Site>) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, SECURITY_POLICY),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, site.index.to_string()).into_response()
}

fn asset(content_type: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-cache")], text).into_response()
}

async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::negotiate(&accept.join(","));
    let text = render(&*site.source.fresh().await, format);
    let headers = [(CONTENT_TYPE, format.content_type()), (VARY, "accept")];
    (headers, text).into_response()
}

async fn status(State(site): State<Site>) -> Response {
    match serde_json::to_vec(&*site.source.fresh().await) {
        Ok(json) => {
            let json_type = HeaderValue::from_static("application/json");
            ([(CONTENT_TYPE, json_type)], Body::from(json)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The summary of a run, as JSON or, with `?format=text`, as its card.
async fn summary(
    State(site): State<Site>,
    run: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Response {
    let refuse = |status: StatusCode, text: String| (status, text + "\n").into_response();
    let run = match run {
        Ok(Path(run)) => run,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.body_text()),
    };
    let (format, content_type) = match uri.query() {
        None | Some("" | "format=json") => (SummaryFormat::Json, "application/json"),
        Some("format=text") => (SummaryFormat::Text, "text/plain; charset=utf-8"),
        Some(other) => {
            let text = format!("{other:?} is neither format=json nor format=text");
            return refuse(StatusCode::BAD_REQUEST, text);
        }
    };
    match site.source.summary(run, format).await {
        Ok(text) => ([(CONTENT_TYPE, content_type)], text).into_response(),
        Err(StatusCode::NOT_FOUND) => {
            refuse(StatusCode::NOT_FOUND, "no rank of that run has pushed here".to_owned())
        }
        Err(status) => refuse(status, "no summary in time; ask again".to_owned()),
    }
}

async fn ready(State(site): State<Site>) -> (StatusCode, &'static str) {
    if *site.stop.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "stepmem is stopping.\n")
    } else {
        (StatusCode::OK, "stepmem is ready.\n")
    }
}
