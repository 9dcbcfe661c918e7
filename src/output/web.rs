//! The web server's routes: the page, `/metrics`, health, and status and summaries as JSON.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::net::access::HEALTHY;
use crate::net::problem::{NO_SUCH_RANK, NO_SUCH_RUN, PATH_NOT_UTF8, problem};
use crate::output::answers::{Answers, Content, ReaderConnection, SharedText};
use crate::output::page;
use crate::output::prometheus::{Format, render};
use crate::output::timelines;
use crate::store::timelines::TimelineFolder;
use stepmem_engine::status::Status;
use stepmem_engine::wire::{ECHO_CHARS_MAX, shortened};
use stepmem_types::format::clean::Quoted;
use stepmem_types::ids::Rank;

/// Time that a reader waits for a fresh status before it gets the last published one.
pub const FRESH_WITHIN: Duration = Duration::from_millis(50);
/// Time that a reader waits for a summary.
pub const SUMMARY_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of readers that wait for a fresh status; further ones get the last published
/// one.
pub const READERS_MAX: usize = 64;
/// Maximum number of pipelined requests that are answered at a time.
pub const PIPELINED_MAX: usize = 1;

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// The files below `/page/`: name, content type, content.
const ASSETS: [(&str, &str, &str); 4] = [
    ("style.css", "text/css; charset=utf-8", page::STYLE),
    ("uplot.js", JAVASCRIPT, page::CHARTS),
    ("uplot.LICENSE", PLAIN_TEXT, page::CHARTS_LICENSE),
    ("main.js", JAVASCRIPT, page::SCRIPT),
];
const SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Requests a fresh status.
#[derive(Debug)]
pub struct StatusRequest {
    /// True if the reader is a scrape, which ended ranks wait for.
    pub is_scrape: bool,
    /// The channel for the status.
    pub answer: oneshot::Sender<Arc<Status>>,
}

/// Requests the summary of a run, or a part of it. The channel closes if the run or the rank is
/// unknown.
#[derive(Debug)]
pub struct SummaryRequest {
    pub run: String,
    pub format: SummaryFormat,
    /// The channel for the summary, which others may get, too.
    pub answer: oneshot::Sender<Arc<SharedText>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryFormat {
    /// The summary as in `final_summary.json`.
    Json,
    /// The summary as in `final_summary.txt`.
    Text,
    /// The windows of the rank of this number, and the gates that currently stop them, as text.
    Windows(u32),
    /// The windows and gates as in [`Self::Windows`], as JSON.
    WindowsJson(u32),
    /// The history of the rank of this number, as JSON.
    History(u32),
    /// The live memory of all ranks over time, as JSON.
    RunHistory,
}

/// Access to the status.
#[derive(Clone, Debug)]
pub struct StatusSource {
    latest: watch::Receiver<Arc<Status>>,
    requests: mpsc::Sender<StatusRequest>,
    summaries: mpsc::Sender<SummaryRequest>,
}

impl StatusSource {
    /// Creates a source of the last published status, and the receivers of requests for fresh
    /// ones and for summaries.
    pub fn new(
        latest: watch::Receiver<Arc<Status>>,
    ) -> (Self, mpsc::Receiver<StatusRequest>, mpsc::Receiver<SummaryRequest>) {
        let (requests, asked) = mpsc::channel(READERS_MAX);
        let (summaries, summaries_asked) = mpsc::channel(READERS_MAX);
        (Self { latest, requests, summaries }, asked, summaries_asked)
    }

