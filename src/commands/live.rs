//! A running exporter as the commands reach it: over TCP or a Unix socket, with its token. The
//! image has no shell and no curl.

use std::io::{Read, Write, stdout};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::{StatusCode, Url};
use serde::de::DeserializeOwned;

use crate::commands::args::WrongArgument;
use crate::commands::credentials::{Credentials, NamedFile, credential_args};
use crate::config::environment;
use crate::config::table::{SETTINGS, Setting};
use crate::net::access::HEALTHY;
use crate::net::problem::{NO_SUCH_DEVICE, NO_SUCH_RANK, NO_SUCH_RUN};
use stepmem_engine::status::Status;
use stepmem_engine::wire::ControlRequest;
use stepmem_types::format::clean::{Quoted, shortened};
use stepmem_types::format::units::period;
use stepmem_types::ids::Run;
use stepmem_types::url::shown;

/// Time limit for the exporter's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer that is read: ten times the status of 1024 ranks.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of characters shown of a refusal in plain text.
const REFUSAL_CHARS_MAX: usize = 160;
/// Maximum number of characters shown of the reason of a refusal: an exporter's have fewer.
const DETAIL_CHARS_MAX: usize = 1024;
/// Time limit for the answer of whoever listens on an address.
const PROBED_WITHIN: Duration = Duration::from_secs(2);
/// The path of an exporter's status.
pub(super) const STATUS_PATH: [&str; 3] = ["api", "v1", "status"];
/// The version of this program, and of the answers that it reads.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Destinations of pushes without an address: the socket if it exists, as in a pod, else the
/// port.
const PUSH_SOCKET: &str = "/run/stepmem/push.sock";
const PUSH_URL: &str = "http://127.0.0.1:9478";
/// The variable that names the destination of pushes.
const PUSH_VARIABLE: &str = "STEPMEM_PUSH_URL";
/// The flag of an exporter's address.
pub(super) const URL: &str = "--url";
/// The variables that name the file of a token; the first one that is set counts.
const TOKEN_VARIABLES: [&str; 2] = ["STEPMEM_ADMIN_TOKEN_FILE", "STEPMEM_PUSH_TOKEN_FILE"];
/// The help of `--token-file`.
const TOKEN_HELP: &str = "File with the exporter's admin token [env: STEPMEM_ADMIN_TOKEN_FILE, else \
     STEPMEM_PUSH_TOKEN_FILE]";

/// An exporter at an address.
pub(super) struct LiveExporter {
    client: Client,
    /// The address as given, without the parts that may be secret.
    name: String,
    url: Url,
    token: Option<String>,
    credentials: Credentials,
}

impl LiveExporter {
    /// Takes `http://HOST:PORT`, `https://…` or `unix:///PATH`, with the argument or variable
    /// that has it, and the arguments of its access.
    ///
    /// # Errors
    /// The address is none of these, or the credentials cannot be read.
    pub(super) fn at(
        (source, address): (&str, &str),
        access: &ArgMatches,
    ) -> anyhow::Result<Self> {
        let credentials = Credentials::read(access)?;
        let builder = credentials.client(address, ANSWER_WITHIN);
        let (builder, url) = match address.strip_prefix("unix://") {
            Some(path) => (builder.unix_socket(PathBuf::from(path)), "http://localhost"),
            None => (builder, address),
        };
        let expected = || {
            let address = shown(address);
            format!(
                "{source}: {address} is none of http://HOST:PORT, https://HOST:PORT and unix:///PATH"
            )
        };
        let url = Url::parse(url).with_context(|| WrongArgument(expected()))?;
        anyhow::ensure!(
            ["http", "https"].contains(&url.scheme()) && url.has_host(),
            WrongArgument(expected())
        );
        let (client, name) = (builder.build()?, shown(address));
        Ok(Self { client, name, url, token: None, credentials })
    }

