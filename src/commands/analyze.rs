//! `stepmem analyze`: the process in which the exporter has a memory snapshot analyzed. It
//! limits itself, opens the file beneath one directory, and answers in one line of JSON.

use std::fs::File;
use std::io::{self, Write, stdin, stdout};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal};

use crate::commands::args::{CommandError, CommandRow, Exit};
use crate::commands::snapshot_common::UNPACKED_BYTES_MAX;
use crate::commands::snapshot_file::{ReadError, unpack};
use crate::store::timelines::{DRAWN, TIMELINE_BYTES_MAX};
use stepmem_engine::{AnalysisOutcome, SnapshotAnalysis};
use stepmem_snapshot::html::DocumentHead;
use stepmem_snapshot::text::ShownMoment;
use stepmem_snapshot::{
    Blame, DeviceReport, DeviceScene, LeakVerdict, Site, SiteKind, SiteRow, Sites, Snapshot,
    html, pinned, real,
};
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::whole_bytes;
use stepmem_types::site::{
    CodeFrame, CodeKind, CodeLine, LeakSite, LineBytes, OOM_LINES_MAX, OomSite,
    SITE_FRAMES_MAX, SiteText, SiteVerdict,
};
use stepmem_types::units::Bytes;

/// `stepmem analyze`.
pub(super) const ANALYZE: CommandRow = CommandRow { name: "analyze", arguments, run };

/// The largest file that is analyzed, in bytes.
pub const FILE_BYTES_MAX: u64 = 2 << 30;
/// Processor time of an analysis, in seconds.
pub const CPU_SECONDS_MAX: u64 = 60;
/// Memory that an analysis takes in addition to its file's records, in bytes.
const MEMORY_BYTES_BASE: u64 = 8 << 20;
/// Divisor of a plain file's bytes that gives the memory of its records.
const FILE_BYTES_A_BYTE: u64 = 2;
/// The lowest priority: all other processes come first.
const NICENESS: i32 = 19;
/// Lengths in characters to which a text is cut until its bytes fit.
const TEXT_CHARS: [usize; 2] = [240, 120];

fn arguments() -> Command {
    let number =
        |name: &'static str| Arg::new(name).long(name).value_parser(clap::value_parser!(u64));
    Command::new("analyze")
        .about("Analyze a memory snapshot for an exporter, within limits on memory and time")
        .hide(true)
        .arg(
            Arg::new("directory")
                .long("directory")
                .value_parser(clap::value_parser!(PathBuf))
                .required(true),
        )
        .arg(number("memory-max").required(true))
        .arg(number("owner"))
        .arg(Arg::new("timeline").long("timeline").action(ArgAction::SetTrue))
        .arg(Arg::new("FILE").required(true))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let answered = match analyze(matches) {
        Ok(analyzed) => analyzed.answer(matches),
        Err(refusal) => say(&SnapshotAnalysis::failed(
            refusal.outcome,
            &shortened(&refusal.reason, TEXT_CHARS[1]),
        )),
    };
    answered?;
    Ok(Exit::Success)
}

/// Writes an analysis as the first line of the answer.
fn say(analysis: &SnapshotAnalysis) -> anyhow::Result<()> {
    let mut json = serde_json::to_vec(analysis)?;
    json.push(b'\n');
    stdout().lock().write_all(&json)?;
    Ok(stdout().flush()?)
}

/// A snapshot that was read.
struct Analyzed {
    snapshot: Snapshot,
    n_bytes: u64,
}

impl Analyzed {
    /// Writes the result, and then the timeline, if it is wanted, into the file that is the
    /// standard input. The verdict counts even if the timeline takes more than it may.
    fn answer(&self, matches: &ArgMatches) -> anyhow::Result<()> {
        let sites = Sites::new(&self.snapshot, None);
        let reports = DeviceReport::of_devices(&self.snapshot, &sites);
        say(&understand(&reports))?;
        if !matches.get_flag("timeline") {
            return Ok(());
        }
        let path = matches.get_one::<String>("FILE").map_or("", String::as_str);
        let name = path.rsplit('/').next().unwrap_or(path);
        let (size, protocol) = (whole_bytes(self.n_bytes), self.snapshot.protocol);
        let about = format!("{size}, pickle protocol {protocol}");
        let head = DocumentHead { name, about: &about, moment: ShownMoment::default() };
        let host = pinned(&self.snapshot, &sites);
        let document = html::write(head, &reports, host.as_ref())?;
        File::from(rustix::io::dup(stdin())?).write_all(document.as_bytes())?;
        Ok(writeln!(stdout().lock(), "{DRAWN}")?)
    }
}

/// The reason that a file is not analyzed.
struct Unanalyzed {
    outcome: AnalysisOutcome,
    reason: String,
}

fn refuse(outcome: AnalysisOutcome, reason: impl Into<String>) -> Unanalyzed {
    Unanalyzed { outcome, reason: reason.into() }
}

