//! The shared parts of the subcommands of `stepmem snapshot`: their arguments, the files that
//! they read, their JSON.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;

use crate::commands::args::{WrongArgument, json_arg};
use crate::commands::snapshot_file::read;
use stepmem_snapshot::text::ShownMoment;
use stepmem_snapshot::{DeviceReport, DeviceScene, Sites, Snapshot, before_zero_grad};
use stepmem_types::format::clean::is_raw;

/// Maximum number of decompressed bytes that are read of a file.
pub(super) const UNPACKED_BYTES_MAX: u64 = 8 << 30;

pub(super) fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf)).required(true)
}

/// Adds the argument for the path of a document.
pub(super) fn with_html(command: Command) -> Command {
    command.arg(
        Arg::new("html")
            .long("html")
            .value_name("OUT")
            .value_parser(clap::value_parser!(PathBuf))
            .conflicts_with("json")
            .help("Write an HTML document with pictures to this file, of at most 5 MB"),
    )
}

/// Adds the arguments that all of them take.
pub(super) fn with_common(command: Command) -> Command {
    command
        .arg(json_arg("Print JSON"))
        .arg(
            Arg::new("device")
                .long("device")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .help("Only this device [default: every device with content]"),
        )
        .arg(
            Arg::new("top")
                .long("top")
                .value_name("N")
                .value_parser(clap::value_parser!(u32))
                .default_value("10")
                .help("Rows of a table; JSON is always complete"),
        )
        .arg(
            Arg::new("project")
                .long("project")
                .value_name("DIR")
                .help("Where your code is [default: all that is not installed]"),
        )
        .arg(
            Arg::new("unpacked-max")
                .long("unpacked-max")
                .value_name("BYTES")
                .value_parser(clap::value_parser!(u64))
                .help(format!(
                    "Maximum number of unpacked bytes to read of a file [default: {UNPACKED_BYTES_MAX}]"
                )),
        )
}

pub(super) fn path(matches: &ArgMatches, name: &str) -> PathBuf {
    matches.get_one::<PathBuf>(name).cloned().unwrap_or_default()
}