    /// Returns whether an exporter answers at an address, which may be that of all interfaces.
    /// Shows it nothing of a user, and takes any certificate: it need not be ours.
    pub(super) fn is_healthy_at(address: &str) -> bool {
        let address = address.replacen("//0.0.0.0:", "//127.0.0.1:", 1);
        let address = address.replacen("//[::]:", "//[::1]:", 1);
        let (path, url) = match address.strip_prefix("unix://") {
            Some(path) => (Some(path), "http://localhost"),
            None => (None, address.as_str()),
        };
        let builder = Credentials::default().client("", PROBED_WITHIN);
        let builder = builder.tls_danger_accept_invalid_certs(true);
        let builder = match path {
            Some(path) => builder.unix_socket(PathBuf::from(path)),
            None => builder,
        };
        let answer =
            builder.build().and_then(|client| client.get(format!("{url}/-/healthy")).send());
        answer.is_ok_and(|answer| text_of(answer).is_ok_and(|text| text == HEALTHY))
    }

    /// Returns the answer to a GET; `path` is in parts, which may contain any character.
    ///
    /// # Errors
    /// No exporter answers there, or it refuses.
    pub(super) fn get(&self, path: &[&str]) -> anyhow::Result<String> {
        self.read(path, None)
    }

    /// Returns the answer to a GET as JSON, where its default is text.
    ///
    /// # Errors
    /// As of [`Self::get`], or the answer is not JSON of this shape.
    pub(super) fn get_json<T: DeserializeOwned>(&self, path: &[&str]) -> anyhow::Result<T> {
        let text = self.read(path, Some("format=json"))?;
        let place = self.place(path);
        serde_json::from_str(&text).with_context(|| {
            format!("{place} does not answer as a stepmem exporter of version {VERSION}")
        })
    }

