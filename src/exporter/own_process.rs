//! The figures of the exporter's own process, under the names that Prometheus client libraries
//! use.
//!
//! The collector of the crate `prometheus` counts whole seconds of processor time, which hardly
//! change in a small exporter.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Opts};

/// Prefix of the figures' names.
const NAMESPACE: &str = "process";
/// The directory in which the kernel describes the process.
const PROC: &str = "/proc";
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

/// A figure of the process, and the function that reads it.
struct ProcessFigure {
    gauge: Gauge,
    read: ReadFigure,
}

/// Reads a figure below `/proc`.
type ReadFigure = fn(&Path) -> Option<f64>;

/// Collects the figures of this process. One that cannot be read is absent.
pub(super) struct OwnProcess {
    cpu_seconds: Option<Counter>,
    figures: Vec<ProcessFigure>,
}

impl OwnProcess {
    pub(super) fn new() -> Self {
        let rows: [(&str, ReadFigure); 6] = [
            ("resident_memory_bytes", |proc| kibibytes(proc, "VmRSS")),
            ("virtual_memory_bytes", |proc| kibibytes(proc, "VmSize")),
            ("open_fds", open_fds),
            ("max_fds", max_fds),
            ("start_time_seconds", start_time),
            ("threads", |proc| field(proc, "Threads")?.parse().ok()),
        ];
        let figure = |(name, read): (&str, _)| {
            Some(ProcessFigure { gauge: Gauge::with_opts(opts(name)).ok()?, read })
        };
        Self {
            cpu_seconds: Counter::with_opts(opts("cpu_seconds_total")).ok(),
            figures: rows.into_iter().filter_map(figure).collect(),
        }
    }
}

impl Collector for OwnProcess {
    fn desc(&self) -> Vec<&Desc> {
        let of_gauges = self.figures.iter().flat_map(|figure| figure.gauge.desc());
        self.cpu_seconds.iter().flat_map(Collector::desc).chain(of_gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let proc = Path::new(PROC);
        let mut families = Vec::new();
        if let Some((counter, seconds)) = self.cpu_seconds.as_ref().zip(cpu_seconds(proc)) {
            counter.reset();
            counter.inc_by(seconds);
            families.extend(counter.collect());
        }
        for ProcessFigure { gauge, read } in &self.figures {
            if let Some(value) = read(proc) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}

/// Returns the name of a figure; its help is in the table of metrics.
fn opts(name: &str) -> Opts {
    Opts::new(name, name).namespace(NAMESPACE)
}

/// Returns the processor time that all threads of the process have taken, to a tick.
fn cpu_seconds(proc: &Path) -> Option<f64> {
    Some((stat(proc, UTIME_IDX)? + stat(proc, STIME_IDX)?) / ticks_per_second(proc))
}

/// Returns the start of the process, as a Unix time.
fn start_time(proc: &Path) -> Option<f64> {
    let boot = fs::read_to_string(proc.join("stat")).ok()?;
    let boot: f64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat(proc, START_IDX)? / ticks_per_second(proc))
}

/// Returns a field of `stat`. The program's name stands in parentheses, and may itself have
/// blanks and parentheses.
fn stat(proc: &Path, idx: usize) -> Option<f64> {
    let stat = fs::read_to_string(proc.join("self/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(idx)?.parse().ok()
}

/// Returns the number of the kernel's ticks in a second, from the process's auxiliary vector.
fn ticks_per_second(proc: &Path) -> f64 {
    ticks_of_auxv(proc).unwrap_or(USUAL_TICKS)
}

fn ticks_of_auxv(proc: &Path) -> Option<f64> {
    let auxv = fs::read(proc.join("self/auxv")).ok()?;
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

/// Returns a field of `status` that is in KiB, in bytes.
fn kibibytes(proc: &Path, name: &str) -> Option<f64> {
    let count: f64 = counted(&field(proc, name)?)?;
    Some(1024.0 * count)
}

/// Returns the size of this process's address space, in bytes.
pub(super) fn mapped_bytes() -> Option<u64> {
    let count: u64 = counted(&field(Path::new(PROC), "VmSize")?)?;
    count.checked_mul(1024)
}

/// Returns the number of KiB that a line of `status` has.
fn counted<T: FromStr>(value: &str) -> Option<T> {
    value.strip_suffix("kB")?.trim().parse().ok()
}

/// Returns the value of a line of `status`.
fn field(proc: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(proc.join("self/status")).ok()?;
    status.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim().to_owned())
    })
}

/// Returns the number of open files, without the directory that is read for it.
fn open_fds(proc: &Path) -> Option<f64> {
    let n_listed = fs::read_dir(proc.join("self/fd")).ok()?.count();
    u32::try_from(n_listed.saturating_sub(1)).ok().map(f64::from)
}

/// Returns the maximum number of open files; `None` where there is no limit.
fn max_fds(proc: &Path) -> Option<f64> {
    let limits = fs::read_to_string(proc.join("self/limits")).ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_whitespace().next()?.parse().ok()
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
