//! Any bytes on a connection to the push endpoint or the web server, over memory instead of a socket: headers, chunks and
//! gzip as they come. Every answer is whole, and short unless it is a page, metrics or a summary.

use std::cell::RefCell;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use axum::Router;
use flate2::Compression;
use flate2::write::GzEncoder;
use stepmem::input::push::http::{
    EndpointClock, PushConfig, PushEndpoint, Receivers, router as push_router,
};
use stepmem::input::push::inbox::{Inbox, Submission};
use stepmem::input::push::roles::Tokens;
use stepmem::net::access::Gate;
use stepmem::net::guard::Guard;
use stepmem::net::passwords::Passwords;
use stepmem::net::peer::Peer;
use stepmem::net::server::{ServerCounts, Service, serve_stream};
use stepmem::output::web::{StatusRequest, StatusSource, WebConfig, router as web_router};
use stepmem_engine::status::{ExporterStatus, Status};
use stepmem_engine::{Engine, EngineConfig};
use stepmem_types::units::Uptime;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// After so many inputs an exporter starts anew: what one input left behind must not matter for ever.
const INPUTS_MAX: u32 = 512;
/// The most bytes of all answers to one input.
const ANSWERS_BYTES_MAX: u64 = 8 << 20;
/// How often the client lets the server go on before it closes its side.
const TURNS: u32 = 48;
/// The client, which loopback makes an admin.
const LOOPBACK: Peer = Peer::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
/// The size of the connection's buffers.
const BUFFER_BYTES: usize = 16 * 1024;

/// The first byte says how the rest is sent: as it is to the push endpoint or to the web server, as a packed body, or as a
/// body that claims to be packed; in one or two pieces.
pub fn run(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else { return };
    let bytes = match mode % 4 {
        0 | 1 => rest.to_vec(),
        2 => with_head(&packed(rest)),
        _ => with_head(rest),
    };
    let is_web = mode % 4 == 1;
    EXPORTER.with_borrow_mut(|exporter| {
        let exporter = exporter.get_or_insert_with(Exporter::start);
        exporter.n_inputs += 1;
        exporter.talk(&bytes, *mode, is_web);
    });
    EXPORTER.with_borrow_mut(|exporter| {
        if exporter.as_ref().is_some_and(|exporter| exporter.n_inputs >= INPUTS_MAX) {
            *exporter = None;
        }
    });
}

thread_local! {
    static EXPORTER: RefCell<Option<Exporter>> = const { RefCell::new(None) };
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

fn with_head(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/steps HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\n\
         Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

struct Exporter {
    runtime: Runtime,
    push: Service,
    web: Service,
    /// Ends the servers when it goes.
    _stop: watch::Sender<bool>,
    n_inputs: u32,
}

impl Exporter {
    fn start() -> Self {
        let runtime =
            Builder::new_current_thread().enable_time().build().expect("a runtime without I/O");
        let began = Instant::now();
        let clock = move || Uptime(began.elapsed());
        let (inbox, submissions) = Inbox::new();
        let (published, latest) = watch::channel(Arc::new(Status::default()));
        let (source, statuses, mut summaries) = StatusSource::new(latest);
        let config = PushConfig {
            body_bytes_max: 256 * 1024,
            token_file: None,
            admin_token_file: None,
            trusts_machine: true,
            has_page_buttons: false,
            deadline: None,
        };
        let receivers = Receivers { inbox, releases: None };
        let tokens = Tokens { push: None, admin: None };
        let push = push_router(
            PushEndpoint::new(
                &config,
                receivers,
                tokens,
                EndpointClock { uptime: Arc::new(clock), started: 0.0 },
            ),
            "http://127.0.0.1:9477".to_owned(),
        );
        let (stop, stopped) = watch::channel(false);
        let config = WebConfig {
            telemetry_path: "/metrics".into(),
            push_url: "unix:/p".into(),
            tokens: "",
            has_buttons: false,
            timelines: None,
        };
        let web = web_router(config, source, stopped.clone());
        runtime.spawn(async move {
            let _published = published;
            tokio::join!(engine(submissions, statuses, clock), async {
                while summaries.recv().await.is_some() {}
            })
        });
        let gate = Arc::new(gate(Arc::new(clock)));
        let service = |router: Router| Service {
            router,
            counts: Arc::new(ServerCounts::default()),
            guard: Arc::new(Guard::default()),
            gate: Arc::clone(&gate),
            connections: Arc::default(),
            stop: stopped.clone(),
        };
        Self { push: service(push), web: service(web), _stop: stop, runtime, n_inputs: 0 }
    }

    fn talk(&self, bytes: &[u8], mode: u8, is_web: bool) {
        let service = if is_web { self.web.clone() } else { self.push.clone() };
        self.runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
            let (reading, writing) = tokio::io::split(ours);
            let served = serve_stream(theirs, LOOPBACK, service);
            let (_, (), answer) =
                tokio::join!(served, send(writing, bytes, mode), read(reading));
            check(&answer);
        });
    }
}

/// A gate that asks clients for nothing.
fn gate(clock: Arc<dyn Fn() -> Uptime + Send + Sync>) -> Gate {
    let (_, policy) = watch::channel(Arc::default());
    let passwords = Passwords::new();
    Gate {
        policy,
        asks_users: false,
        passwords: Arc::new(passwords),
        counts: Arc::default(),
        clock,
        bucket: Mutex::default(),
    }
}

async fn send(mut to: tokio::io::WriteHalf<DuplexStream>, bytes: &[u8], mode: u8) {
    let middle = if mode & 4 == 0 { bytes.len() } else { bytes.len() / 2 };
    let (first, second) = bytes.split_at(middle);
    for part in [first, second] {
        // The server may have hung up.
        if to.write_all(part).await.is_err() {
            return;
        }
        // The server answers what it can before it sees the end.
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }
    to.shutdown().await.ok();
}

async fn read(from: tokio::io::ReadHalf<DuplexStream>) -> Vec<u8> {
    let mut answer = Vec::new();
    from.take(ANSWERS_BYTES_MAX + 1).read_to_end(&mut answer).await.ok();
    answer
}

fn check(answer: &[u8]) {
    assert!(answer.len() as u64 <= ANSWERS_BYTES_MAX);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", answer.get(..64));
    assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(answer));
}

async fn engine(
    mut submissions: mpsc::Receiver<Submission>,
    mut statuses: mpsc::Receiver<StatusRequest>,
    clock: impl Fn() -> Uptime,
) {
    let mut engine = Engine::new(EngineConfig::default(), 1.7e9);
    loop {
        tokio::select! {
            submission = submissions.recv() => {
                let Some(Submission { event, reply, .. }) = submission else { return };
                reply.send(engine.handle(&event, clock()).map(|handled| handled.receipt)).ok();
            }
            request = statuses.recv() => {
                let Some(StatusRequest { answer, .. }) = request else { return };
                let status = engine.status(clock(), ExporterStatus::default());
                answer.send(Arc::new(status)).ok();
            }
        }
    }
}
