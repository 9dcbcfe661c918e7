//! `stepmem snapshot events`: every allocation and free of a snapshot in order, the tensors of
//! each address, or the tensors that are alive at a moment.

use std::io::{self, Write};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::commands::args::{CommandError, CommandRow, Exit, WrongArgument};
use crate::commands::snapshot_columns;
use crate::commands::snapshot_common::{Common, ensure_moment, file, json, named_moment, path};
use crate::commands::snapshot_file::shown;
use stepmem_snapshot::text::{self, ShownMoment};
use stepmem_snapshot::{
    AliveMoment, DeviceReport, EventFilter, EventList, EventsExtent, EventsForm, LineFilter,
    at, id, json, phase_of,
};
use stepmem_types::format::units::whole_bytes;
use stepmem_types::units::parse_whole_size;

/// `stepmem snapshot events`.
pub(super) const EVENTS: CommandRow = CommandRow { name: "events", arguments, run };

/// Rows of a list without `--top`.
const ROWS: &str = "100";

fn arguments() -> Command {
    let value = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help(help)
    };
    Command::default()
        .about("List every allocation and free in order: by which line, how long, freed by what, in whose memory")
        .arg(file("FILE", "A snapshot, plain or compressed with gzip or zstd"))
        .arg(
            value("step", "N", "Only this step")
                .value_parser(clap::value_parser!(u64)),
        )
        .arg(
            value("phase", "PHASE", "Only this phase of each step")
                .value_parser(["forward", "backward", "collective", "optimizer", "zero_grad"]),
        )
        .arg(
            value("line", "FILE:LINE", "Only blocks that this line allocates or frees, also by what it calls")
                .value_parser(code_line),
        )
        .arg(
            value("address", "0x…", "Only blocks that this byte lies in")
                .value_parser(address),
        )
        .arg(value("from", "EVENT", "Only from this event on").value_parser(clap::value_parser!(u32)))
        .arg(value("to", "EVENT", "Only up to this event").value_parser(clap::value_parser!(u32)))
        .arg(
            value("min-size", "SIZE", "Only blocks of at least this size, such as 1MiB")
                .value_parser(size),
        )
        .arg(
            value("stacks", "N", "Frames of both stacks of each event [default: 0; JSON: 16]")
                .value_parser(clap::value_parser!(u16)),
        )
        .arg(
            Arg::new("reuse")
                .long("reuse")
                .action(ArgAction::SetTrue)
                .help("The tensors that used each address, one after the other"),
        )
        .arg(
            value("at", "MOMENT", "What is alive, by stack, once an event and its free are done: the number of the event (in show --at, a number is a step), step:N (its peak), N.P (after its backward pass P), N.zero_grad, peak, oom or end")
                .value_parser(moment)
                .conflicts_with_all(["reuse", "step", "phase", "line", "address", "from", "to", "stacks"]),
        )
        .after_help(snapshot_columns::EVENTS)
}

/// Adapts the arguments of all subcommands to this one.
pub(super) fn adapted(command: Command) -> Command {
    command.mut_arg("top", |arg| {
        arg.default_value(ROWS)
            .help("Rows, addresses or branches; 0 for all. JSON is always complete")
    })
}

