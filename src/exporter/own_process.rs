//! The figures of the exporter's own process, under the names that Prometheus client libraries
//! use.
//!
//! The collector of the crate `prometheus` counts whole seconds of processor time, which hardly
//! change in a small exporter.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Opts};
use rustix::process::{Resource, getrlimit};

/// Prefix of the figures' names.
const NAMESPACE: &str = "process";
/// The directory in which the kernel describes the process.
const PROC: &str = "/proc";
/// The most bytes of a file of it that are read: some 1,500 are there.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// The entry of `auxv` for the ticks of a second.
const AT_CLKTCK: u64 = 17;
/// The ticks of a second on all usual machines.
const USUAL_TICKS: f64 = 100.0;
/// The index of the user time in `/proc/self/stat`, counted from the state behind the name of
/// the program.
const UTIME_IDX: usize = 11;
/// The index of the system time, counted like [`UTIME_IDX`].
const STIME_IDX: usize = 12;
/// The index of the start, counted like [`UTIME_IDX`].
const START_IDX: usize = 19;

/// A figure of the process, and the function that finds it in what was read.
struct ProcessFigure {
    gauge: Gauge,
    find: FindFigure,
}

/// Finds a figure in the text of `status`.
type FindFigure = fn(&str) -> Option<f64>;

/// Collects the figures of this process, each file once. One that cannot be read is absent.
pub(super) struct OwnProcess {
    ticks_per_second: f64,
    cpu_seconds: Option<Counter>,
    figures: Vec<ProcessFigure>,
    /// The start of the process, which never changes.
    start: Option<Gauge>,
}

impl OwnProcess {
    pub(super) fn new() -> Self {
        let rows: [(&str, FindFigure); 5] = [
            ("resident_memory_bytes", |status| kibibytes(status, "VmRSS")),
            ("virtual_memory_bytes", |status| kibibytes(status, "VmSize")),
            ("threads", |status| line(status, "Threads")?.parse().ok()),
            ("open_fds", |_| open_fds()),
            ("max_fds", |_| max_fds()),
        ];
        let gauge = |name| Gauge::with_opts(opts(name)).ok();
        let figure = |(name, find)| Some(ProcessFigure { gauge: gauge(name)?, find });
        let ticks_per_second = ticks_of_auxv().unwrap_or(USUAL_TICKS);
        let start = gauge("start_time_seconds").zip(start_time(ticks_per_second));
        let start = start.map(|(gauge, seconds)| {
            gauge.set(seconds);
            gauge
        });
        Self {
            ticks_per_second,
            cpu_seconds: Counter::with_opts(opts("cpu_seconds_total")).ok(),
            figures: rows.into_iter().filter_map(figure).collect(),
            start,
        }
    }
}