/// Returns the sentence that no device has such a whole step, with the steps that there are.
fn no_step(step: u64, reports: &[DeviceReport<'_>]) -> String {
    let steps = || {
        reports
            .iter()
            .flat_map(|report| &report.step_reports)
            .map(|step_report| step_report.step)
    };
    let Some((first, last)) = steps().min().zip(steps().max()) else {
        return format!(
            "--at: no step {step}: no steps can be told apart in the snapshot (use end, peak or oom)"
        );
    };
    let has_begun = reports.iter().any(|report| {
        let scene = &report.scene;
        scene.steps.label(scene.last_slot()) == Some(step)
    });
    if has_begun {
        let failed = reports.iter().any(|report| !report.oom.is_empty());
        let instead = if failed { "--at oom" } else { "--at end" };
        return format!(
            "--at: step {step} did not end in the window: {instead} shows it, whole steps are {first} to {last}"
        );
    }
    format!("--at: no step {step}, the snapshot has steps {first} to {last}")
}

/// Refuses a moment that no device has, and names those that exist.
pub(super) fn ensure_moment(
    moment: ShownMoment,
    reports: &[DeviceReport<'_>],
) -> anyhow::Result<()> {
    let stage_of = |step: u64| {
        let mut step_reports = reports.iter().flat_map(|report| &report.step_reports);
        step_reports.find(move |step_report| step_report.step == step)
    };
    match moment {
        ShownMoment::End | ShownMoment::Peak | ShownMoment::Oom => {}
        ShownMoment::Step(step) => {
            anyhow::ensure!(stage_of(step).is_some(), WrongArgument(no_step(step, reports)));
        }
        ShownMoment::Pass(step, pass) => {
            let step_report =
                stage_of(step).with_context(|| WrongArgument(no_step(step, reports)))?;
            let n_passes = step_report.backward_passes;
            anyhow::ensure!(
                (1..=n_passes).contains(&pass),
                WrongArgument(format!(
                    "--at: no backward pass {pass} in step {step}, it has {n_passes}"
                ))
            );
        }
        ShownMoment::ZeroGrad(step) => {
            stage_of(step).with_context(|| WrongArgument(no_step(step, reports)))?;
            anyhow::ensure!(
                reports.iter().any(|report| before_zero_grad(report, step).is_some()),
                WrongArgument(format!(
                    "--at: step {step} does not call zero_grad, as far as the snapshot shows"
                ))
            );
        }
    }
    Ok(())
}

/// The moments that have a name.
const MOMENTS: [(&str, ShownMoment); 3] =
    [("end", ShownMoment::End), ("peak", ShownMoment::Peak), ("oom", ShownMoment::Oom)];

/// Reads a moment that is no bare number: `peak`, `step:N`, `N.P` …
pub(super) fn named_moment(text: &str) -> Option<ShownMoment> {
    let named = MOMENTS.iter().find(|(name, _)| *name == text);
    if let Some((_, moment)) = named {
        return Some(*moment);
    }
    let of_step = text.strip_prefix("step:");
    match of_step.unwrap_or(text).split_once('.') {
        None => of_step?.parse().ok().map(ShownMoment::Step),
        Some((step, "zero_grad")) => step.parse().ok().map(ShownMoment::ZeroGrad),
        Some((step, pass)) => Some(ShownMoment::Pass(step.parse().ok()?, pass.parse().ok()?)),
    }
}

/// The arguments that all three take.
pub(super) struct Common {
    pub(super) is_json: bool,
    pub(super) device: Option<u64>,
    pub(super) top: usize,
    pub(super) project: Option<String>,
    pub(super) unpacked_max: u64,
    pub(super) html: Option<PathBuf>,
}

impl Common {
    pub(super) fn new(matches: &ArgMatches) -> Self {
        let top = matches.get_one::<u32>("top").copied().unwrap_or_default();
        Self {
            is_json: matches.get_flag("json"),
            device: matches.get_one("device").copied(),
            top: usize::try_from(top).unwrap_or(usize::MAX),
            project: matches.get_one("project").cloned(),
            unpacked_max: matches
                .get_one("unpacked-max")
                .copied()
                .unwrap_or(UNPACKED_BYTES_MAX),
            html: matches.try_get_one("html").ok().flatten().cloned(),
        }
    }

    pub(super) fn open(&self, path: &Path) -> anyhow::Result<Opened> {
        let (snapshot, bytes) = read(path, self.unpacked_max)?;
        let sites = Sites::new(&snapshot, self.project.as_deref());
        Ok(Opened { snapshot, sites, bytes })
    }
}

/// A snapshot that was read.
pub(super) struct Opened {
    pub(super) snapshot: Snapshot,
    pub(super) sites: Sites,
    pub(super) bytes: u64,
}

impl Opened {
    /// Returns that there is nothing to show, with the devices that the snapshot has if another one
    /// is asked for.
    pub(super) fn nothing(&self, common: &Common) -> String {
        let known: Vec<String> =
            self.snapshot.devices.iter().map(|device| device.index.to_string()).collect();
        match (common.device, known.as_slice()) {
            (Some(only), [known]) => {
                format!("no device {only}: the snapshot has device {known}")
            }
            (Some(only), [_, ..]) => {
                format!("no device {only}: the snapshot has devices {}", known.join(", "))
            }
            _ => "no device has segments or events".to_owned(),
        }
    }

    pub(super) fn reports(&self, common: &Common) -> Vec<DeviceReport<'_>> {
        let devices = self.snapshot.devices.iter();
        devices
            .filter(|device| common.device.is_none_or(|only| only == device.index))
            .map(|device| {
                DeviceReport::new(DeviceScene::new(&self.snapshot, device, &self.sites))
            })
            .collect()
    }
}

/// JSON without control characters that could reach a terminal.
struct Escaping;

impl serde_json::ser::Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if !text.chars().any(is_raw) {
            return out.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if is_raw(c) {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            } else {
                write!(out, "{c}")?;
            }
        }
        Ok(())
    }
}

pub(super) fn json(answer: &impl Serialize, out: impl Write) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(out);
    answer
        .serialize(&mut serde_json::Serializer::with_formatter(&mut out, Escaping))
        .map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
