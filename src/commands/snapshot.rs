//! `stepmem snapshot`: reads files of PyTorch memory snapshots, in pieces, and prints what they show.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use serde::Serialize;

use crate::commands::args::{CommandError, CommandRow, Exit, json_arg};
use crate::commands::take;
use crate::snapshot::answer;
use crate::snapshot::diff;
use crate::snapshot::fault::Unreadable;
use crate::snapshot::html::document::{self, DocumentHead};
use crate::snapshot::load;
use crate::snapshot::model::Snapshot;
use crate::snapshot::page::{self, Question, RowKind, ShownMoment};
use crate::snapshot::page_of_many;
use crate::snapshot::pickle::Machine;
use crate::snapshot::ranks::{self, RankRow, RankSnapshot, rank_of};
use crate::snapshot::scene::DeviceScene;
use crate::snapshot::sites::Sites;
use crate::snapshot::sniff::{self, SNIFF_BYTES, Wrapping};
use crate::snapshot::study::Study;
use crate::store::atomic;
use crate::text::clean::{is_raw, shortened};
use crate::text::units::whole_bytes;

/// `stepmem snapshot`.
pub(super) const SNAPSHOT: CommandRow = CommandRow { name: "snapshot", arguments, run };

/// Bytes of a file that are in memory at a time.
const WINDOW_BYTES: usize = 1 << 18;
/// Unpacked bytes that are read of a file.
pub(super) const UNPACKED_BYTES_MAX: u64 = 8 << 30;
/// Files above this show how far they are read, on a terminal.
const PROGRESS_BYTES_MIN: u64 = 64 << 20;
/// Bytes between two figures of progress.
const PROGRESS_STEP_BYTES: u64 = 16 << 20;
/// Characters of a path in an error.
const PATH_CHARS: usize = 200;

/// A file that is not a readable snapshot; the command exits with 2.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
struct NotASnapshot {
    path: String,
    reason: String,
}

const SUBCOMMANDS: [CommandRow; 3] = [
    CommandRow { name: "show", arguments: show_arguments, run: show },
    CommandRow { name: "diff", arguments: diff_arguments, run: compare },
    CommandRow { name: "ranks", arguments: ranks_arguments, run: compare_ranks },
];

fn arguments() -> Command {
    Command::new("snapshot")
        .about(
            "Read PyTorch memory snapshots: who holds the memory, which line leaks, why it ran out",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(
            SUBCOMMANDS.iter().map(|row| with_common((row.arguments)().name(row.name))),
        )
        .subcommand(take::arguments())
        .after_help("Exits with 2 for a file that is not a snapshot; ranks gives such a file a row.")
}

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf)).required(true)
}

fn show_arguments() -> Command {
    Command::default()
        .about("Show one snapshot: who holds the memory, leak, out of memory, fragmentation, steps")
        .arg(file("FILE", "A snapshot, plain or compressed with gzip or zstd"))
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("MOMENT")
                .value_parser(moment)
                .default_value("end")
                .help("Moment of the table: end, peak, oom, or the number of a step"),
        )
        .arg(
            Arg::new("by")
                .long("by")
                .value_name("ROWS")
                .value_parser(["line", "function", "stack", "category"])
                .default_value("line")
                .help("Rows of the table"),
        )
        .arg(
            Arg::new("html")
                .long("html")
                .value_name("OUT")
                .value_parser(clap::value_parser!(PathBuf))
                .conflicts_with("json")
                .help("Write a document with pictures to this file: for any browser, of at most 5 MB"),
        )
}

fn diff_arguments() -> Command {
    Command::default()
        .about("Compare two snapshots line by line: what grew?")
        .arg(file("BEFORE", "The earlier snapshot"))
        .arg(file("AFTER", "The later one"))
}

fn ranks_arguments() -> Command {
    let help = "One file a rank; the rank is the number after \"rank\" in its name";
    Command::default()
        .about("Compare the snapshots of a job's ranks: which differs, in which line?")
        .arg(file("FILE", help).num_args(1..))
}

fn with_common(command: Command) -> Command {
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
                    "Most bytes to read of a file, unpacked [default: {UNPACKED_BYTES_MAX}]"
                )),
        )
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Success) };
    if name == take::NAME {
        return take::run(matches);
    }
    let row = SUBCOMMANDS.iter().find(|row| row.name == name);
    row.map_or(Ok(Exit::Success), |row| (row.run)(matches))
}

/// What a file that is not a snapshot exits with, and any other error.
fn stopped(error: anyhow::Error) -> CommandError {
    let exit = if error.is::<NotASnapshot>() { Exit::NotASnapshot } else { Exit::Failure };
    CommandError { exit, error }
}

/// What all three take.
struct Common {
    is_json: bool,
    device: Option<u64>,
    top: usize,
    project: Option<String>,
    unpacked_max: u64,
}

impl Common {
    fn new(matches: &ArgMatches) -> Self {
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
        }
    }

    fn open(&self, path: &Path) -> anyhow::Result<Opened> {
        let (snapshot, bytes) = read(path, self.unpacked_max)?;
        let sites = Sites::new(&snapshot, self.project.as_deref());
        Ok(Opened { snapshot, sites, bytes })
    }
}

