//! What a column is, by its name.

use crate::series::model::Wanted;
use crate::series::words::words;

/// The part that a column plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Time,
    /// A label, which tells series apart.
    Label,
    Value,
    /// A value if no column has the name of memory.
    LoneValue,
    Capacity,
    Other,
}

/// Names of times, in small letters.
const TIMES: [&str; 14] = [
    "timestamp",
    "_timestamp",
    "@timestamp",
    "time",
    "ts",
    "date",
    "datetime",
    "wall time",
    "wall_time",
    "walltime",
    "unix_time",
    "time_unix",
    "asctime",
    "t",
];
/// Names of what tells series apart, in small letters.
const LABELS: [&str; 24] = [
    "index",
    "uuid",
    "gpu_uuid",
    "gpu_index",
    "gpu_id",
    "gpu",
    "gpu_bus_id",
    "pci.bus_id",
    "device",
    "device_id",
    "rank",
    "local_rank",
    "pod",
    "pod_name",
    "container",
    "container_name",
    "namespace",
    "node",
    "host",
    "hostname",
    "instance",
    "pid",
    "run",
    "run_id",
];
/// Words of memory.
const MEMORY: [&str; 6] = ["mem", "memory", "vram", "rss", "fb", "hbm"];
/// Words of a whole.
const WHOLE: [&str; 4] = ["total", "limit", "capacity", "size"];
/// Words of what is in use.
const USED: [&str; 7] = ["used", "usage", "use", "allocated", "reserved", "rss", "working"];
/// Words of what is no amount of memory in use.
const OTHER: [&str; 26] = [
    "util",
    "utilization",
    "percent",
    "pct",
    "ratio",
    "free",
    "available",
    "avail",
    "clock",
    "clocks",
    "temp",
    "temperature",
    "bandwidth",
    "bw",
    "rate",
    "count",
    "num",
    "power",
    "freq",
    "frequency",
    "errors",
    "throughput",
    "speed",
    "mhz",
    "copy",
    "alloc_retries",
];

impl Role {
    /// Returns the role of a column; names that are wanted take precedence.
    pub(super) fn of(name: &str, wanted: &Wanted) -> Self {
        let is = |of: &String| of == name;
        if wanted.time.as_ref().is_some_and(is) {
            return Self::Time;
        }
        if wanted.columns.iter().any(is) {
            return Self::Value;
        }
        if wanted.by.iter().any(is) {
            return Self::Label;
        }
        let small = name.to_ascii_lowercase();
        let (base, _) = small.split_once(['[', '(']).unwrap_or((&small, ""));
        let base = base.trim();
        if wanted.time.is_none() && TIMES.contains(&base) {
            return Self::Time;
        }
        if wanted.by.is_empty() && LABELS.contains(&base) {
            return Self::Label;
        }
        match Self::of_memory(name, base) {
            Self::Value | Self::LoneValue if !wanted.columns.is_empty() => Self::Other,
            role => role,
        }
    }

    fn of_memory(name: &str, base: &str) -> Self {
        if ["value", "v", "bytes"].contains(&base) {
            return Self::LoneValue;
        }
        // What the driver keeps for itself.
        if name.contains('%') || base == "memory.reserved" {
            return Self::Other;
        }
        let words = words(name);
        let has = |of: &[&str]| words.iter().any(|word| of.contains(&word.as_str()));
        let is_memory =
            has(&MEMORY) || (has(&["bytes", "gb", "gib", "mb", "mib"]) && has(&USED));
        if !is_memory || has(&OTHER) {
            return Self::Other;
        }
        if has(&WHOLE) && !has(&USED) { Self::Capacity } else { Self::Value }
    }
}

#[cfg(test)]
mod tests {
    use super::Role;
    use crate::series::model::Wanted;

    #[test]
    fn roles_are_known_by_names() {
        for (name, expected) in [
            ("timestamp", Role::Time),
            ("Wall time", Role::Time),
            ("index", Role::Label),
            ("uuid", Role::Label),
            ("memory.used [MiB]", Role::Value),
            ("used_gpu_memory [MiB]", Role::Value),
            ("memory.total [MiB]", Role::Capacity),
            ("memory.free [MiB]", Role::Other),
            ("memory.reserved [MiB]", Role::Other),
            ("utilization.memory [%]", Role::Other),
            ("clocks.current.memory [MHz]", Role::Other),
            ("temperature.memory", Role::Other),
            ("system.gpu.0.memoryAllocatedBytes", Role::Value),
            ("rss_mb", Role::Value),
            ("reserved_bytes", Role::Value),
            ("gpu_mem_limit", Role::Capacity),
            ("Value", Role::LoneValue),
            ("loss", Role::Other),
        ] {
            assert_eq!(Role::of(name, &Wanted::default()), expected, "{name}");
        }
    }

    #[test]
    fn wanted_names_take_precedence() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let wanted = Wanted {
            columns: names(&["loss"]),
            by: names(&["job"]),
            time: Some("when".to_owned()),
            ..Wanted::default()
        };
        for (name, expected) in [
            ("loss", Role::Value),
            ("job", Role::Label),
            ("when", Role::Time),
            ("timestamp", Role::Other),
            ("index", Role::Other),
            ("memory.used [MiB]", Role::Other),
            ("memory.total [MiB]", Role::Capacity),
        ] {
            assert_eq!(Role::of(name, &wanted), expected, "{name}");
        }
    }
}
