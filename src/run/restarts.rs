//! Planned restarts: a command that ended by agreement, after a checkpoint, is started again for
//! as long as that helps.
//!
//! The client leaves two files of each rank in a directory of the launch (`_restart.py`): with
//! which step it began, and with which it ended as planned. The exit code alone would not do:
//! torchrun has its own.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::run::terminal::say;
use crate::store::left;
use stepmem_report::summary::RestartsSoFar;
use stepmem_types::format::clean::clean;
use stepmem_types::format::units::{counted, grouped};
use stepmem_types::ids::Run;

/// Planned restarts at most, by default.
pub const RESTARTS_MAX: u32 = 10;
/// The longest file of attempts that are kept, in bytes.
pub const KEPT_BYTES_MAX: u64 = 1 << 20;
/// An attempt that gains less than this part of the steps of the one before is the last one that
/// is planned: the memory fills faster and faster.
const GAIN_RATIO_MIN: f64 = 0.5;

/// The file that makes an attempt the last one.
const LAST: &str = "last";
/// The variables of the client.
const DIRECTORY: &str = "STEPMEM_RESTART_DIRECTORY";
const ATTEMPT: &str = "STEPMEM_ATTEMPT";
const RUN: &str = "STEPMEM_RUN";

/// The wish to have planned restarts.
#[derive(Clone, Debug)]
pub struct RestartOptions {
    /// Planned restarts at most.
    pub max: u32,
    /// The file in which attempts are kept for a later `run`.
    pub kept: Option<PathBuf>,
}

/// The attempts of a command so far, and whether there will be another one.
#[derive(Debug)]
pub(super) struct Restarts {
    options: RestartOptions,
    folder: PathBuf,
    /// Attempts that ended as planned.
    attempts: Vec<Attempt>,
    run: Option<Run>,
    /// Attempts of an earlier `run`.
    n_kept: usize,
    /// The Unix time when this `run` began.
    since: f64,
}

/// An attempt that ended as planned.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Attempt {
    #[serde(flatten)]
    began: Began,
    last_step: u64,
    /// The Unix time when it began its last checkpoint.
    asked_time: f64,
}

/// The first step of an attempt.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct Began {
    first_step: u64,
    /// The Unix time when it ended.
    first_time: f64,
    /// Set if each attempt counts its steps from 1 on, whatever its checkpoint has.
    is_counted: bool,
}

/// A file that a rank left.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Left {
    run: Run,
    step: u64,
    time: f64,
    is_counted: bool,
}

impl Restarts {
    /// Makes the directory of the launch, in the private one, and reads the attempts that were
    /// kept.
    pub(super) fn prepare(options: &RestartOptions, private: &Path) -> io::Result<Self> {
        let folder = private.join("restarts");
        DirBuilder::new().mode(0o700).create(&folder)?;
        let attempts = options.kept.as_deref().map_or(Ok(Vec::new()), kept)?;
        let n_kept = attempts.len();
        let since = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let options = options.clone();
        Ok(Self { options, folder, attempts, run: None, n_kept, since })
    }

    /// Returns the variables of the next attempt. If that is the last one, a file says so: its
    /// program does not end before its memory does.
    pub(super) fn variables(&self) -> Vec<(&'static str, OsString)> {
        if !self.may_go_on() {
            fs::write(self.folder.join(LAST), "").ok();
        }
        let mut variables = vec![(DIRECTORY, self.folder.clone().into_os_string())];
        if !self.attempts.is_empty() {
            variables.push((ATTEMPT, self.attempts.len().to_string().into()));
        }
        if let Some(run) = &self.run {
            variables.push((RUN, run.as_str().into()));
        }
        variables
    }

    /// Takes note of how an attempt ended. Returns whether the command is to be started again.
    pub(super) fn is_planned(&mut self, code: u8) -> bool {
        // What the last attempt left stays for its summary.
        let began = self.left("began").map(|(_, left)| Began {
            first_step: left.step,
            first_time: left.time,
            is_counted: left.is_counted,
        });
        let ended = self.left("ended").filter(|_| code != 0);
        let (Some(began), Some((run, left))) = (began, ended) else { return false };
        self.clear();
        let attempt = Attempt { began, last_step: left.step, asked_time: left.time };
        self.keep(&attempt);
        self.attempts.push(attempt);
        self.run = Some(run);
        let (n, steps) = (self.attempts.len(), counted(attempt.gained(), "step"));
        let last = grouped(attempt.last_step);
        say(&format!(
            "stepmem: planned restart {n}, {steps} after the last one, from the checkpoint of step {last}\n"
        ));
        if !self.may_go_on() {
            say(&format!("stepmem: no planned restart after that: {}\n", self.why_not()));
        }
        true
    }