    /// Returns the summary of a run.
    ///
    /// # Errors
    /// The status code of the response: unknown run, or too many or too slow requests.
    async fn summary(
        &self,
        run: String,
        format: SummaryFormat,
    ) -> Result<Arc<SharedText>, StatusCode> {
        let (answer, answered) = oneshot::channel();
        let request = SummaryRequest { run, format, answer };
        self.summaries.try_send(request).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        match tokio::time::timeout(SUMMARY_WITHIN, answered).await {
            Ok(Ok(summary)) => Ok(summary),
            Ok(Err(_)) => Err(StatusCode::NOT_FOUND),
            Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// Returns a status that includes every push answered before this call, or the last
    /// published one after [`FRESH_WITHIN`].
    pub async fn fresh(&self, is_scrape: bool) -> Arc<Status> {
        let (answer, answered) = oneshot::channel();
        if self.requests.try_send(StatusRequest { is_scrape, answer }).is_ok()
            && let Ok(Ok(status)) = tokio::time::timeout(FRESH_WITHIN, answered).await
        {
            return status;
        }
        Arc::clone(&self.latest.borrow())
    }
}

/// The state of the routes.
#[derive(Clone, Debug)]
struct Site {
    source: StatusSource,
    index: Arc<SharedText>,
    /// The end of a response to a request for what the web server does not have.
    elsewhere: Arc<str>,
    assets: Arc<[Asset]>,
    answers: Arc<Answers>,
    timelines: Option<Arc<TimelineFolder>>,
    last_rendered: Arc<Mutex<Option<Rendered>>>,
    stop: watch::Receiver<bool>,
}

/// A file of the page.
#[derive(Debug)]
struct Asset {
    name: &'static str,
    media_type: &'static str,
    text: Arc<SharedText>,
}

/// A status as text, for all its readers.
#[derive(Debug)]
struct Rendered {
    status: Arc<Status>,
    /// The texts by format.
    texts: Vec<(TextKind, Arc<SharedText>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Metrics(Format),
    Json,
}

/// The targets of the page's links.
#[derive(Clone, Debug)]
pub struct WebConfig {
    /// The path of the metrics: letters, digits, `/`, `-`, `_` and `.`.
    pub telemetry_path: String,
    /// The address of the push endpoint (`http://127.0.0.1:9478`,
    /// `unix:/run/stepmem/push.sock`).
    pub push_url: String,
    /// The roles that must show a token where pushes go (`push`, `push admin`); empty for none.
    pub tokens: &'static str,
    /// Set where the page has buttons for admins.
    pub has_buttons: bool,
    /// The drawn snapshots; `None` where none are shown.
    pub timelines: Option<Arc<TimelineFolder>>,
}

/// The path that answers with [`WebConfig::push_url`], for commands that push.
pub const PUSH_URL_PATH: &str = "/api/v1/push-url";

/// Returns whether a path is one of [`router`]'s own, which the metrics cannot have.
pub fn is_reserved(path: &str) -> bool {
    ["/", "/api/v1/status", PUSH_URL_PATH, "/-/healthy", "/-/ready"].contains(&path)
        || ["/page/", "/snapshots/"].iter().any(|own| path.starts_with(own))
}

/// Creates the routes of the web server.
pub fn router(config: WebConfig, source: StatusSource, stop: watch::Receiver<bool>) -> Router {
    let WebConfig { telemetry_path, push_url, tokens, has_buttons, timelines } = config;
    let index: String = page::INDEX
        .replace("{{telemetry_path}}", &telemetry_path)
        .replace("{{push_url}}", &escaped(&push_url))
        .replace("{{tokens}}", tokens)
        .replace("{{has_buttons}}", &has_buttons.to_string());
    let elsewhere: Arc<str> = match push_url.as_str() {
        "" => "/ links to all pages".into(),
        push_url => format!("/ links to all pages; pushes go to {push_url}").into(),
    };
    Router::new()
        .route("/", get(index_page))
        .route("/page/{file}", get(asset))
        .route(&telemetry_path, get(metrics))
        .route("/api/v1/status", get(status))
        .route(PUSH_URL_PATH, get(move || std::future::ready(push_url.clone())))
        .route("/api/v1/runs/{run}/summary", get(summary))
        .route("/api/v1/runs/{run}/history", get(run_history))
        .route("/api/v1/runs/{run}/ranks/{rank}/windows", get(windows))
        .route("/api/v1/runs/{run}/ranks/{rank}/history", get(history))
        .route("/snapshots/{id}", get(timeline))
        .route("/-/healthy", get(|| async { HEALTHY }))
        .route("/-/ready", get(ready))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(Arc::new(Semaphore::new(PIPELINED_MAX)), in_turn))
        .with_state(Site {
            source,
            index: SharedText::lasting(index),
            elsewhere,
            assets: ASSETS
                .into_iter()
                .map(|(name, media_type, text)| {
                    let text = SharedText::lasting(text);
                    Asset { name, media_type, text }
                })
                .collect(),
            answers: Arc::new(Answers::new()),
            timelines,
            last_rendered: Arc::default(),
            stop,
        })
}

/// Escapes a text as an attribute's value.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// Has pipelined requests wait for each other. A reader who waits for each answer thus need not
/// wait for theirs.
async fn in_turn(
    State(turns): State<Arc<Semaphore>>,
    connection: ReaderConnection,
    request: Request<Body>,
    next: Next,
) -> Response {
    let is_pipelined =
        connection.is_some_and(|Extension(connection)| connection.is_pipelined());
    let _turn = if is_pipelined { turns.acquire().await.ok() } else { None };
    next.run(request).await
}

async fn index_page(
    State(site): State<Site>,
    connection: ReaderConnection,
    headers: HeaderMap,
) -> Response {
    let (text, media_type) = (Arc::clone(&site.index), "text/html; charset=utf-8");
    let mut response = site.respond_page((text, media_type), &headers, connection).await;
    let policy = HeaderValue::from_static(SECURITY_POLICY);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}

/// Serves a file of the page.
async fn asset(
    State(site): State<Site>,
    connection: ReaderConnection,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let file = uri.path().trim_start_matches("/page/");
    let Some(asset) = site.assets.iter().find(|asset| asset.name == file) else {
        return no_such_path(State(site)).await;
    };
    let (text, media_type) = (Arc::clone(&asset.text), asset.media_type);
    site.respond_page((text, media_type), &headers, connection).await
}

/// Serves a drawn snapshot.
async fn timeline(State(site): State<Site>, uri: Uri) -> Response {
    let id = uri.path().trim_start_matches("/snapshots/");
    match timelines::respond(site.timelines.as_ref(), id) {
        Some(response) => response,
        None => no_such_path(State(site)).await,
    }
}

async fn no_such_path(State(site): State<Site>) -> Response {
    let detail = format!("no such path; {}", site.elsewhere);
    problem(StatusCode::NOT_FOUND, "No such path", &detail)
}

async fn no_such_method(State(site): State<Site>) -> Response {
    let detail = format!("pages are only read, by GET; {}", site.elsewhere);
    problem(StatusCode::METHOD_NOT_ALLOWED, "No such method", &detail)
}

async fn metrics(
    State(site): State<Site>,
    connection: ReaderConnection,
    headers: HeaderMap,
) -> Response {
    let accept: Vec<&str> =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::negotiate(&accept.join(","));
    let status = site.source.fresh(true).await;
    let text = site.rendered(status, TextKind::Metrics(format), |status| {
        Ok(render(status, format).into())
    });
    let Ok(text) = text else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let vary = "accept, accept-encoding";
    let content = Content { text, media_type: format.content_type(), vary };
    site.answers.respond(content, &headers, connection).await
}

impl Site {
    /// Responds with a part of the page, which a browser asks for again each time.
    async fn respond_page(
        &self,
        (text, media_type): (Arc<SharedText>, &'static str),
        headers: &HeaderMap,
        connection: ReaderConnection,
    ) -> Response {
        let content = Content { text, media_type, vary: "accept-encoding" };
        let mut response = self.answers.respond(content, headers, connection).await;
        let no_cache = HeaderValue::from_static("no-cache");
        response.headers_mut().insert(CACHE_CONTROL, no_cache);
        response
    }

    /// Responds with what is known of a run or of one of its ranks, or with why there is nothing.
    async fn respond_held(
        &self,
        asked: Asked,
        headers: &HeaderMap,
        connection: ReaderConnection,
    ) -> Response {
        let Asked { run, rank, format, media_type } = asked;
        let name = shortened(&run, ECHO_CHARS_MAX).into_owned();
        match self.source.summary(run, format).await {
            Ok(text) => {
                let content = Content { text, media_type, vary: "accept-encoding" };
                self.answers.respond(content, headers, connection).await
            }
            Err(status @ StatusCode::NOT_FOUND) => {
                if let Some(rank) = rank {
                    let detail = format!("rank {rank} of run {name} has not pushed");
                    problem(status, NO_SUCH_RANK, &detail)
                } else {
                    let detail = format!("no rank of run {name} has pushed");
                    problem(status, NO_SUCH_RUN, &detail)
                }
            }
            Err(status) => problem(status, "Busy", "the answer was not ready in time; retry"),
        }
    }

    /// Writes a status as text, or returns the text that was written for an earlier reader.
    fn rendered(
        &self,
        status: Arc<Status>,
        kind: TextKind,
        write: impl FnOnce(&Status) -> serde_json::Result<Vec<u8>>,
    ) -> serde_json::Result<Arc<SharedText>> {
        let mut last = self.last_rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut texts = match last.take() {
            Some(rendered) if Arc::ptr_eq(&rendered.status, &status) => rendered.texts,
            _ => Vec::new(),
        };
        let known = texts.iter().find(|(of, _)| *of == kind).map(|(_, text)| Arc::clone(text));
        let text = match known {
            Some(text) => text,
            None => SharedText::new(write(&status)?),
        };
        texts.retain(|(of, _)| *of != kind);
        texts.push((kind, Arc::clone(&text)));
        *last = Some(Rendered { status, texts });
        Ok(text)
    }
}

async fn status(
    State(site): State<Site>,
    connection: ReaderConnection,
    headers: HeaderMap,
) -> Response {
    let status = site.source.fresh(false).await;
    match site.rendered(status, TextKind::Json, |status| serde_json::to_vec(&status.stated())) {
        Ok(text) => {
            let (media_type, vary) = (JSON, "accept-encoding");
            site.answers.respond(Content { text, media_type, vary }, &headers, connection).await
        }
        Err(error) => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, "Not written", &error.to_string())
        }
    }
}

/// Returns whether a query asks for JSON and not for text; `default` without a query.
///
/// # Errors
/// The query is something else.
fn asks_for_json(uri: &Uri, default: bool) -> Result<bool, String> {
    match uri.query() {
        None | Some("") => Ok(default),
        Some("format=json") => Ok(true),
        Some("format=text") => Ok(false),
        Some(other) => {
            let other = Quoted(other);
            Err(format!("the query {other} is neither format=json nor format=text"))
        }
    }
}

/// The run, or the rank of it, that a path names, and the form in which it is asked for.
struct Asked {
    run: String,
    rank: Option<u32>,
    format: SummaryFormat,
    media_type: &'static str,
}

/// Reads a rank of a path.
///
/// # Errors
/// The response that refuses it.
fn rank_of(
    of: Result<Path<(String, String)>, PathRejection>,
) -> Result<(String, u32), Box<Response>> {
    let Path((run, rank)) = of.map_err(|_| Box::new(bad_request(PATH_NOT_UTF8)))?;
    let number = rank.parse().ok().and_then(|number| Rank::new(number).ok());
    let number = number.ok_or_else(|| {
        let rank = Quoted(&rank);
        Box::new(bad_request(&format!("rank: {rank} is not an integer of 0..={}", Rank::MAX)))
    })?;
    Ok((run, number.get()))
}

/// Responds with the summary of a run, as JSON or, with `?format=text`, as text.
async fn summary(
    State(site): State<Site>,
    run: Result<Path<String>, PathRejection>,
    connection: ReaderConnection,
    request: Request<Body>,
) -> Response {
    let Ok(Path(run)) = run else { return bad_request(PATH_NOT_UTF8) };
    let (format, media_type) = match asks_for_json(request.uri(), true) {
        Ok(true) => (SummaryFormat::Json, JSON),
        Ok(false) => (SummaryFormat::Text, PLAIN_TEXT),
        Err(text) => return bad_request(&text),
    };
    let asked = Asked { run, rank: None, format, media_type };
    site.respond_held(asked, request.headers(), connection).await
}

/// Responds with the windows of a rank, as text or, with `?format=json`, as JSON.
async fn windows(
    State(site): State<Site>,
    of: Result<Path<(String, String)>, PathRejection>,
    connection: ReaderConnection,
    request: Request<Body>,
) -> Response {
    let (run, rank) = match rank_of(of) {
        Ok(of) => of,
        Err(refusal) => return *refusal,
    };
    let (format, media_type) = match asks_for_json(request.uri(), false) {
        Ok(true) => (SummaryFormat::WindowsJson(rank), JSON),
        Ok(false) => (SummaryFormat::Windows(rank), PLAIN_TEXT),
        Err(text) => return bad_request(&text),
    };
    let asked = Asked { run, rank: Some(rank), format, media_type };
    site.respond_held(asked, request.headers(), connection).await
}

/// Responds with the history of a rank, as JSON.
async fn history(
    State(site): State<Site>,
    of: Result<Path<(String, String)>, PathRejection>,
    connection: ReaderConnection,
    headers: HeaderMap,
) -> Response {
    let (run, rank) = match rank_of(of) {
        Ok(of) => of,
        Err(refusal) => return *refusal,
    };
    let format = SummaryFormat::History(rank);
    let asked = Asked { run, rank: Some(rank), format, media_type: JSON };
    site.respond_held(asked, &headers, connection).await
}

/// Responds with the live memory of the ranks of a run over time, as JSON.
async fn run_history(
    State(site): State<Site>,
    run: Result<Path<String>, PathRejection>,
    connection: ReaderConnection,
    headers: HeaderMap,
) -> Response {
    let Ok(Path(run)) = run else { return bad_request(PATH_NOT_UTF8) };
    let format = SummaryFormat::RunHistory;
    let asked = Asked { run, rank: None, format, media_type: JSON };
    site.respond_held(asked, &headers, connection).await
}

fn bad_request(detail: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "Bad request", detail)
}

async fn ready(State(site): State<Site>) -> (StatusCode, &'static str) {
    if *site.stop.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "stepmem is stopping.\n")
    } else {
        (StatusCode::OK, "stepmem is ready.\n")
    }
}