/// A snapshot that was read.
struct Opened {
    snapshot: Snapshot,
    sites: Sites,
    bytes: u64,
}

impl Opened {
    fn studies(&self, common: &Common) -> Vec<Study<'_>> {
        let devices = self.snapshot.devices.iter();
        devices
            .filter(|device| common.device.is_none_or(|only| only == device.index))
            .map(|device| Study::new(DeviceScene::new(&self.snapshot, device, &self.sites)))
            .collect()
    }
}

fn show(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print_show(matches, io::stdout().lock()).map_err(stopped)?;
    Ok(Exit::Success)
}

fn print_show(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let path = path(matches, "FILE");
    let opened = common.open(&path)?;
    let studies = opened.studies(&common);
    if common.is_json {
        let file = answer::File {
            path: path.to_string_lossy().into_owned(),
            bytes: opened.bytes,
            protocol: opened.snapshot.protocol,
        };
        return json(&answer::show(file, &studies), out);
    }
    let moment = matches.get_one("at").copied().unwrap_or_default();
    let about =
        format!("{}, pickle protocol {}", whole_bytes(opened.bytes), opened.snapshot.protocol);
    if let Some(to) = matches.get_one::<PathBuf>("html") {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let head = DocumentHead { name: &name, about: &about, moment };
        let document = document::write(head, &studies)?;
        return atomic::replace(to, &[document.as_bytes()])
            .with_context(|| shortened(&to.to_string_lossy(), PATH_CHARS));
    }
    let question = Question {
        moment,
        rows: match matches.get_one::<String>("by").map(String::as_str) {
            Some("function") => RowKind::Function,
            Some("stack") => RowKind::Stack,
            Some("category") => RowKind::Category,
            _ => RowKind::Line,
        },
        top: common.top,
    };
    writeln!(out, "{}: {about}", shortened(&path.to_string_lossy(), PATH_CHARS))?;
    if studies.is_empty() {
        writeln!(out, "no device has segments or events")?;
    }
    for study in &studies {
        writeln!(out, "\n{}", page::device(study, &question).trim_end())?;
    }
    Ok(())
}

fn compare(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print_compare(matches, io::stdout().lock()).map_err(stopped)?;
    Ok(Exit::Success)
}

fn print_compare(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let before = common.open(&path(matches, "BEFORE"))?;
    let after = common.open(&path(matches, "AFTER"))?;
    let diff = diff::compare(&before.studies(&common), &after.studies(&common));
    if common.is_json {
        return json(&diff, out);
    }
    write!(out, "{}", page_of_many::diff(&diff, common.top))?;
    Ok(())
}

fn compare_ranks(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print_compare_ranks(matches, io::stdout().lock()).map_err(stopped)?;
    Ok(Exit::Success)
}

fn print_compare_ranks(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let mut rows = Vec::new();
    let mut summaries = Vec::new();
    for (position, path) in (0..).zip(matches.get_many::<PathBuf>("FILE").into_iter().flatten())
    {
        let file = path.to_string_lossy().into_owned();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let rank = name.and_then(|name| rank_of(&name)).unwrap_or(position);
        match common.open(path) {
            Ok(opened) => {
                let summary = RankSnapshot::new(&opened.studies(&common));
                rows.push(summary.row(rank, file));
                summaries.push(Some(summary));
            }
            Err(error) => {
                let error = match error.downcast_ref::<NotASnapshot>() {
                    Some(not) => not.reason.clone(),
                    None => format!("{:#}", error.root_cause()),
                };
                rows.push(RankRow::unreadable(rank, file, error));
                summaries.push(None);
            }
        }
    }
    let ranks = ranks::compare(rows, &summaries);
    if common.is_json {
        return json(&ranks, out);
    }
    write!(out, "{}", page_of_many::ranks(&ranks, common.top))?;
    Ok(())
}

fn path(matches: &ArgMatches, name: &str) -> PathBuf {
    matches.get_one::<PathBuf>(name).cloned().unwrap_or_default()
}

fn moment(text: &str) -> Result<ShownMoment, String> {
    match text {
        "end" => Ok(ShownMoment::End),
        "peak" => Ok(ShownMoment::Peak),
        "oom" => Ok(ShownMoment::Oom),
        step => step
            .parse()
            .map(ShownMoment::Step)
            .map_err(|_| "expected end, peak, oom or the number of a step".to_owned()),
    }
}

/// JSON in which no character can reach a terminal as a control.
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

fn json(answer: &impl Serialize, out: impl Write) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(out);
    answer
        .serialize(&mut serde_json::Serializer::with_formatter(&mut out, Escaping))
        .map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Reads a file, a window at a time, unpacking it if need be; returns its size on the disk too.