impl Collector for OwnProcess {
    fn desc(&self) -> Vec<&Desc> {
        let of_gauges = self.figures.iter().map(|figure| &figure.gauge).chain(&self.start);
        let of_gauges = of_gauges.flat_map(Collector::desc);
        self.cpu_seconds.iter().flat_map(Collector::desc).chain(of_gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        let ticks = text("self/stat")
            .and_then(|stat| Some(field(&stat, UTIME_IDX)? + field(&stat, STIME_IDX)?));
        if let Some((counter, ticks)) = self.cpu_seconds.as_ref().zip(ticks) {
            counter.reset();
            counter.inc_by(ticks / self.ticks_per_second);
            families.extend(counter.collect());
        }
        let status = text("self/status").unwrap_or_default();
        for ProcessFigure { gauge, find } in &self.figures {
            if let Some(value) = find(&status) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families.extend(self.start.iter().flat_map(Collector::collect));
        families
    }
}

/// Returns the name of a figure; its help is in the table of metrics.
fn opts(name: &str) -> Opts {
    Opts::new(name, name).namespace(NAMESPACE)
}

/// Reads a file below `/proc`. It has no length there, so that it is read until its end.
fn text(name: &str) -> Option<String> {
    let mut text = String::with_capacity(4 << 10);
    let file = File::open(Path::new(PROC).join(name)).ok()?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the start of the process, as a Unix time.
fn start_time(ticks_per_second: f64) -> Option<f64> {
    let boot = fs::read_to_string(Path::new(PROC).join("stat")).ok()?;
    let boot: f64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + field(&text("self/stat")?, START_IDX)? / ticks_per_second)
}

/// Returns a field of `stat`. The program's name stands in parentheses, and may itself have
/// blanks and parentheses.
fn field(stat: &str, idx: usize) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(idx)?.parse().ok()
}

/// Returns the number of the kernel's ticks in a second, from the process's auxiliary vector.
fn ticks_of_auxv() -> Option<f64> {
    let auxv = fs::read(Path::new(PROC).join("self/auxv")).ok()?;
    let entries = auxv.chunks_exact(2 * size_of::<usize>());
    let mut pairs = entries.filter_map(|entry| {
        let (key, value) = entry.split_at_checked(size_of::<usize>())?;
        Some((word(key)?, word(value)?))
    });
    let (_, ticks) = pairs.find(|(key, _)| *key == AT_CLKTCK)?;
    u32::try_from(ticks).ok().filter(|ticks| *ticks > 0).map(f64::from)
}

/// Returns a word of the machine's size and order.
fn word(bytes: &[u8]) -> Option<u64> {
    let word = usize::from_ne_bytes(bytes.try_into().ok()?);
    u64::try_from(word).ok()
}

/// Returns a line of `status` that is in KiB, in bytes.
fn kibibytes(status: &str, name: &str) -> Option<f64> {
    let count: f64 = counted(line(status, name)?)?;
    Some(1024.0 * count)
}

/// Returns the size of this process's address space, in bytes.
pub(super) fn mapped_bytes() -> Option<u64> {
    let count: u64 = counted(line(&text("self/status")?, "VmSize")?)?;
    count.checked_mul(1024)
}

/// Returns the number of KiB that a line of `status` has.
fn counted<T: FromStr>(value: &str) -> Option<T> {
    value.strip_suffix("kB")?.trim().parse().ok()
}

/// Returns the value of a line of `status`.
fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim())
    })
}

/// Returns the number of open files, without the directory that is read for it.
fn open_fds() -> Option<f64> {
    let n_listed = fs::read_dir(Path::new(PROC).join("self/fd")).ok()?.count();
    u32::try_from(n_listed.saturating_sub(1)).ok().map(f64::from)
}

/// Returns the maximum number of open files; `None` where there is no limit.
fn max_fds() -> Option<f64> {
    u32::try_from(getrlimit(Resource::Nofile).current?).ok().map(f64::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prometheus::core::Collector;

    use crate::exporter::own_process::OwnProcess;

    /// Every figure by its name.
    fn figures() -> BTreeMap<String, f64> {
        let families = OwnProcess::new().collect();
        let value = |metric: &prometheus::proto::Metric| {
            metric.get_counter().get_value() + metric.get_gauge().get_value()
        };
        families
            .iter()
            .map(|family| {
                let name = family.name().strip_prefix("process_").unwrap().to_owned();
                (name, value(&family.get_metric()[0]))
            })
            .collect()
    }

    #[test]
    fn figures_are_those_of_this_process() {
        let figures = figures();
        assert_eq!(figures.len(), 7, "{figures:?}");
        assert!(figures["resident_memory_bytes"] > 1e6);
        assert!(figures["virtual_memory_bytes"] > figures["resident_memory_bytes"]);
        assert!(figures["threads"] >= 2.0 && figures["open_fds"] >= 3.0);
        assert!(figures["max_fds"] >= figures["open_fds"]);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((0.0..86_400.0).contains(&(now - figures["start_time_seconds"] + 1.0)));
    }

    #[test]
    fn processor_time_has_fractions_of_a_second() {
        // A tick is a hundredth of a second: after some work, the figure is not a whole number
        // of seconds.
        let is_fraction = |_| figures()["cpu_seconds_total"].fract() > 0.0;
        assert!((0..100_000).any(is_fraction));
    }
}