fn analyze(matches: &ArgMatches) -> Result<Analyzed, Unanalyzed> {
    let memory_max = matches.get_one::<u64>("memory-max").copied().unwrap_or(0);
    limit(memory_max)
        .map_err(|error| refuse(AnalysisOutcome::NotStarted, format!("no limits: {error}")))?;
    let file = open(matches)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| of_system(&error.into()))?;
    check(&stat, matches.get_one::<u64>("owner").copied())?;
    let n_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let needed = MEMORY_BYTES_BASE + n_bytes / FILE_BYTES_A_BYTE;
    if needed > memory_max {
        let reason = format!(
            "a file of {} MiB takes about {} MiB of memory to analyze, but only {} MiB are left",
            n_bytes >> 20,
            needed >> 20,
            memory_max >> 20
        );
        return Err(refuse(AnalysisOutcome::NotStarted, reason));
    }
    let snapshot =
        unpack(File::from(file), UNPACKED_BYTES_MAX).map_err(|error| match error {
            ReadError::Io(error) => of_system(&error),
            ReadError::TooLarge(_) => refuse(AnalysisOutcome::TooLarge, error.to_string()),
            ReadError::Unreadable(_) | ReadError::Damaged(..) => {
                refuse(AnalysisOutcome::Malformed, error.to_string())
            }
        })?;
    Ok(Analyzed { snapshot, n_bytes })
}

/// Limits memory, processor time and priority of this process, and ends it with the exporter.
fn limit(memory_max: u64) -> io::Result<()> {
    let set = |resource, max| {
        let limit = Rlimit { current: Some(max), maximum: Some(max) };
        rustix::process::setrlimit(resource, limit)
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    set(Resource::Core, 0)?;
    set(Resource::Data, memory_max)?;
    set(Resource::Cpu, CPU_SECONDS_MAX)?;
    set(Resource::Fsize, TIMELINE_BYTES_MAX)?;
    // Niceness and the preference of the kernel are courtesies: not every system lets them be
    // set.
    rustix::process::nice(NICENESS).ok();
    std::fs::write("/proc/self/oom_score_adj", "1000").ok();
    Ok(())
}

/// Opens the file beneath the directory, without following any link.
fn open(matches: &ArgMatches) -> Result<OwnedFd, Unanalyzed> {
    let directory = matches.get_one::<PathBuf>("directory").cloned().unwrap_or_default();
    let file = matches.get_one::<String>("FILE").cloned().unwrap_or_default();
    let directory = rustix::fs::open(
        &directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let directory = directory.map_err(|error| of_system(&error.into()))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, file, flags, Mode::empty(), resolve).map_err(|error| {
        match error {
            Errno::LOOP | Errno::XDEV => refuse(
                AnalysisOutcome::Outside,
                "its path is a link or leads out of the directory",
            ),
            error => of_system(&error.into()),
        }
    })
}

/// Checks the file's type, owner and size. `owner`: the user of the process that reported it.
fn check(stat: &Stat, owner: Option<u64>) -> Result<(), Unanalyzed> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refuse(AnalysisOutcome::NotAFile, "it is not a regular file"));
    }
    let of_file = u64::from(stat.st_uid);
    let own = u64::from(rustix::process::geteuid().as_raw());
    if of_file != 0 && of_file != own && Some(of_file) != owner {
        let reason = format!(
            "it belongs to user {of_file}, but was reported by {}",
            owner.map_or(
                "a process whose user is not known: push over the Unix socket".to_owned(),
                |owner| { format!("user {owner}") }
            )
        );
        return Err(refuse(AnalysisOutcome::Owner, reason));
    }
    let n_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if n_bytes > FILE_BYTES_MAX {
        let reason = format!("{} MiB exceed {} MiB", n_bytes >> 20, FILE_BYTES_MAX >> 20);
        return Err(refuse(AnalysisOutcome::TooLarge, reason));
    }
    Ok(())
}

fn of_system(error: &io::Error) -> Unanalyzed {
    let outcome = match error.kind() {
        io::ErrorKind::NotFound => AnalysisOutcome::Missing,
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
            AnalysisOutcome::Forbidden
        }
        _ => AnalysisOutcome::NotAFile,
    };
    refuse(outcome, error.to_string())
}