fn read(path: &Path, unpacked_max: u64) -> anyhow::Result<(Snapshot, u64)> {
    let shown = || shortened(&path.to_string_lossy(), PATH_CHARS);
    let file = File::open(path).with_context(shown)?;
    let metadata = file.metadata().with_context(shown)?;
    if metadata.is_dir() {
        return Err(NotASnapshot { path: shown(), reason: "it is a folder".to_owned() }.into());
    }
    let mut progress = ReadProgress::new(metadata.len());
    let file = Counted { file, progress: &mut progress };
    let result = unpack(file, unpacked_max);
    progress.clear();
    match result {
        Ok(snapshot) => Ok((snapshot, metadata.len())),
        Err(ReadError::Io(error)) => Err(anyhow::Error::new(error).context(shown())),
        Err(other) => Err(NotASnapshot { path: shown(), reason: other.to_string() }.into()),
    }
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    #[error("its {0} data is damaged or truncated at byte {1} of what it unpacks to: {2}")]
    Damaged(&'static str, u64, io::Error),
    #[error("it has more than {0} bytes unpacked; --unpacked-max raises the limit")]
    TooLarge(u64),
}

pub(super) fn unpack(file: impl Read, unpacked_max: u64) -> Result<Snapshot, ReadError> {
    let mut file = BufReader::with_capacity(WINDOW_BYTES, file);
    let mut head = Vec::with_capacity(SNIFF_BYTES);
    let limit = u64::try_from(SNIFF_BYTES).unwrap_or(0);
    file.by_ref().take(limit).read_to_end(&mut head).map_err(ReadError::Io)?;
    let wrapping = sniff::wrapping(&head)?;
    let whole = head.chain(file);
    match wrapping {
        Wrapping::Plain => parse(whole, unpacked_max, None),
        Wrapping::Gzip => parse(MultiGzDecoder::new(whole), unpacked_max, Some("gzip")),
        Wrapping::Zstd => {
            parse(Zstd { source: Some(whole), frame: None }, unpacked_max, Some("zstd"))
        }
    }
}

/// Feeds what is read to the machine. `format`: how it was packed.
fn parse(
    mut source: impl Read,
    unpacked_max: u64,
    format: Option<&'static str>,
) -> Result<Snapshot, ReadError> {
    let mut window = vec![0; WINDOW_BYTES];
    let mut machine = Machine::default();
    let (mut held, mut n_read) = (0, 0_u64);
    let mut is_checked = false;
    while !machine.is_done() {
        let Some(vacant) = window.get_mut(held..) else { break };
        let more = match source.read(vacant) {
            Ok(0) => break,
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(match format {
                    Some(format) => ReadError::Damaged(format, n_read, error),
                    None => ReadError::Io(error),
                });
            }
        };
        n_read += u64::try_from(more).unwrap_or(u64::MAX);
        if n_read > unpacked_max {
            return Err(ReadError::TooLarge(unpacked_max));
        }
        held += more;
        let filled = window.get(..held).unwrap_or(&[]);
        if !is_checked && held >= 2 {
            sniff::check_pickle(filled)?;
            is_checked = true;
        }
        let used = machine.feed(filled)?;
        window.copy_within(used..held, 0);
        held -= used;
    }
    Ok(load::finish(machine, held)?)
}

/// Frames of Zstandard one after the other.
struct Zstd<R: BufRead> {
    source: Option<R>,
    frame: Option<Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>>,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let n_read = frame.read(out)?;
                if n_read > 0 || out.is_empty() {
                    return Ok(n_read);
                }
                self.source = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            // A skippable frame: its header names its length.
            let is_skippable = matches!(source.fill_buf()?, [0x50..=0x5f, 0x2a, ..]);
            if is_skippable {
                let mut header = [0; 8];
                source.read_exact(&mut header)?;
                let [.., a, b, c, d] = header;
                let length = u64::from(u32::from_le_bytes([a, b, c, d]));
                io::copy(&mut source.by_ref().take(length), &mut io::sink())?;
                self.source = Some(source);
                continue;
            }
            let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// A file whose reads are counted.
struct Counted<'a> {
    file: File,
    progress: &'a mut ReadProgress,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n_read = self.file.read(out)?;
        self.progress.add(u64::try_from(n_read).unwrap_or(0));
        Ok(n_read)
    }
}

/// How far a large file is read, on a terminal.
struct ReadProgress {
    whole: u64,
    done: u64,
    shown: Option<u64>,
    is_on: bool,
}

impl ReadProgress {
    fn new(whole: u64) -> Self {
        let is_on = whole > PROGRESS_BYTES_MIN && io::stderr().is_terminal();
        Self { whole, done: 0, shown: None, is_on }
    }

    fn add(&mut self, n_bytes: u64) {
        self.done += n_bytes;
        let step = self.done / PROGRESS_STEP_BYTES;
        if self.is_on && self.shown != Some(step) {
            self.shown = Some(step);
            let percent = u128::from(self.done) * 100 / u128::from(self.whole.max(1));
            write!(io::stderr(), "\rreading {percent}% of {} ", whole_bytes(self.whole)).ok();
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            write!(io::stderr(), "\r{:40}\r", "").ok();
        }
    }
}
