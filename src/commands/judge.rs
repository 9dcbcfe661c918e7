//! `stepmem judge`: the verdict on memory over time that others have recorded: tables, logs of
//! `nvidia-smi`, TensorBoard's event files, Prometheus.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, WrongArgument, is_replay_setting, json_arg,
    with_settings,
};
use crate::commands::credentials::credential_args;
use crate::commands::live::seconds;
use crate::commands::prometheus::{Prometheus, access_args};
use crate::commands::reader::Reader;
use crate::input::series;
use crate::store::open::Unread;
use stepmem_engine::EngineConfig;
use stepmem_report::job::Answer;
use stepmem_report::judge::{self, Judged, JudgedTold, SourceTold};
use stepmem_report::series::{Decoded, Unit, Wanted, decode, decode_answer};
use stepmem_snapshot::html::escaped;
use stepmem_types::format::clean::shortened;
use stepmem_types::units::parse_size;

/// `stepmem judge`.
pub(super) const JUDGE: CommandRow = CommandRow { name: "judge", arguments, run: command };

/// Characters of the name of a file in a sentence.
const FILE_CHARS_MAX: usize = 200;

fn arguments() -> clap::Command {
    let arg = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help(help)
    };
    let several = |arg: Arg| arg.action(ArgAction::Append);
    let of_prometheus = |arg: Arg| arg.requires("query").help_heading("Series of Prometheus");
    let [since, token, tenant] = access_args("query", "How far to look back");
    let command = clap::Command::new("judge")
        .about("Judge memory over time that others recorded: does it grow, how fast, since when, and until when")
        .arg(
            Arg::new("FILE")
                .value_name("FILE|URL")
                .help("CSV, JSON lines, logs of nvidia-smi --query-gpu … --format=csv -l or TensorBoard event files, plain or compressed with gzip or zstd; - reads standard input. Or, with --query, the address of Prometheus")
                .num_args(1..)
                .required(true),
        )
        .args([
            several(arg("column", "NAME", "Column, key or tag with the memory [default: those with a name of memory]")),
            several(arg("by", "NAME", "Column or label that tells series apart [default: index, uuid, pod, pid and others]")),
            arg("time", "NAME", "Column of times [default: timestamp, time and others]"),
            arg("header", "NAME,…", "Names of the columns of a table whose first line does not have them"),
            arg("unit", "UNIT", "Unit of all figures: bytes, MiB, GB, % and others [default: by name, cell or size]")
                .value_parser(|text: &str| text.parse::<Unit>()),
            arg("capacity", "SIZE", "Memory that can be used, such as 80GiB [default: from a column such as memory.total]")
                .value_parser(size),
        ])
        .args([
            arg("query", "PROMQL", "Ask Prometheus, Mimir, Thanos or VictoriaMetrics at the address for this query")
                .help_heading("Series of Prometheus"),
            of_prometheus(arg("capacity-query", "PROMQL", "Query for the capacities, in the same unit")),
            of_prometheus(since),
            of_prometheus(arg("until", "DURATION", "How long ago to stop [default: now]").value_parser(seconds)),
            of_prometheus(token),
            of_prometheus(tenant),
        ])
        .args(credential_args())
        .arg(json_arg("Print JSON"))
        .arg(
            arg("html", "OUT", "Write one HTML document with charts to this file")
                .value_parser(clap::value_parser!(PathBuf))
                .conflicts_with("json"),
        );
    with_settings(command, is_replay_setting)
}

