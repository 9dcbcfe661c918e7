//! Answers of the web server: compressed for readers that take gzip, and counted until they are
//! written.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Semaphore;

use crate::net::byte_budget::{ByteBudget, HeldBytes};
use crate::net::server::Connection;

/// Byte budget of answers that are not written yet, or one answer of any size. The connection
/// whose answer has waited the longest is evicted.
pub(super) const UNREAD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Size in bytes below which answers are not compressed.
const PACKED_FROM_BYTES: usize = 1024;
/// Bytes that are compressed before others have a turn.
const PACKED_AT_ONCE: usize = 64 * 1024;

/// The connection that an answer goes to, if one of this program's servers has it.
pub(super) type ReaderConnection = Option<Extension<Connection>>;

/// The answers of the web server.
#[derive(Debug)]
pub(super) struct Answers {
    unread: Arc<ByteBudget>,
    /// Compression takes memory: one answer at a time.
    packing: Semaphore,
}

/// A text for any number of readers.
#[derive(Debug)]
pub struct SharedText {
    plain: Bytes,
    packed: OnceLock<Bytes>,
    level: Compression,
}

impl SharedText {
    pub fn new(plain: impl Into<Bytes>) -> Arc<Self> {
        Self::packed_at(Compression::fast(), plain)
    }

    /// Creates a text that stays the same, for which thorough compression pays.
    pub(super) fn lasting(plain: impl Into<Bytes>) -> Arc<Self> {
        Self::packed_at(Compression::best(), plain)
    }

    fn packed_at(level: Compression, plain: impl Into<Bytes>) -> Arc<Self> {
        Arc::new(Self { plain: plain.into(), packed: OnceLock::new(), level })
    }
}

/// The content of an answer.
pub(super) struct Content {
    pub(super) text: Arc<SharedText>,
    pub(super) media_type: &'static str,
    /// The request headers that it depends on.
    pub(super) vary: &'static str,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self { unread: ByteBudget::new(UNREAD_BYTES_MAX), packing: Semaphore::new(1) }
    }

    /// Responds with a content.
    pub(super) async fn respond(
        &self,
        content: Content,
        headers: &HeaderMap,
        connection: ReaderConnection,
    ) -> Response {
        let Content { text, media_type, vary } = content;
        let is_packed = text.plain.len() >= PACKED_FROM_BYTES && takes_gzip(headers);
        let bytes = if is_packed {
            match self.packed(&text).await {
                Ok(packed) => packed,
                Err(error) => {
                    return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
                        .into_response();
                }
            }
        } else {
            text.plain.clone()
        };
        let evict = connection.map(|Extension(connection)| connection.evict());
        let held = self.unread.hold(bytes.len(), evict.unwrap_or_default());
        let bytes = Bytes::from_owner(CountedBytes { bytes, _held: held });
        let headers = [(CONTENT_TYPE, media_type), (VARY, vary)];
        let mut response = (headers, Body::from(bytes)).into_response();
        if is_packed {
            let gzip = HeaderValue::from_static("gzip");
            response.headers_mut().insert(CONTENT_ENCODING, gzip);
        }
        response
    }

    /// Compresses an answer, unless it was compressed for a reader before.
    async fn packed(&self, text: &SharedText) -> io::Result<Bytes> {
        let _turn = self.packing.acquire().await.map_err(io::Error::other)?;
        if let Some(packed) = text.packed.get() {
            return Ok(packed.clone());
        }
        let mut encoder = GzEncoder::new(Vec::new(), text.level);
        for part in text.plain.chunks(PACKED_AT_ONCE) {
            encoder.write_all(part)?;
            if text.plain.len() > PACKED_AT_ONCE {
                tokio::task::yield_now().await;
            }
        }
        let packed = Bytes::from(encoder.finish()?);
        Ok(text.packed.get_or_init(|| packed).clone())
    }
}

/// Bytes that count as unread until they are dropped.
struct CountedBytes {
    bytes: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns whether a reader takes gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(
        |coding| {
            let mut parts = coding.split(';').map(str::trim);
            let is_gzip = parts.next().is_some_and(|name| {
                ["gzip", "x-gzip", "*"].iter().any(|gzip| name.eq_ignore_ascii_case(gzip))
            });
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let is_refused =
                weight.and_then(|q| q.parse::<f64>().ok()).is_some_and(|q| q <= 0.0);
            is_gzip && !is_refused
        },
    )
}
