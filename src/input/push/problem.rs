//! The reasons that pushes are refused, as status codes and problem+json.

use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::input::push::inbox::{PushResult, SubmitError};
use crate::input::push::roles::AccessRefusal;
use crate::net::problem::{NO_SUCH_DEVICE, NO_SUCH_RANK, NO_SUCH_RUN, PROBLEM_JSON, problem};
use stepmem_engine::Refusal;
use stepmem_engine::wire::{DecodeError, ECHO_CHARS_MAX, encode_name_conflict, shortened};
use stepmem_types::ids::SubjectId;

/// The value of `Retry-After`, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";

/// Reasons that a push is refused. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushRefusal {
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    #[error("content type {:?} is neither application/json nor application/x-ndjson", echoed(.0))]
    MediaType(String),
    #[error("content encoding {:?} is neither gzip nor identity", echoed(.0))]
    Encoding(String),
    #[error("the decoded body exceeds {0} bytes (--push.body-max)")]
    TooLarge(usize),
    #[error("the body was not complete within {0:?}")]
    Slow(Duration),
    #[error("the body could not be read: {0}")]
    Interrupted(String),
    #[error("the body is not gzip: {0}")]
    NoGzip(String),
    #[error("all bodies together exceed {0} bytes, and this one was slow")]
    Flooded(usize),
    #[error("{field}: {problem}")]
    Subject {
        /// `run` or `uuid`, of the path.
        field: &'static str,
        problem: String,
    },
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error(transparent)]
    Submit(SubmitError),
}

impl PushRefusal {
    pub(super) fn subject(field: &'static str, problem: String) -> Self {
        Self::Subject { field, problem }
    }

    pub(super) fn result(&self) -> PushResult {
        match self {
            Self::Access(
                AccessRefusal::NoToken | AccessRefusal::NoPageToken | AccessRefusal::WrongToken,
            ) => PushResult::Unauthorized,
            Self::Access(AccessRefusal::Guessed) => PushResult::Guessed,
            Self::Access(AccessRefusal::NeedsAdmin | AccessRefusal::NotOfPage)
            | Self::Submit(SubmitError::Refused(Refusal::OfUnnamed(_))) => {
                PushResult::Forbidden
            }
            Self::MediaType(_) | Self::Encoding(_) => PushResult::UnsupportedMediaType,
            Self::TooLarge(_) => PushResult::TooLarge,
            Self::Slow(_) => PushResult::Timeout,
            Self::Interrupted(_) => PushResult::Interrupted,
            Self::Subject { .. } => PushResult::OutOfRange,
            Self::Malformed(error) if error.is_too_long() => PushResult::TooLarge,
            Self::Malformed(error) if error.is_out_of_range() => PushResult::OutOfRange,
            Self::NoGzip(_) | Self::Malformed(_) => PushResult::Malformed,
            Self::Submit(SubmitError::Refused(
                Refusal::UnknownSubject(_) | Refusal::UnknownRun(_),
            )) => PushResult::UnknownRank,
            Self::Submit(SubmitError::Refused(
                Refusal::Held(_) | Refusal::OfAnother(_) | Refusal::HasEnded { .. },
            )) => PushResult::NameTaken,
            Self::Submit(SubmitError::Refused(_)) => PushResult::TooMany,
            Self::Flooded(_)
            | Self::Submit(SubmitError::Full | SubmitError::Closed | SubmitError::Hanging) => {
                PushResult::Busy
            }
        }
    }

    fn status(&self) -> (StatusCode, &'static str) {
        match self.result() {
            PushResult::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            PushResult::Guessed => (StatusCode::TOO_MANY_REQUESTS, "Too many wrong tokens"),
            PushResult::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            PushResult::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported content")
            }
            PushResult::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Body too large"),
            PushResult::Timeout => (StatusCode::REQUEST_TIMEOUT, "Body too slow"),
            PushResult::TooMany => (StatusCode::TOO_MANY_REQUESTS, "Too many"),
            PushResult::UnknownRank => (StatusCode::NOT_FOUND, self.no_such()),
            PushResult::NameTaken
                if matches!(
                    self,
                    Self::Submit(SubmitError::Refused(Refusal::HasEnded { .. }))
                ) =>
            {
                (StatusCode::CONFLICT, "Ended before")
            }
            PushResult::NameTaken => (StatusCode::CONFLICT, "Run name taken"),
            PushResult::Busy => (StatusCode::SERVICE_UNAVAILABLE, "Busy"),
            PushResult::Accepted
            | PushResult::Malformed
            | PushResult::OutOfRange
            | PushResult::Interrupted => (StatusCode::BAD_REQUEST, "Bad request"),
        }
    }
}

impl PushRefusal {
    /// Returns the title of a request for what is not there.
    fn no_such(&self) -> &'static str {
        match self {
            Self::Submit(SubmitError::Refused(Refusal::UnknownRun(_))) => NO_SUCH_RUN,
            Self::Submit(SubmitError::Refused(Refusal::UnknownSubject(
                SubjectId::Device(_) | SubjectId::Process(_),
            ))) => NO_SUCH_DEVICE,
            _ => NO_SUCH_RANK,
        }
    }
}

impl IntoResponse for PushRefusal {
    fn into_response(self) -> Response {
        let (status, title) = self.status();
        if let Self::Submit(SubmitError::Refused(Refusal::Held(conflict))) = &self {
            let body = encode_name_conflict(title, &self.to_string(), conflict);
            let seconds = conflict.retry_after.as_secs_f64().ceil();
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

/// A value of the request, as far as it is repeated.
fn echoed(value: &str) -> String {
    shortened(value, ECHO_CHARS_MAX).into_owned()
}