/// Returns the findings in a snapshot, for the device that grows fastest or else holds most.
fn understand(reports: &[DeviceReport<'_>]) -> SnapshotAnalysis {
    let growth = |report: &&DeviceReport<'_>| {
        let is_leak = report.leak.verdict == LeakVerdict::Leak;
        (is_leak, report.leak.rate.unwrap_or(0.0), report.totals.active)
    };
    let report = reports.iter().max_by(|a, b| {
        let (a, b) = (growth(a), growth(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
    });
    let failed = reports.iter().find(|report| !report.oom.is_empty());
    SnapshotAnalysis {
        outcome: AnalysisOutcome::Analysed,
        reason: None,
        leak: report.map(leak_site),
        oom: failed.and_then(oom_site),
        timeline: None,
    }
}

fn leak_site(report: &DeviceReport<'_>) -> LeakSite {
    let scene = &report.scene;
    let steps = u64::try_from(scene.steps.n_whole()).unwrap_or(0);
    let verdict = match report.leak.verdict {
        LeakVerdict::Leak => SiteVerdict::Leak,
        LeakVerdict::None => SiteVerdict::None,
        LeakVerdict::InsufficientHistory => SiteVerdict::InsufficientHistory,
    };
    let unknown = LeakSite::without_line(verdict, steps);
    match verdict {
        SiteVerdict::Leak => blamed(report, unknown),
        SiteVerdict::None => most_grown(report, unknown),
        SiteVerdict::InsufficientHistory => unknown,
    }
}

/// Adds the line that causes the growth, and the part of the growth that it explains.
fn blamed(report: &DeviceReport<'_>, unknown: LeakSite) -> LeakSite {
    let (scene, leak) = (&report.scene, &report.leak);
    let Some(blame) = &leak.blame else { return unknown };
    let (line, origin, sum) = match blame {
        Blame::Frame { frame, origin, sum } => {
            (Site::of_frame(scene.snapshot, *frame), *origin, *sum)
        }
        Blame::Site(row) => (site_of(scene, row), row.origin, row.sum),
    };
    let leaked: u64 = leak.suspects.iter().map(|suspect| suspect.row.sum.bytes).sum();
    let part = real(sum.bytes) / real(leaked.max(1));
    let explained = leak.rate.zip(leak.floor_rate.filter(|floor| *floor > 0.0));
    let explained = explained.map_or(1.0, |(rate, floor)| (rate / floor).min(1.0));
    let skipped = match blame {
        Blame::Frame { frame, .. } => {
            let frames = scene.sites.user_frames(scene.snapshot, origin);
            frames.take_while(|outer| outer != frame).count()
        }
        Blame::Site(_) => 0,
    };
    LeakSite {
        at: Some(code_line(&line)),
        share_ratio: Some((part * explained).clamp(0.0, 1.0)),
        bytes_per_step: leak.rate.map(|rate| rate * part),
        stack: stack(scene, origin, skipped),
        ..unknown
    }
}

/// Adds the line whose memory grew most in the recording: memory that was allocated in it and
/// stays for more than two steps.
fn most_grown(report: &DeviceReport<'_>, unknown: LeakSite) -> LeakSite {
    let scene = &report.scene;
    let kept = scene.lifetimes().filter(|lifetime| {
        let is_new = !lifetime.allocation.is_older() && lifetime.allocation.is_at_end();
        is_new && lifetime.until.saturating_sub(lifetime.from) > 2
    });
    let rows = scene.sites.table(scene.snapshot, kept.map(|lifetime| lifetime.allocation));
    let Some(row) = rows.first() else { return unknown };
    let rate = real(row.sum.bytes) / real(unknown.steps.max(1));
    LeakSite {
        at: Some(code_line(&site_of(scene, row))),
        bytes_per_step: Some(rate),
        stack: stack(scene, row.origin, 0),
        ..unknown
    }
}

/// Returns the request of the last failed allocation, and the holders of the memory.
fn oom_site(report: &DeviceReport<'_>) -> Option<OomSite> {
    let failure = report.oom.last()?;
    let scene = &report.scene;
    let site = scene.sites.site(scene.sites.of_origin(failure.stack)).unwrap_or(&Site::NOWHERE);
    let held = failure.rows.iter().take(OOM_LINES_MAX).filter_map(|row| {
        let bytes = Bytes::new(row.sum.bytes).ok()?;
        Some(LineBytes { at: code_line(&site_of(scene, row)), bytes })
    });
    let requested_bytes = Bytes::new(failure.requested).ok()?;
    Some(OomSite { at: code_line(site), requested_bytes, held: held.collect() })
}

fn site_of(scene: &DeviceScene<'_>, row: &SiteRow) -> Site {
    scene.sites.site(row.site).cloned().unwrap_or(Site::NOWHERE)
}

fn code_line(site: &Site) -> CodeLine {
    let kind = match site.kind {
        SiteKind::Python => CodeKind::Python,
        SiteKind::Backward => CodeKind::Backward,
        SiteKind::Cpp | SiteKind::Workspace => CodeKind::Cpp,
        SiteKind::NoFrames => CodeKind::NoFrames,
        SiteKind::BeforeRecording => CodeKind::BeforeRecording,
    };
    let function = site.function.as_deref().or(site.node.as_deref());
    CodeLine {
        kind,
        file: site.file.as_deref().and_then(text),
        line: site.line,
        function: function.and_then(text),
    }
}

fn stack(scene: &DeviceScene<'_>, origin: u32, skipped: usize) -> Vec<CodeFrame> {
    let frames = scene.sites.user_frames(scene.snapshot, origin).skip(skipped);
    let frames = frames.filter_map(|frame| {
        let site = Site::of_frame(scene.snapshot, frame);
        let (file, function) = (text(&site.file?)?, text(&site.function?)?);
        Some(CodeFrame { file, line: site.line?, function })
    });
    frames.take(SITE_FRAMES_MAX).collect()
}

/// Returns a text that can be shown, cut in its middle where it is too long; `None` when it is
/// empty.
fn text(text: &str) -> Option<SiteText> {
    TEXT_CHARS.iter().find_map(|chars| SiteText::new(&shortened(text, *chars)).ok())
}
