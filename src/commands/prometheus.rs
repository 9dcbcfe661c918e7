//! A Prometheus-compatible engine (Prometheus, Mimir, Thanos and others) as the commands ask
//! it for a whole job: by its query API, one query after the other.

use std::cell::RefCell;
use std::io::{IsTerminal, Read, Write, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use reqwest::Url;
use reqwest::blocking::{Client, Response};
use reqwest::header::HeaderValue;

use crate::commands::args::WrongArgument;
use crate::commands::credentials::Credentials;
use crate::commands::live::{ANSWER_BYTES_MAX, given_token_file, seconds};
use crate::commands::reader::Reader;
use crate::exporter::clock::Clock;
use stepmem_report::job;
use stepmem_report::job::{
    Answer, AnswerError, Answers, Choice, Grid, Job, JobLaunch, LaunchQueries, Shown, choose,
    launches, whole,
};
use stepmem_types::ids::Run;
use stepmem_types::url::shown as shown_url;

/// Time limit for the answer to a query: the default of Prometheus.
const ANSWER_WITHIN: Duration = Duration::from_mins(2);
/// The header by which Mimir and Thanos know a tenant.
const TENANT_HEADER: &str = "X-Scope-OrgID";
/// The flag of an engine's address.
pub(super) const PROMETHEUS: &str = "--prometheus";
/// The default of `--since`.
const SINCE: &str = "2d";

/// The arguments by which a job is asked for; `conflicts` are those that ask something else.
pub(super) fn prometheus_args<const N: usize>(conflicts: [&'static str; N]) -> [Arg; 5] {
    const HEADING: &str = "A job from Prometheus";
    let url = Arg::new("prometheus").long("prometheus").value_name("URL").help(
        "Ask Prometheus, Mimir, Thanos or VictoriaMetrics at this address, below which /api/v1/query is, for a whole job (with --run), \
         also one that is over",
    );
    let url = url.requires("run").conflicts_with_all(conflicts);
    let launch = Arg::new("launch").long("launch").value_name("LAUNCH");
    let launch = launch.help("Launch of the run [default: the latest]").requires("prometheus");
    let [since, token, tenant] = access_args("prometheus", "How far to look back for launches");
    [url, launch, since, token, tenant].map(|arg| arg.help_heading(HEADING))
}

/// The arguments that [`Prometheus::at`] reads, which need the argument `asked`.
pub(super) fn access_args(asked: &'static str, since_help: &str) -> [Arg; 3] {
    let arg = |name: &'static str, value_name: &'static str, help: String| {
        Arg::new(name).long(name).value_name(value_name).help(help).requires(asked)
    };
    [
        arg("since", "DURATION", format!("{since_help} [default: {SINCE}]"))
            .value_parser(seconds),
        arg(
            "token-file",
            "PATH",
            "File with a bearer token for Prometheus; --user, --ca-file and the others there apply to it, too, but not their variables"
                .to_owned(),
        )
        .value_parser(clap::value_parser!(PathBuf)),
        arg("tenant", "ID", format!("Tenant, sent as {TENANT_HEADER}")),
    ]
}

/// Returns the run that a job is of.
///
/// # Errors
/// None is named.
pub(super) fn run(named: Option<&Run>) -> anyhow::Result<&Run> {
    named.with_context(|| WrongArgument("--prometheus needs --run".to_owned()))
}

/// Returns the form in which a job is shown on standard output.
pub(super) fn shown() -> Shown {
    let Reader { is_terminal, columns } = Reader::of_stdout();
    Shown { is_colored: is_terminal, columns }
}

/// An engine at an address.
pub(super) struct Prometheus {
    client: Client,
    /// The address as given, without the parts that may be secret.
    name: String,
    url: Url,
    credentials: Credentials,
    token: Option<String>,
    tenant: Option<HeaderValue>,
    since_seconds: u64,
    progress: RefCell<Progress>,
}

impl Prometheus {
    /// Takes `http://…` or `https://…`, with the argument that has it, and the arguments of its
    /// access.
    ///
    /// # Errors
    /// The address is neither, or the credentials cannot be read.
    pub(super) fn at(
        (argument, address): (&str, &str),
        matches: &ArgMatches,
    ) -> anyhow::Result<Self> {
        let credentials = Credentials::given(matches)?;
        let builder = credentials.client(address, ANSWER_WITHIN);
        let name = shown_url(address);
        let expected = || format!("{argument}: {name} is neither http://HOST nor https://HOST");
        let url = Url::parse(address).with_context(|| WrongArgument(expected()))?;
        anyhow::ensure!(
            ["http", "https"].contains(&url.scheme()) && url.has_host(),
            WrongArgument(expected())
        );
        let token = given_token_file(matches).map(|file| file.token());
        let tenant = matches.get_one::<String>("tenant").map(|id| {
            let words = "--tenant cannot be sent as a header";
            HeaderValue::try_from(id).with_context(|| WrongArgument(words.to_owned()))
        });
        let since = matches.get_one::<u64>("since").copied();
        let since = since.map_or_else(|| seconds(SINCE).map_err(anyhow::Error::msg), Ok)?;
        Ok(Self {
            client: builder.build()?,
            name,
            url,
            credentials,
            token: token.transpose()?,
            tenant: tenant.transpose()?,
            since_seconds: since,
            progress: RefCell::default(),
        })
    }

    /// Asks for a launch of a run.
    ///
    /// # Errors
    /// No engine answers, it refuses, or it knows no such launch.
    pub(super) fn job(&self, run: &Run, choice: &Choice) -> anyhow::Result<Job> {
        let grid = Grid::until(whole(Clock::unix_time()), self.since_seconds);
        self.progress.borrow_mut().begin(1);
        let found = self.range(&job::launches_query(run.as_str()), grid)?;
        let mut chosen = choose(launches(&found.series, grid), choice).map_err(|error| {
            let wrong = format!("{} about run {run}: {error}", self.name);
            anyhow::Error::msg(WrongArgument(wrong))
        })?;
        self.date(run, &mut chosen.launch, grid)?;
        let asked = LaunchQueries::of(run.as_str(), &chosen.launch);
        self.progress.borrow_mut().begin(asked.queries.len());
        let mut answers = Answers::default();
        for (figure, query) in asked.queries {
            answers.add(figure, self.instant(&query, asked.time)?);
        }
        Ok(Job::of(run.clone(), chosen, &answers))
    }

    /// Asks for the values of queries over the time that is looked back, which ends so many
    /// seconds ago.
    ///
    /// # Errors
    /// No engine answers, or it refuses.
    pub(super) fn over_time(
        &self,
        queries: &[&str],
        until_seconds: u64,
    ) -> anyhow::Result<Vec<Answer>> {
        let end = whole(Clock::unix_time()).saturating_sub(until_seconds);
        let length = self.since_seconds.saturating_sub(until_seconds);
        anyhow::ensure!(length > 0, WrongArgument("--until is not after --since".to_owned()));
        let grid = Grid::until(end, length);
        self.progress.borrow_mut().begin(queries.len());
        queries.iter().map(|query| self.range(query, grid)).collect()
    }

    /// Returns the address as given, without the parts that may be secret.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Finds out when a launch, which a grid shows, and its latest attempt began, whatever time
    /// was asked for.
    fn date(&self, run: &Run, launch: &mut JobLaunch, mut grid: Grid) -> anyhow::Result<()> {
        let query = job::launch_query(run.as_str(), launch);
        let shown = |grid: Grid| {
            self.progress.borrow_mut().begin(1);
            anyhow::Ok(launches(&self.range(&query, grid)?.series, grid))
        };
        while launch.reaches_before(grid)
            && let Some(longer) = grid.longer()
        {
            grid = longer;
            let shown = shown(grid)?;
            launch.begins(&shown);
            launch.attempt_begins(&shown);
        }
        let attempt = whole(launch.attempt_begin) + grid.step;
        let is_first = launch.attempt_begin <= launch.begin;
        let about = shown(grid.about(launch.first_point()))?;
        launch.begins(&about);
        if is_first {
            launch.attempt_begins(&about);
        } else {
            launch.attempt_begins(&shown(grid.about(attempt))?);
        }
        Ok(())
    }

    fn range(&self, query: &str, Grid { start, end, step }: Grid) -> anyhow::Result<Answer> {
        let [start, end, step] = [start, end, step].map(|seconds| seconds.to_string());
        let parameters = [("query", query), ("start", &start), ("end", &end), ("step", &step)];
        self.ask("query_range", &parameters)
    }

    fn instant(&self, query: &str, time: f64) -> anyhow::Result<Answer> {
        self.ask("query", &[("query", query), ("time", &format!("{time:.3}"))])
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Answer> {
        self.progress.borrow_mut().step(&self.name);
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1", path]);
        }
        url.query_pairs_mut().extend_pairs(parameters);
        let request = self.client.get(url);
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => self.credentials.show(request),
        };
        let request = match &self.tenant {
            Some(tenant) => request.header(TENANT_HEADER, tenant),
            None => request,
        };
        let place = format!("{}/api/v1/{path}", self.name.trim_end_matches('/'));
        let answer = request.send().map_err(reqwest::Error::without_url);
        let answer = answer.with_context(|| format!("no Prometheus answers at {place}"))?;
        let status = answer.status();
        let bytes = bytes_of(answer).with_context(|| format!("the answer of {place}"))?;
        let decoded = Answer::decode(&bytes);
        // A refusal has its reason in the form of an answer, but for that of a proxy.
        if let Err(AnswerError::Form(_)) = decoded {
            anyhow::ensure!(status.is_success(), "{place} answers {status}");
        }
        decoded.with_context(|| format!("{place} answers {status}"))
    }
}

/// Reads an answer of bounded length.
fn bytes_of(answer: Response) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    answer.take(ANSWER_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes)?;
    anyhow::ensure!(
        u64::try_from(bytes.len()).is_ok_and(|n_bytes| n_bytes <= ANSWER_BYTES_MAX),
        "exceeds {ANSWER_BYTES_MAX} bytes"
    );
    Ok(bytes)
}

/// The queries so far, as a line of a terminal that is gone at the end.
#[derive(Default)]
struct Progress {
    n_asked: usize,
    n_all: usize,
    is_shown: bool,
}

impl Progress {
    fn begin(&mut self, n_more: usize) {
        self.n_all += n_more;
    }

    fn step(&mut self, name: &str) {
        self.n_asked += 1;
        if stderr().is_terminal() {
            self.is_shown = true;
            let line = format!("\r\u{1b}[Kasking {name}: {} of {}", self.n_asked, self.n_all);
            // A terminal that is gone reads no progress.
            drop(stderr().write_all(line.as_bytes()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            drop(stderr().write_all(b"\r\x1b[K"));
        }
    }
}
