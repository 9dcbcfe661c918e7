//! Serves drawn snapshots, a piece of a file at a time: the exporter never holds a document of
//! megabytes in memory.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;

use crate::store::timelines::TimelineFolder;

/// The policy of a document: a unique origin, which no other page shares, and no network. Its
/// own policy, in its head, lets only its own script run.
const SECURITY_POLICY: &str = "sandbox allow-scripts; default-src 'none'; img-src data:; \
     style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";
/// Bytes that are in memory at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Responds with the document of an id; `None` if there is none.
pub(super) fn respond(folder: Option<&Arc<TimelineFolder>>, id: &str) -> Option<Response> {
    let (file, n_bytes) = folder?.document(id)?;
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (CONTENT_LENGTH, n_bytes.to_string()),
        (CONTENT_SECURITY_POLICY, SECURITY_POLICY.to_owned()),
        (CACHE_CONTROL, "no-cache".to_owned()),
    ];
    let body = Body::new(FileBody { file, n_left: n_bytes });
    Some((headers, body).into_response())
}

/// A file of a known length that is read while it is sent.
struct FileBody {
    file: File,
    n_left: u64,
}

impl FileBody {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.n_left == 0 {
            return Ok(None);
        }
        let n_wanted = usize::try_from(self.n_left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = vec![0; n_wanted];
        self.file.read_exact(&mut piece)?;
        self.n_left -= u64::try_from(n_wanted).unwrap_or(self.n_left);
        Ok(Some(piece.into()))
    }
}

impl hyper::body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.next().map(|piece| piece.map(Frame::data)).transpose())
    }
}