/// Parses a size such as `80GiB`.
fn size(text: &str) -> Result<f64, String> {
    parse_size(text).ok_or_else(|| "it is not a size such as 80GiB".to_owned())
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let settings = args::settings(matches, is_replay_setting)?;
    let wanted = wanted(matches);
    let places: Vec<&String> = matches.get_many("FILE").into_iter().flatten().collect();
    let (n_places, query) = (places.len(), matches.get_one::<String>("query"));
    let (mut sources, mut judged) = (Vec::new(), Vec::new());
    for place in places {
        let shown = shortened(place, FILE_CHARS_MAX);
        let is_url = ["http://", "https://"].iter().any(|scheme| place.starts_with(scheme));
        let (name, decoded) = match query {
            Some(query) => of_prometheus(place, query, &wanted, matches)?,
            None if is_url => {
                let of = stepmem_types::url::shown(place);
                return Err(anyhow!(WrongArgument(format!("{of} needs --query"))).into());
            }
            None => {
                let unread = || Unread(shown.clone());
                let bytes = series::read(Path::new(place)).with_context(unread)?;
                let decoded = decode(&bytes, &wanted).with_context(unread)?;
                (shown.clone(), decoded)
            }
        };
        let source = Source { name, is_only: n_places == 1 };
        let taken = take(decoded, source, &settings.engine, (&mut sources, &mut judged));
        match query {
            Some(_) => taken?,
            None => taken.with_context(|| Unread(shown))?,
        }
    }
    judged.sort_by_key(|of| of.verdict);
    write(matches, &sources, &judged)?;
    Ok(Exit::Success)
}

fn wanted(matches: &ArgMatches) -> Wanted {
    let all = |name| matches.get_many::<String>(name).into_iter().flatten().cloned().collect();
    let header = matches.get_one::<String>("header");
    Wanted {
        columns: all("column"),
        by: all("by"),
        time: matches.get_one("time").cloned(),
        unit: matches.get_one("unit").copied(),
        capacity: matches.get_one("capacity").copied(),
        header: header
            .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect())
            .unwrap_or_default(),
    }
}

/// Asks an engine for series. Returns its address and them.
fn of_prometheus(
    url: &str,
    query: &str,
    wanted: &Wanted,
    matches: &ArgMatches,
) -> anyhow::Result<(String, Decoded)> {
    let prometheus = Prometheus::at(("URL", url), matches)?;
    let queries: Vec<&str> = std::iter::once(query)
        .chain(matches.get_one::<String>("capacity-query").map(String::as_str))
        .collect();
    let until = matches.get_one::<u64>("until").copied().unwrap_or(0);
    let mut answers = prometheus.over_time(&queries, until)?.into_iter();
    let (answer, capacities) =
        (answers.next().unwrap_or_default(), answers.next().unwrap_or_else(Answer::default));
    for warning in answer.warnings.iter().chain(&capacities.warnings) {
        writeln!(std::io::stderr(), "stepmem: {}: {warning}", prometheus.name()).ok();
    }
    let decoded = decode_answer((query, answer), &capacities, wanted)
        .with_context(|| prometheus.name().to_owned())?;
    anyhow::ensure!(
        !decoded.series.is_empty(),
        "{} has no value of this query in that time",
        prometheus.name()
    );
    Ok((prometheus.name().to_owned(), decoded))
}

/// The source of series.
struct Source {
    name: String,
    is_only: bool,
}

/// Judges the series of a source. Those of one among several have its name.
fn take(
    decoded: Decoded,
    Source { name, is_only }: Source,
    config: &EngineConfig,
    (sources, judged): (&mut Vec<SourceTold>, &mut Vec<Judged>),
) -> anyhow::Result<()> {
    let Decoded { format, series, left_out } = decoded;
    let n_series = series.len();
    for mut of in series {
        if !is_only {
            of.labels.insert(0, ("file".to_owned(), name.clone()));
        }
        let name = of.name();
        judged.push(Judged::of(of, config).with_context(|| name)?);
    }
    sources.push(SourceTold { name, format: format.words(), series: n_series, left_out });
    Ok(())
}

fn write(
    matches: &ArgMatches,
    sources: &[SourceTold],
    judged: &[Judged],
) -> anyhow::Result<()> {
    if let Some(to) = matches.get_one::<PathBuf>("html") {
        return args::write_document(to, &judge::document(sources, judged, escaped));
    }
    let text = if matches.get_flag("json") {
        args::json(&JudgedTold::of(sources, judged))?
    } else {
        judge::render(sources, judged, Reader::of_stdout().columns)
    };
    stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