    /// Returns the status of the exporter.
    ///
    /// # Errors
    /// As of [`Self::get`], or the answer is not a status of this version.
    pub(super) fn status(&self) -> anyhow::Result<Status> {
        let text = self.get(&STATUS_PATH)?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is not the status of a stepmem exporter of version {VERSION}",
                self.name
            )
        })
    }

    /// Returns the only run of a status.
    ///
    /// # Errors
    /// There are several runs, which are named, or none.
    pub(super) fn only_run(&self, status: &Status) -> anyhow::Result<Run> {
        let names: Vec<&str> = status.runs.iter().map(|run| run.run.as_str()).collect();
        match status.runs.as_slice() {
            [only] => Ok(only.run.clone()),
            [] => anyhow::bail!("no rank pushes to {}", self.name),
            _ => anyhow::bail!(WrongArgument(format!(
                "{} has {} runs; name one with --run: {}",
                self.name,
                names.len(),
                names.join(", ")
            ))),
        }
    }

    /// Returns the address as given, without the parts that may be secret.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a token from now on.
    pub(super) fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// Ensures that a default address is not shown a secret: whoever listens on a port of this
    /// machine need not be the exporter, unlike who owns the socket. `flag` names the address.
    ///
    /// # Errors
    /// There is a token or a password, and the address is one of TCP.
    pub(super) fn keeps_secrets(&self, flag: &str) -> anyhow::Result<()> {
        let has_secret = self.token.is_some() || self.credentials.has_password();
        anyhow::ensure!(
            !has_secret || self.name.starts_with("unix://"),
            "{} is only a default address, which gets no token and no password: name it with {flag} or STEPMEM_PUSH_URL",
            self.name
        );
        Ok(())
    }

    /// Posts a request, and returns the body of the answer.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub(super) fn post(&self, request: &ControlRequest) -> anyhow::Result<String> {
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        let post = self.client.post(below(&self.url, &path));
        let post = post.header("content-type", "application/json");
        self.asked(post.body(request.body.to_string()), &self.name)?.success(&self.name)
    }

    /// Returns the answer to a GET. Where the push endpoint answers that the page has this,
    /// the page on the same host is read: only that, only without credentials, and only once.
    fn read(&self, path: &[&str], query: Option<&str>) -> anyhow::Result<String> {
        let get = |base: &Url| {
            let mut url = below(base, path);
            url.set_query(query);
            self.client.get(url)
        };
        let answer = self.asked(get(&self.url), &self.place(path))?;
        match self.page_of(&answer) {
            Some(page) => {
                let place = below(&page, path);
                self.asked(get(&page), place.as_str())?.success(place.as_str())
            }
            None => answer.success(&self.place(path)),
        }
    }

    /// Returns the address of the page: that of this exporter, or the one that is read where this is its
    /// push endpoint.
    ///
    /// # Errors
    /// No exporter answers there.
    pub(super) fn page_address(&self) -> anyhow::Result<String> {
        let status = self.client.get(below(&self.url, &STATUS_PATH));
        let page = self.page_of(&self.asked(status, &self.name)?);
        Ok(page.map_or_else(|| self.name.clone(), |page| page.to_string()))
    }

    /// Returns the address of the page, where an answer of the push endpoint names it and the
    /// exporter may be asked there, too: over TCP, without credentials.
    fn page_of(&self, answer: &Answer) -> Option<Url> {
        let is_elsewhere = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
        let has_user = !self.url.username().is_empty() || self.url.password().is_some();
        let has_credentials = self.token.is_some() || has_user || !self.credentials.are_none();
        if !is_elsewhere.contains(&answer.status) || has_credentials {
            return None;
        }
        let page = address_at(&self.name, answer.problem.page.as_deref()?)?;
        let page = Url::parse(&page).ok()?;
        self.name.starts_with(&format!("{}://", page.scheme())).then_some(page)
    }

    /// The address of a path as errors name it.
    fn place(&self, path: &[&str]) -> String {
        format!("{}/{}", self.name.trim_end_matches('/'), path.join("/"))
    }

    /// Sends a request, and reads its answer; `place` names the exporter in errors.
    fn asked(&self, request: RequestBuilder, place: &str) -> anyhow::Result<Answer> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => self.credentials.show(request),
        };
        let answer = request.send().map_err(reqwest::Error::without_url);
        let answer = answer.with_context(|| {
            format!(
                "no exporter answers at {place}: start one (stepmem serve), or give the address of a running one (--url; that of stepmem run is on its page)"
            )
        })?;
        let status = answer.status();
        let text = text_of(answer).with_context(|| format!("the answer of {place}"))?;
        let problem = serde_json::from_str::<Problem>(&text).unwrap_or_default();
        Ok(Answer { status, text, problem })
    }
}

/// Returns the address of a path, given in parts, below another address.
fn below(base: &Url, path: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    url
}

/// An answer of an exporter.
struct Answer {
    status: StatusCode,
    text: String,
    problem: Problem,
}

