//! Refusals as problem+json (RFC 9457), in one form for every server.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use stepmem_engine::wire::{encode_problem, shortened};

/// The longest detail of a problem, in characters. With its other members, a problem stays
/// below 1 KiB unless it has to be escaped.
pub const DETAIL_CHARS_MAX: usize = 896;
/// The media type of a refusal.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The titles of requests for what the exporter does not have, by which commands know them.
pub const NO_SUCH_RANK: &str = "No such rank";
pub const NO_SUCH_RUN: &str = "No such run";
pub const NO_SUCH_DEVICE: &str = "No such device or process";
/// The reason that a name in a path cannot be read.
pub const PATH_NOT_UTF8: &str = "the name in the path is not UTF-8";

/// Responds with a problem.
pub fn problem(status: StatusCode, title: &str, detail: &str) -> Response {
    let detail = shortened(detail, DETAIL_CHARS_MAX);
    let body = encode_problem(status.as_u16(), title, &detail);
    (status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}
