//! A server with nothing but hyper, beside which stepmem is measured: it reads the same requests and sends the same bytes.
//!
//!     bare-hyper ADDRESS ANSWER PAGE
//!
//! A POST is read to its end and answered with the bytes of the file ANSWER; anything else gets those of PAGE. Both are read for
//! each connection, so that a test may change them.
#![expect(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::convert::Infallible;
use std::env::args;
use std::fs;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let [address, answer, page] =
        <[String; 3]>::try_from(args().skip(1).collect::<Vec<_>>()).unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let bodies = [&answer, &page].map(|path| Bytes::from(fs::read(path).unwrap()));
        let service = service_fn(move |request| answered(request, bodies.clone()));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A client that leaves is no surprise.
        tokio::spawn(async { connection.await.ok() });
    }
}

async fn answered(
    request: Request<Incoming>,
    [answer, page]: [Bytes; 2],
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() != Method::POST {
        return Ok(Response::new(Full::new(page)));
    }
    request.into_body().collect().await.unwrap();
    Ok(Response::new(Full::new(answer)))
}