    /// Returns the restarts so far, for the summary; `None` if there were none.
    pub(super) fn so_far(&self) -> Option<RestartsSoFar> {
        let newest = self.attempts.last()?;
        Some(RestartsSoFar {
            run: self.run.clone(),
            restarts: u64::try_from(self.attempts.len()).unwrap_or(u64::MAX),
            lost_steps: self.lost_steps(),
            lost_seconds: self.lost_seconds(),
            last_step: newest.last_step,
            asked_time: (self.attempts.len() > self.n_kept).then_some(newest.asked_time),
            since: self.since,
            folder: self.folder.clone(),
        })
    }

    /// Returns whether the next attempt may end as planned, too.
    fn may_go_on(&self) -> bool {
        self.n_left() > 0 && !self.shrinks()
    }

    fn n_left(&self) -> u32 {
        let n = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX);
        self.options.max.saturating_sub(n)
    }

    fn why_not(&self) -> String {
        if self.shrinks() {
            "each attempt gains fewer steps".to_owned()
        } else {
            format!("--max-restarts {}", self.options.max)
        }
    }

    /// Returns whether the last attempt gained much less than the one before.
    fn shrinks(&self) -> bool {
        let [.., before, last] = self.attempts.as_slice() else { return false };
        let goes_on = last.began.is_counted || last.last_step > before.last_step;
        !goes_on || last.gained() < GAIN_RATIO_MIN * before.gained()
    }

    /// Returns each attempt with the beginning of the next one, of those that ended as planned.
    fn seams(&self) -> impl Iterator<Item = (&Attempt, Began)> {
        let next = self.attempts.iter().skip(1).map(|attempt| attempt.began);
        self.attempts.iter().zip(next)
    }

    /// Returns the steps that were computed twice before the newest restart; `None` where each
    /// attempt counts from 1 on.
    fn lost_steps(&self) -> Option<u64> {
        let counts = |attempt: &Attempt| attempt.began.is_counted;
        let lost = self.seams().map(|(before, next)| {
            before.last_step.saturating_add(1).saturating_sub(next.first_step)
        });
        (!self.attempts.iter().any(counts)).then(|| lost.fold(0, u64::saturating_add))
    }

    /// Returns the time from the begin of each last checkpoint to the next attempt's first step,
    /// of the restarts of this `run` but the newest.
    fn lost_seconds(&self) -> f64 {
        let own = self.seams().skip(self.n_kept);
        own.map(|(before, next)| (next.first_time - before.asked_time).max(0.0)).sum()
    }

    /// Returns the content of the file of one kind of the lowest rank.
    fn left(&self, kind: &str) -> Option<(Run, Left)> {
        let left: Left = left::of_lowest(&self.folder, kind)?;
        Some((left.run.clone(), left))
    }

    /// Removes the files of an attempt.
    fn clear(&self) {
        for (_, path) in
            ["began", "ended"].into_iter().flat_map(|kind| left::files(&self.folder, kind))
        {
            fs::remove_file(path).ok();
        }
    }

    /// Adds an attempt to the file. An error costs only what a later `run` would know.
    fn keep(&self, attempt: &Attempt) {
        let Some(path) = &self.options.kept else { return };
        let line = serde_json::to_string(attempt).unwrap_or_default() + "\n";
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            let path = path.display().to_string();
            say(&format!("stepmem: attempts are not kept: {}: {error}\n", clean(&path)));
        }
    }
}

impl Attempt {
    /// Returns its steps.
    fn gained(&self) -> f64 {
        let steps = (self.last_step + 1).saturating_sub(self.began.first_step);
        u32::try_from(steps).map_or(f64::from(u32::MAX), f64::from)
    }
}

/// Returns the attempts that an earlier `run` kept; none if there is no such file.
fn kept(path: &Path) -> io::Result<Vec<Attempt>> {
    let text = match left::read(path, KEPT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}