fn code_line(text: &str) -> Result<LineFilter, String> {
    LineFilter::parse(text)
        .ok_or_else(|| "expected a file and a line, such as train.py:12".to_owned())
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match digits {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| "expected an address, such as 0x7f0001000000".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    parse_whole_size(text).ok_or_else(|| "it is not a size such as 1MiB".to_owned())
}

/// A moment of the window as it is given.
#[derive(Clone, Copy, Debug)]
enum AskedMoment {
    /// The moment after an event.
    After(u32),
    /// A moment as `show` names it.
    Shown(ShownMoment),
}

fn moment(text: &str) -> Result<AskedMoment, String> {
    let event = text.parse().ok().map(AskedMoment::After);
    let found = event.or_else(|| named_moment(text).map(AskedMoment::Shown));
    found.ok_or_else(|| {
        "expected the number of an event, step:N, N.P, N.zero_grad, peak, oom or end".to_owned()
    })
}

/// Returns a moment and its name; `None` where the window has no such moment.
fn find(report: &DeviceReport<'_>, moment: AskedMoment) -> Option<(AliveMoment, String)> {
    match moment {
        AskedMoment::After(event) => {
            report.scene.events.get(at(event))?;
            let state = Some(report.scene.timeline.state_after(event));
            let moment = AliveMoment { state, after_event: Some(event) };
            Some((moment, format!("after event {event}")))
        }
        AskedMoment::Shown(shown) => {
            let (state, name) = text::state(report, shown)?;
            let after_event = state.and_then(|state| state.checked_sub(1));
            Some((AliveMoment { state, after_event }, name))
        }
    }
}

/// Refuses a moment that no device has.
fn ensure(moment: AskedMoment, reports: &[DeviceReport<'_>]) -> anyhow::Result<()> {
    match moment {
        AskedMoment::Shown(shown) => {
            ensure_moment(shown, reports)?;
            anyhow::ensure!(
                reports.iter().any(|report| text::state(report, shown).is_some()),
                WrongArgument(
                    "--at: the window has no such moment: memory did not run out".to_owned()
                )
            );
        }
        AskedMoment::After(event) => {
            let n_events = reports.iter().map(|report| report.scene.events.len()).max();
            let last = n_events.and_then(|n_events| n_events.checked_sub(1));
            let last = last.with_context(|| {
                WrongArgument("--at: no such moment, the window has no events".to_owned())
            })?;
            anyhow::ensure!(
                at(event) <= last,
                WrongArgument(format!(
                    "--at: no event {event}, the window has events 0 to {last}"
                ))
            );
        }
    }
    Ok(())
}

fn filter(matches: &ArgMatches) -> EventFilter {
    let all = EventFilter::default();
    let phase = matches.get_one::<String>("phase");
    EventFilter {
        step: matches.get_one("step").copied(),
        phase: phase.and_then(|name| phase_of(name)),
        line: matches.get_one("line").cloned(),
        address: matches.get_one("address").copied(),
        first_event: matches.get_one("from").copied().unwrap_or(all.first_event),
        last_event: matches.get_one("to").copied().unwrap_or(all.last_event),
        bytes_min: matches.get_one("min-size").copied().unwrap_or(all.bytes_min),
    }
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print(matches, io::BufWriter::new(io::stdout().lock()))?;
    Ok(Exit::Success)
}

fn print(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let path = path(matches, "FILE");
    let opened = common.open(&path)?;
    let reports = opened.reports(&common);
    let filter = filter(matches);
    if let Some(step) = filter.step {
        let has = |report: &DeviceReport<'_>| {
            let steps = &report.scene.steps;
            (1..=id(steps.marks.len())).any(|slot| steps.label(slot) == Some(step))
        };
        anyhow::ensure!(
            reports.iter().any(has),
            WrongArgument(format!("--step: the snapshot has no step {step}"))
        );
    }
    let wanted = matches.get_one::<AskedMoment>("at").copied();
    let moments: Vec<Option<(AliveMoment, String)>> =
        reports.iter().map(|report| wanted.and_then(|moment| find(report, moment))).collect();
    if let Some(wanted) = wanted {
        ensure(wanted, &reports)?;
    }
    let devices: Vec<(EventList<'_>, EventsForm<'_>)> = reports
        .iter()
        .zip(&moments)
        .filter(|(_, moment)| wanted.is_none() || moment.is_some())
        .map(|(report, moment)| {
            let form = match moment {
                Some((moment, name)) => EventsForm::Alive(*moment, name),
                None if matches.get_flag("reuse") => EventsForm::Reuse,
                None => EventsForm::List,
            };
            (EventList::new(report, filter.clone()), form)
        })
        .collect();
    let frames = matches.get_one::<u16>("stacks").copied().map(usize::from);
    if common.is_json {
        let file = json::File {
            path: path.to_string_lossy().into_owned(),
            bytes: opened.bytes,
            protocol: opened.snapshot.protocol,
        };
        return json(&json::events(file, &devices, frames), out);
    }
    let extent = EventsExtent {
        rows: Some(common.top).filter(|rows| *rows > 0),
        frames: frames.unwrap_or(0),
        bytes_min: filter.bytes_min,
    };
    let about =
        format!("{}, pickle protocol {}", whole_bytes(opened.bytes), opened.snapshot.protocol);
    writeln!(out, "{}: {about}", shown(&path))?;
    if reports.is_empty() {
        writeln!(out, "{}", opened.nothing(&common))?;
    }
    for (list, form) in &devices {
        let page = match form {
            EventsForm::List => text::list(list, extent),
            EventsForm::Reuse => text::reuse(list, extent),
            EventsForm::Alive(moment, name) => text::alive(list, (moment.state, name), extent),
        };
        writeln!(out, "\n{}", page.trim_end())?;
    }
    out.flush()?;
    Ok(())
}