impl Answer {
    /// Returns the body of a success; `place` names the exporter in errors.
    fn success(self, place: &str) -> anyhow::Result<String> {
        let Self { status, text, problem } = self;
        let line = || shortened(text.lines().next().unwrap_or_default(), REFUSAL_CHARS_MAX);
        let detail = problem.detail.map(|detail| shortened(&detail, DETAIL_CHARS_MAX));
        let is_page = detail.is_none() && text.trim_start().starts_with('<');
        anyhow::ensure!(
            status.is_success() || !is_page,
            "{place} answers {status} with a page: it is no stepmem"
        );
        let detail = detail.unwrap_or_else(line);
        let title = problem.title.unwrap_or_default();
        let is_unknown = [NO_SUCH_RANK, NO_SUCH_RUN, NO_SUCH_DEVICE].contains(&title.as_str());
        anyhow::ensure!(
            status != StatusCode::NOT_FOUND || !is_unknown,
            WrongArgument(format!("{place} answers {status}: {detail}"))
        );
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

/// The parts of a refusal that are for people and commands.
#[derive(Default, serde::Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    /// The page's address, where the push endpoint was asked for what the page has.
    page: Option<String>,
}

/// The argument that asks a running exporter instead of recordings, to which the settings of
/// `takes` apply.
pub(super) fn instead_of_recordings(takes: impl Fn(&Setting) -> bool) -> Arg {
    let settings = SETTINGS.iter().filter(|setting| takes(setting)).map(|setting| setting.key);
    Arg::new("url")
        .long("url")
        .value_name("URL")
        .conflicts_with_all(["FILE", "config.file"].into_iter().chain(settings))
        .help("Ask the running exporter at http://HOST:PORT (its status page), https://HOST:PORT or unix:///PATH instead of reading recordings")
}

/// The argument of [`push_address`].
pub(super) fn push_url_arg(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("URL").help(format!(
        "Address of the push endpoint, http://HOST:PORT, https://HOST:PORT or unix:///PATH [env: STEPMEM_PUSH_URL] [default: \
         unix://{PUSH_SOCKET} if it exists, else {PUSH_URL}]"
    ))
}

/// The argument of [`token`].
pub(super) fn token_arg() -> Arg {
    let arg = Arg::new("token-file").long("token-file").value_name("PATH");
    arg.value_parser(clap::value_parser!(PathBuf)).help(TOKEN_HELP)
}

/// The arguments by which [`send`] finds the push endpoint.
pub(super) fn push_args() -> impl Iterator<Item = Arg> {
    [push_url_arg("url"), token_arg()].into_iter().chain(credential_args())
}

/// Sends a request to the push endpoint, and prints `done`. Returns the answer.
///
/// # Errors
/// No exporter answers, it refuses, or the token cannot be read.
pub(super) fn send(
    matches: &ArgMatches,
    request: &ControlRequest,
    done: &str,
) -> anyhow::Result<String> {
    let (source, address) = push_address(URL, matches.get_one("url"));
    let exporter = LiveExporter::at((source, &address), matches)?;
    let exporter = exporter.with_token(token(matches)?);
    if !is_named(matches.get_one("url")) {
        exporter.keeps_secrets(URL)?;
    }
    let answer = exporter.post(request)?;
    stdout().lock().write_all(format!("{done}\n").as_bytes())?;
    Ok(answer)
}

/// Returns the destination of pushes, with the argument or variable that has it: the address
/// that the flag gives, else the environment's, else the socket if it exists.
fn push_address(flag: &'static str, given: Option<&String>) -> (&'static str, String) {
    let given = given.map(|address| (flag, address.clone()));
    let named = given.or_else(|| Some((PUSH_VARIABLE, environment::text(PUSH_VARIABLE)?)));
    named.unwrap_or_else(|| {
        let has_socket = Path::new(PUSH_SOCKET).exists();
        let socket = || format!("unix://{PUSH_SOCKET}");
        (flag, if has_socket { socket() } else { PUSH_URL.to_owned() })
    })
}

/// Returns whether the user, or the environment, names the destination of pushes.
pub(super) fn is_named(given: Option<&String>) -> bool {
    given.is_some() || environment::text(PUSH_VARIABLE).is_some()
}

/// The path of the address that an exporter's pushes go to.
const PUSH_URL_PATH: [&str; 3] = ["api", "v1", "push-url"];

/// Returns the destination of pushes, with the argument or variable that has it: the address
/// that `flag` gives, else the environment's, else the one that the exporter of a status page
/// reports.
///
/// A token is for the named host, and for no other host that an answer names. Of the exporter's
/// answer, only port and scheme count, unless both are on this machine.
///
/// # Errors
/// The exporter's push endpoint cannot be reached from here.
pub(super) fn told_push_address(
    (flag, given): (&'static str, Option<&String>),
    url: &str,
    page: &LiveExporter,
) -> anyhow::Result<(&'static str, String)> {
    if is_named(given) {
        return Ok(push_address(flag, given));
    }
    let told = page.get(&PUSH_URL_PATH)?;
    let address = address_at(url, told.trim()).with_context(|| {
        let (told, url) = (shown(told.trim()), shown(url));
        let told = Quoted(&told);
        format!(
            "the exporter at {url} accepts pushes only at {told}: ask there, or give {flag}"
        )
    })?;
    Ok((flag, address))
}

/// Returns the other address of an exporter, which it told, for clients that reach it at `url`;
/// `None` where it is out of reach.
fn address_at(url: &str, told: &str) -> Option<String> {
    let known = Url::parse(url).ok()?;
    let is_here = |url: &Url| {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let address = host.parse::<IpAddr>();
        url.scheme() == "unix"
            || host == "localhost"
            || address.is_ok_and(|ip| ip.is_loopback())
    };
    if told.starts_with("unix://") {
        return is_here(&known).then(|| told.to_owned());
    }
    let told = Url::parse(told).ok();
    let told = told.filter(|told| ["http", "https"].contains(&told.scheme()))?;
    if known.scheme() == "https" && told.scheme() == "http"
        || is_here(&told) && !is_here(&known)
    {
        return None;
    }
    let host = if known.scheme() == "unix" { told.host_str()? } else { known.host_str()? };
    Some(format!("{}://{host}:{}", told.scheme(), told.port_or_known_default()?))
}

/// Returns the token of `--token-file` or of the environment: that of admins takes priority
/// over that of pushes.
///
/// # Errors
/// The file cannot be read.
pub(super) fn token(matches: &ArgMatches) -> anyhow::Result<Option<String>> {
    let of_environment = || {
        TOKEN_VARIABLES.iter().find_map(|name| {
            let path = environment::text(name)?.into();
            Some(NamedFile { source: (*name).to_owned(), path })
        })
    };
    let file = given_token_file(matches).or_else(of_environment);
    file.map(|file| file.token()).transpose()
}

/// Returns the file of `--token-file`.
pub(super) fn given_token_file(matches: &ArgMatches) -> Option<NamedFile> {
    let path = matches.get_one::<PathBuf>("token-file")?.clone();
    Some(NamedFile { source: "--token-file".to_owned(), path })
}

/// Parses a time such as `10m` or `1d`, in whole seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Ok(duration.as_secs())
}

/// Parses a time like [`seconds`] that has a least and a greatest value.
pub(super) fn seconds_within(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let seconds = seconds(text)?;
    let within = u32::try_from(seconds).ok().filter(|of| (min..=max).contains(of));
    within.ok_or_else(|| {
        let [min, max] = [min, max].map(|of| period(Duration::from_secs(of.into())));
        format!("it is outside {min} to {max}")
    })
}

#[cfg(test)]
mod tests {
    use crate::commands::live::address_at;

