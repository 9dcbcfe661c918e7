//! A running exporter as the commands ask it: over TCP or a Unix socket, with its token. The image has no shell and no curl.

use std::fs;
use std::io::{Read, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};

use crate::config::environment;
use crate::input::push::wire::request::ControlRequest;
use crate::model::ids::Rank;

/// How long the exporter may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer that is read: ten times the status of 1024 ranks.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Where pushes go without an address: the socket if it exists, as in a pod, else the port.
const PUSH_SOCKET: &str = "/run/stepmem/push.sock";
const PUSH_URL: &str = "http://127.0.0.1:9478";

/// An exporter at an address.
pub(super) struct LiveExporter {
    client: Client,
    /// The address as it was given.
    name: String,
    url: Url,
    token: Option<String>,
}

impl LiveExporter {
    /// Takes `http://HOST:PORT`, `https://…` or `unix:///PATH`.
    ///
    /// # Errors
    /// The address is none of these.
    pub(super) fn at(address: &str) -> anyhow::Result<Self> {
        let builder = Client::builder().timeout(ANSWER_WITHIN).no_proxy();
        // Without TLS it does not need the system's certificates, which a small image lacks.
        let builder =
            if address.starts_with("https://") { builder } else { builder.tls_certs_only([]) };
        let (builder, url) = match address.strip_prefix("unix://") {
            Some(path) => (builder.unix_socket(PathBuf::from(path)), "http://localhost"),
            None => (builder, address),
        };
        let expected = || format!("{address} is neither http://HOST:PORT nor unix:///PATH");
        let url = Url::parse(url).with_context(expected)?;
        Ok(Self { client: builder.build()?, name: address.to_owned(), url, token: None })
    }

    /// Returns the answer to a GET; `path` begins with a slash.
    ///
    /// # Errors
    /// No exporter answers there, or it refuses.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("{}{path}", self.url.as_str().trim_end_matches('/'));
        let place = format!("{}{path}", self.name.trim_end_matches('/'));
        self.answer(self.client.get(url), &place)
    }

    fn post(&self, request: &ControlRequest) -> anyhow::Result<String> {
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&request.path);
        }
        let post = self.client.post(url).header("content-type", "application/json");
        self.answer(post.body(request.body.to_string()), &self.name)
    }

    /// Returns the body of the answer; `place` names the exporter in errors.
    fn answer(&self, request: RequestBuilder, place: &str) -> anyhow::Result<String> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answer =
            request.send().with_context(|| format!("no exporter answers at {place}"))?;
        let status = answer.status();
        let text = text_of(answer).with_context(|| format!("the answer of {place}"))?;
        let problem = serde_json::from_str::<Problem>(&text).unwrap_or_default();
        let detail = problem.detail.unwrap_or_default();
        anyhow::ensure!(status.is_success(), "{place} answers {status}: {detail}");
        Ok(text)
    }
}

/// Reads an answer of bounded length.
fn text_of(answer: Response) -> anyhow::Result<String> {
    let mut text = String::new();
    answer.take(ANSWER_BYTES_MAX.saturating_add(1)).read_to_string(&mut text)?;
    anyhow::ensure!(
        u64::try_from(text.len()).is_ok_and(|n_bytes| n_bytes <= ANSWER_BYTES_MAX),
        "exceeds {ANSWER_BYTES_MAX} bytes"
    );
    Ok(text)
}

/// The part of a refusal that is for people.
#[derive(Default, serde::Deserialize)]
struct Problem {
    detail: Option<String>,
}

/// The arguments by which [`send`] finds the push endpoint.
pub(super) fn push_args() -> [Arg; 2] {
    [
        Arg::new("url").long("url").value_name("URL").help(format!(
            "Address of the push endpoint, http://HOST:PORT or unix:///PATH [env: STEPMEM_PUSH_URL] [default: \
             unix://{PUSH_SOCKET} if it exists, else {PUSH_URL}]"
        )),
        Arg::new("token-file")
            .long("token-file")
            .value_name("PATH")
            .value_parser(clap::value_parser!(PathBuf))
            .help("File with the exporter's token [env: STEPMEM_PUSH_TOKEN_FILE]"),
    ]
}

/// The argument that [`rank`] reads.
pub(super) fn rank_arg(help: &'static str) -> Arg {
    let arg = Arg::new("rank").long("rank").value_name("RANK");
    arg.value_parser(clap::value_parser!(u32)).help(help)
}

/// Returns the global rank of [`rank_arg`].
///
/// # Errors
/// It is out of range.
pub(super) fn rank(matches: &ArgMatches) -> anyhow::Result<Option<Rank>> {
    let rank = matches.get_one::<u32>("rank").map(|rank| Rank::new(u64::from(*rank)));
    Ok(rank.transpose()?)
}

/// Sends a request to the push endpoint, and prints `done`.
///
/// # Errors
/// No exporter answers, it refuses, or the token cannot be read.
pub(super) fn send(
    matches: &ArgMatches,
    request: &ControlRequest,
    done: &str,
) -> anyhow::Result<()> {
    let given = matches.get_one::<String>("url").cloned();
    let address =
        given.or_else(|| environment::text("STEPMEM_PUSH_URL")).unwrap_or_else(|| {
            let has_socket = Path::new(PUSH_SOCKET).exists();
            if has_socket { format!("unix://{PUSH_SOCKET}") } else { PUSH_URL.to_owned() }
        });
    let mut exporter = LiveExporter::at(&address)?;
    let given = matches.get_one::<PathBuf>("token-file").cloned();
    let of_environment = || environment::text("STEPMEM_PUSH_TOKEN_FILE").map(PathBuf::from);
    if let Some(file) = given.or_else(of_environment) {
        let token = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        exporter.token = Some(token.trim().to_owned());
    }
    exporter.post(request)?;
    stdout().lock().write_all(format!("{done}\n").as_bytes())?;
    Ok(())
}

/// Parses a time such as `10m` or `1d`, in whole seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Ok(duration.as_secs())
}