    fn check(url: &str, told: &str, expected: Option<&str>) {
        assert_eq!(address_at(url, told).as_deref(), expected, "{url} told {told}");
    }

    #[test]
    fn a_told_address_is_on_the_host_that_was_named() {
        let local = "http://127.0.0.1:9477";
        check(local, "http://127.0.0.1:19478", Some("http://127.0.0.1:19478"));
        check(local, "http://[::1]:19478", Some("http://127.0.0.1:19478"));
        check(local, "unix:///run/stepmem/push.sock", Some("unix:///run/stepmem/push.sock"));
        check("http://node7:9477", "http://0.0.0.0:9478", Some("http://node7:9478"));
        check("https://node7:9477", "https://10.0.0.7:9478", Some("https://node7:9478"));
        check("http://[fd00::7]:9477", "http://[::]:9478", Some("http://[fd00::7]:9478"));
        check("unix:///run/web.sock", "http://127.0.0.1:9478", Some("http://127.0.0.1:9478"));
        // Never to a host that only the answer names, and never in the clear where the page is
        // not.
        check("http://node7:9477", "http://evil.example:9478", Some("http://node7:9478"));
        check("https://node7:9477", "http://node7:9478", None);
        check("http://node7:9477", "http://127.0.0.1:9478", None);
        check("http://node7:9477", "unix:///run/stepmem/push.sock", None);
        for told in ["", "ftp://node7:21", "no such path; / links to all pages"] {
            check(local, told, None);
        }
    }
}
