//! The table of settings: each row has a key, value, default, help, and the field that it sets.

use std::time::Duration;

use crate::config::error::ValueError;
use crate::config::keys;
use crate::config::settings::{Draft, StartMode};
use crate::config::values::{
    absolute, addresses, any_duration, bytes, deadline, duration, endpoint, hosts, number,
    one_of, path, pod, ratio, size, socket, switch, telemetry_path, token_file, transport,
    web_file, workload,
};
use crate::input::push::bodies::BODY_BYTES_MAX;
use crate::output::otlp::config::Endpoint;
use stepmem_engine::EngineConfig;
use stepmem_types::ids::Run;

#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes, and the key in a file.
    pub key: &'static str,
    /// The placeholder of the value in help; empty for a switch.
    pub value_name: &'static str,
    /// True if it may be given several times (in the environment: separated by commas).
    pub is_repeatable: bool,
    /// The default in written form; empty for none.
    pub default: &'static str,
    pub help: &'static str,
    /// True if it protects a listener, which is closed where the setting cannot be read.
    pub(super) is_guard: bool,
    set: Setter,
    close: fn(&mut Draft),
}

type Setter = fn(&mut Draft, &[String]) -> Result<(), ValueError>;

impl Setting {
    pub fn variable(&self) -> String {
        variable_of(self.key)
    }

    /// Returns whether it takes no value.
    pub fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }

    /// Sets it to these values; to the first one unless it is repeatable.
    pub(super) fn set(&self, draft: &mut Draft, values: &[String]) -> Result<(), ValueError> {
        (self.set)(draft, values)
    }

    /// Closes the features that depend on it, for an exporter that runs although the setting is
    /// wrong.
    pub(super) fn close(&self, draft: &mut Draft) {
        (self.close)(draft);
    }

    /// Sets the function to call where the setting is wrong, instead of taking the default.
    const fn closing(mut self, close: fn(&mut Draft)) -> Self {
        self.close = close;
        self
    }

    const fn guarding(mut self, close: fn(&mut Draft)) -> Self {
        self.is_guard = true;
        self.closing(close)
    }

    const fn by_default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }
}

/// Returns the variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("STEPMEM_{}", key.to_ascii_uppercase().replace(['.', '-'], "_"))
}

/// The bounds of the byte budget of recordings.
const RECORD_BYTES_MIN: u64 = 1 << 20;
const RECORD_BYTES_MAX: u64 = 1 << 50;
/// Maximum number of steps of a warm-up.
const WARMUP_STEPS_MAX: u32 = 1_000_000;
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
const LOG_FORMATS: [&str; 2] = ["text", "json"];

/// Every setting, in the order of help.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    setting(keys::WEB_ADDRESS, "ADDRESS",
        "Address of the status page and /metrics. :PORT listens on all IPv4 interfaces.",
        |d, v| { d.settings.web_addresses = addresses(v)?; Ok(()) }).by_default("0.0.0.0:9477").repeatable()
        .closing(|d| d.settings.web_addresses.clear()),
    setting("web.telemetry-path", "PATH",
        "Path under which metrics are exposed.",
        |d, v| put(&mut d.settings.telemetry_path, v, telemetry_path)).by_default("/metrics"),
    setting("web.allowed-hosts", "NAME",
        "Host name by which browsers reach the page, such as that of an ingress. Addresses, names without a dot, and names \
         that end in .localhost, .local, .internal, .svc, .svc.cluster.local or .test need no setting; scrapes need none either.",
        |d, v| { d.settings.web_hosts = hosts(v)?; Ok(()) }).repeatable(),
    setting(keys::WEB_FILE, "PATH",
        "File with TLS, client certificates, users with passwords, headers and a rate for the page, /metrics and pushes over TCP, in \
         the format of the Prometheus exporter-toolkit. Read again when it, or a file that it names, changes. A Unix socket needs \
         none of it.",
        |d, v| put(&mut d.settings.web_file, v, web_file))
        .closing(|d| { d.settings.web_addresses.clear(); d.settings.push_addresses.clear(); }),
    setting(keys::WEB_ADMIN, "",
        "Give the page buttons: acknowledge, request a snapshot, end a run. A person enters the token of --admin.token-file once. Needs that \
         file, and TLS (--web.config.file) or a --web.listen-address on loopback only.",
        |d, v| put(&mut d.settings.push.has_page_buttons, v, switch)).by_default("false"),
    setting(keys::PUSH_ADDRESS, "ADDRESS",
        "TCP address of the push endpoint. Empty disables it.",
        |d, v| { d.settings.push_addresses = addresses(v)?; Ok(()) }).by_default("127.0.0.1:9478").repeatable()
        .closing(|d| d.settings.push_addresses.clear()),
    setting(keys::PUSH_SOCKET, "PATH[:MODE]",
        "Unix socket of the push endpoint, with its mode in octal (666 unless given).",
        |d, v| put(&mut d.settings.push_socket, v, socket)),
    setting(keys::PUSH_TOKEN_FILE, "PATH",
        "File with the token that clients must send as `Authorization: Bearer TOKEN`. Empty requires no token.",
        |d, v| put(&mut d.settings.push.token_file, v, token_file))
        .guarding(|d| { d.settings.push_addresses.clear(); d.settings.push_socket = None; }),
    setting("push.insecure", "",
        "Accept pushes from the network without a token; otherwise a --push.listen-address beyond loopback needs --push.token-file.",
        |d, v| put(&mut d.is_push_open, v, switch)).by_default("false"),
    setting(keys::ADMIN_TOKEN_FILE, "PATH",
        "File with the token of admins. Only admins may acknowledge findings, release devices, request snapshots and end ranks of \
         other processes. Over the Unix socket, the exporter's own user is an admin without the token. If empty, root and any \
         client over loopback are admins too, except in Kubernetes and with --sidecar or --kubelet.socket.",
        |d, v| put(&mut d.settings.push.admin_token_file, v, token_file))
        .guarding(|d| d.is_admin_closed = true),
    setting("push.body-max", "BYTES",
        "Maximum size of a push body after decompression, in bytes (1024 to 8388608).",
        |d, v| put(&mut d.settings.push.body_bytes_max, v, number(1024, BODY_BYTES_MAX))).by_default("1048576"),
    setting("rank.ttl", "DURATION",
        "Drop a rank from all outputs after this long without a push. Keep it well above your longest checkpoint.",
        |d, v| put(&mut d.settings.engine.rank_ttl, v, duration)).by_default("10m"),
    setting(keys::RANK_RETENTION, "DURATION",
        "Forget a rank after this long without a push. Until then it resumes its window when it pushes again.",
        |d, v| put(&mut d.settings.engine.rank_retention, v, duration)).by_default("6h"),
    setting("rank.max", "N",
        "Maximum number of ranks across all runs (1 to 65536). Each takes up to 368 KiB of memory. Empty means 64 with \
         --sidecar, otherwise 1024.",
        |d, v| put(&mut d.ranks_max, v, |v| if v.is_empty() { Ok(None) } else { number(1, 65_536_u64)(v).map(Some) })),
    setting("rank.peak-interval", "DURATION",
        "Interval of rank_interval_peak_allocated_bytes. Set it to the scrape interval or longer.",
        |d, v| put(&mut d.settings.engine.peak_interval, v, duration)).by_default("1m"),
    setting("run.max", "N",
        "Maximum number of runs (1 to 65536).",
        |d, v| put(&mut d.settings.engine.runs_max, v, number(1, 65_536_u64))).by_default("64"),
    setting("deadline", "TIME",
        "When every run of this exporter is ended from outside, such as by a job's time limit: a time as 2026-12-05T18:00:00+01:00, or a duration from \
         the exporter's start. Growth that memory clearly outlasts until then pages nobody. A client sends SLURM_JOB_END_TIME by itself.",
        |d, v| put(&mut d.settings.push.deadline, v, deadline)),
    setting("creep.warmup-steps", "[RUN=]N",
        "First steps of a rank's process that creep detection ignores (0 to 1000000), for all runs or for one.",
        |d, v| warmups(&mut d.settings.engine, v)).by_default("23").repeatable(),
    setting("creep.process-warmup", "DURATION",
        "Creep detection ignores an unmanaged process (one that nobody pushes for) for this long, since it may be loading its model, \
         or until its memory has been level for a tenth of this time.",
        |d, v| put(&mut d.settings.engine.creep.process_warmup_seconds, v, |v| Ok(any_duration(v)?.as_secs_f64()))).by_default("10m"),
    setting("creep.process-interval", "DURATION",
        "Sample an unmanaged process at most this often. Its windows hold 32 to 60000000 samples.",
        |d, v| put(&mut d.settings.engine.process_reading_every, v, duration)).by_default("10s"),
    setting("creep.capacity", "SIZE",
        "A memory budget, such as 2GiB or 512MB: growth and time to out-of-memory are judged against it where it is less than the capacity \
         of the device or machine.",
        |d, v| put(&mut d.settings.engine.creep.budget, v, size)),
    setting("creep.critical-eta", "DURATION",
        "MEMORY CREEP is critical when out-of-memory is expected within this time.",
        |d, v| put(&mut d.settings.engine.thresholds.creep_critical_eta_seconds, v, |v| Ok(duration(v)?.as_secs_f64()))).by_default("6h"),
    setting(keys::PRESSURE_WARNING, "RATIO",
        "HIGH PRESSURE is a warning from this ratio of peak memory to capacity (0 to 10).",
        |d, v| put(&mut d.settings.engine.thresholds.pressure_warning, v, ratio)).by_default("0.92"),
    setting("pressure.critical", "RATIO",
        "HIGH PRESSURE is critical from this ratio of peak memory to capacity (0 to 10).",
        |d, v| put(&mut d.settings.engine.thresholds.pressure_critical, v, ratio)).by_default("0.97"),
    setting(keys::IMBALANCE_WARNING, "RATIO",
        "IMBALANCE is a warning from this skew between ranks (0 to 10).",
        |d, v| put(&mut d.settings.engine.thresholds.imbalance_warning, v, ratio)).by_default("0.2"),
    setting("imbalance.critical", "RATIO",
        "IMBALANCE is critical from this skew between ranks (0 to 10).",
        |d, v| put(&mut d.settings.engine.thresholds.imbalance_critical, v, ratio)).by_default("0.3"),
    setting("no-nvml", "",
        "Disable NVML, so that pushes are the only input.",
        |d, v| put(&mut d.is_without_nvml, v, switch)).by_default("false").closing(|d| d.is_without_nvml = true),
    setting(keys::NVML_LIBRARY, "PATH",
        "Path of the NVML library. Empty loads the system's libnvidia-ml.so.1.",
        |d, v| put(&mut d.nvml.library, v, |v| Ok(path(v)))),
    setting("nvml.interval", "DURATION",
        "Interval between NVML polls.",
        |d, v| put(&mut d.nvml.interval, v, duration)).by_default("5s"),
    setting("nvml.timeout", "DURATION",
        "Report devices as unavailable when an NVML poll takes longer than this.",
        |d, v| put(&mut d.nvml.timeout, v, duration)).by_default("5s"),
    setting("nvml.devices", "DEVICES",
        "Devices to open: all, visible (by CUDA_VISIBLE_DEVICES, else NVIDIA_VISIBLE_DEVICES), pushed (only those that \
         ranks push from), or a comma-separated list of UUIDs. Empty means pushed in a pod without --kubelet.socket or \
         with --kubelet.pod, otherwise all.",
        |d, v| { d.devices = d.device_environment.parse(v)?; Ok(()) }).repeatable().closing(|d| d.is_without_nvml = true),
    setting("nvml.open-given-after", "DURATION",
        "If no rank of the pod has pushed from a device for this long, open the devices that the pod was given: by \
         UUIDs in NVIDIA_VISIBLE_DEVICES, by a claim, or by the kubelet (--kubelet.pod). Only where --nvml.devices is empty.",
        |d, v| put(&mut d.nvml.open_given_after, v, any_duration)).by_default("1m"),
    setting("nvml.no-process-names", "",
        "Leave out the names (comm) of processes on devices.",
        |d, v| put(&mut d.nvml.hides_names, v, switch)).by_default("false"),
    setting(keys::KUBELET_SOCKET, "PATH",
        "Pod-resources socket of the kubelet, which reports the containers that each device is assigned to. For an \
         exporter that monitors a whole node, or with --kubelet.pod for a sidecar. Empty disables it.",
        |d, v| put(&mut d.nvml.kubelet_socket, v, absolute)),
    setting("kubelet.pod", "NAMESPACE/NAME",
        "The pod of a sidecar to which --kubelet.socket is mounted: only the devices that the kubelet lists for this pod are \
         reported, and opened as --nvml.open-given-after describes. Empty means that the exporter monitors the whole node.",
        |d, v| put(&mut d.nvml.kubelet_pod, v, pod)),
    setting("kubelet.cgroups", "PATH",
        "Where the node's control groups are mounted, read-only (/sys/fs/cgroup, with version 1 /sys/fs/cgroup/memory). For an exporter that monitors \
         a whole node: it shows the memory limit, use and kills of pods whose processes use a device. Empty disables it.",
        |d, v| put(&mut d.nvml.kubelet_cgroups, v, absolute)),
    setting("nvml.processes.max", "N",
        "Maximum number of processes per device with series of their own (0 to 4096). The rest are summed up.",
        |d, v| put(&mut d.settings.engine.processes_max, v, number(0, 4096_u64))).by_default("64"),
    setting("snapshot.on-creep", "",
        "Request a PyTorch memory snapshot from a rank when MEMORY RISING or MEMORY CREEP is raised for it. The training \
         process writes it below its own STEPMEM_SNAPSHOT_DIRECTORY.",
        |d, v| put(&mut d.settings.snapshots.on_creep, v, switch)).by_default("false"),
    setting(keys::SNAPSHOT_READ_DIRECTORY, "PATH",
        "Directory below which training processes write snapshots, as the exporter sees it, such as the same volume mounted \
         read-only. A separate process with limits on memory and time analyzes them, one at a time. Empty reads none.",
        |d, v| put(&mut d.settings.snapshots.read_directory, v, absolute)),
    setting(keys::SNAPSHOT_TIMELINE_DIRECTORY, "PATH",
        "The exporter's own directory for timelines of the snapshots that it analyzes: the newest 16, of at most 5 MB each, served at \
         /snapshots/ID, to which the page links. Training processes must not write there. Empty draws none.",
        |d, v| put(&mut d.settings.snapshots.timeline_directory, v, absolute)),
    setting("snapshot.steps", "N",
        "Minimum number of steps for which a rank records allocations (6 to 1000). Where memory grows in regular level shifts, it \
         records three of their periods.",
        |d, v| put(&mut d.settings.snapshots.schedule.steps, v, number(6, 1000_u64))).by_default("20"),
    setting("snapshot.run-max", "N",
        "Maximum number of creeps of a run for which snapshots are requested (1 to 64), each from at most two ranks.",
        |d, v| put(&mut d.settings.snapshots.schedule.run_max, v, number(1, 64_u64))).by_default("3"),
    setting("snapshot.cooldown", "DURATION",
        "Minimum time between snapshot requests for two creeps of one run.",
        |d, v| put(&mut d.settings.snapshots.schedule.cooldown, v, any_duration)).by_default("1h"),
    setting(keys::HOLDERS_ON_CREEP, "",
        "Request a heap scan from a rank with MEMORY RISING or MEMORY CREEP: which of its live objects hold the tensors? Needs neither \
         a GPU nor a directory.",
        |d, v| put(&mut d.settings.engine.heap_scans_on_creep, v, switch)).by_default("false"),
    setting(keys::CHECKPOINT_BEFORE, "DURATION",
        "Ask the ranks of a run to checkpoint when one of them may be out of memory within this time, at most once in it: only those whose program \
         said that it would. 0s asks none.",
        |d, v| put(&mut d.settings.engine.checkpoint_before, v, any_duration)).by_default("10m"),
    setting(keys::OTLP_ENDPOINT, "URL",
        "URL of an OTLP receiver; over HTTP, v1/metrics is appended. Empty uses OTEL_EXPORTER_OTLP_METRICS_ENDPOINT (as it \
         is) or OTEL_EXPORTER_OTLP_ENDPOINT (v1/metrics is appended); if neither is set, OTLP export is off.",
        |d, v| override_with(&mut d.otlp.endpoint, v, |v| Ok(endpoint(v)?.map(|url| Some(Endpoint::AllSignals(url))))))
        .closing(|d| d.otlp.endpoint = None),
    setting("otlp.protocol", "PROTOCOL",
        "http/protobuf or grpc. Empty uses OTEL_EXPORTER_OTLP_METRICS_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL, else \
         http/protobuf.",
        |d, v| override_with(&mut d.otlp.transport, v, transport)),
    setting("otlp.interval", "DURATION",
        "Interval between OTLP exports. Empty uses OTEL_METRIC_EXPORT_INTERVAL (in milliseconds), else 1m.",
        |d, v| override_with(&mut d.otlp.interval, v, interval)),
    setting("otlp.semconv", "",
        "Also export the metrics of OpenTelemetry's hardware conventions (hw.gpu.memory.*).",
        |d, v| put(&mut d.otlp.semconv, v, switch)).by_default("false"),
    setting(keys::STATE_FILE, "PATH",
        "File that keeps the windows of all ranks across restarts of the exporter: up to 368 KiB per rank, written every \
         10 s and on shutdown. A second exporter with the same file keeps no state until the first ends (PATH.lock next to it says so). Empty disables it.",
        |d, v| put(&mut d.settings.state_file, v, |v| Ok(path(v)))),
    setting(keys::SUMMARY_DIR, "PATH",
        "Directory for summaries, written when a run ends and on shutdown: RUN/TIME/final_summary.json and .txt, where TIME \
         (UTC) is the start of the launch, and a link RUN/latest. Empty disables it.",
        |d, v| put(&mut d.settings.summary_dir, v, |v| Ok(path(v)))),
    setting("summary.launches-max", "N",
        "Maximum number of launches of a run that keep their summaries (1 to 65536). Beyond that, the oldest ended launch is removed.",
        |d, v| put(&mut d.settings.summary_launches_max, v, number(1, 65_536_u64))).by_default("32"),
    setting("workload", "NAME",
        "Name of the training workload (model, batch, sequence length), for summaries: compare treats only runs of the same \
         workload as comparable.",
        |d, v| put(&mut d.settings.engine.workload, v, workload)),
    setting(keys::RECORD_DIRECTORY, "PATH",
        "Directory for recordings of what the exporter accepts, one file per run and session of the exporter. replay, explain and \
         summary read them. Empty disables it.",
        |d, v| put(&mut d.settings.record.directory, v, |v| Ok(path(v)))),
    setting("record.max-bytes", "SIZE",
        "Maximum size of all recordings together, such as 256MiB (1 MiB to 1 PiB). Beyond that, the oldest files are removed.",
        |d, v| put(&mut d.settings.record.bytes_max, v, bytes(RECORD_BYTES_MIN, RECORD_BYTES_MAX))).by_default("256MiB"),
    setting("stop.linger", "DURATION",
        "Keep serving the page and /metrics for this long after SIGTERM, for a last scrape.",
        |d, v| put(&mut d.settings.linger, v, any_duration)).by_default("0s"),
    setting(keys::SIDECAR, "",
        "Run next to training, which must start in any case: instead of exiting, run without what is wrong or taken at the start (a \
         setting, a file, a port, a socket), and report it in the log and as a metric. A listener whose token, certificate or \
         users cannot be read stays closed; if the page's port is taken, the page gets a free one.",
        |d, v| { if switch(only(v))? { d.settings.start = StartMode::Sidecar; } Ok(()) }).by_default("false"),
    setting("termination-message-path", "PATH",
        "File for the verdict of the runs, at most 4 KiB, written when a run ends and on shutdown: the container's \
         terminationMessagePath. Empty means /dev/termination-log with --sidecar, otherwise none.",
        |d, v| put(&mut d.settings.termination_message, v, absolute)),
    setting(keys::LOG_LEVEL, "LEVEL",
        "off, error, warn, info, debug or trace.",
        |d, v| put(&mut d.settings.log.level, v, one_of(&LOG_LEVELS))).by_default("info"),
    setting("log.format", "FORMAT",
        "text or json.",
        |d, v| put(&mut d.settings.log.is_json, v, |v| Ok(one_of(&LOG_FORMATS)(v)? == "json"))).by_default("text"),
];

/// A setting without a default that takes one value.
const fn setting(
    key: &'static str,
    value_name: &'static str,
    help: &'static str,
    set: Setter,
) -> Setting {
    Setting {
        key,
        value_name,
        is_repeatable: false,
        default: "",
        help,
        is_guard: false,
        set,
        close: |_| (),
    }
}

/// Replaces `place` by the only value.
fn put<T>(
    place: &mut T,
    values: &[String],
    parse: impl FnOnce(&str) -> Result<T, ValueError>,
) -> Result<(), ValueError> {
    *place = parse(only(values))?;
    Ok(())
}

/// Replaces `place` by the only value, unless that is empty.
fn override_with<T>(
    place: &mut T,
    values: &[String],
    parse: impl FnOnce(&str) -> Result<Option<T>, ValueError>,
) -> Result<(), ValueError> {
    if let Some(value) = parse(only(values))? {
        *place = value;
    }
    Ok(())
}

fn only(values: &[String]) -> &str {
    values.first().map_or("", String::as_str)
}

/// Sets the warm-up of all runs, or of the run that is named before the last `=`.
fn warmups(engine: &mut EngineConfig, values: &[String]) -> Result<(), ValueError> {
    for value in values {
        let (run, steps) = match value.rsplit_once('=') {
            Some((run, steps)) => (Some(run), steps),
            None => (None, value.as_str()),
        };
        let steps = number(0, WARMUP_STEPS_MAX)(steps)?;
        let Some(run) = run else {
            engine.creep.warmup_samples = steps;
            continue;
        };
        let run =
            Run::new(run).map_err(|reason| ValueError::Run { value: value.clone(), reason })?;
        engine.warmup_pushes.insert(run, steps);
    }
    Ok(())
}

fn interval(value: &str) -> Result<Option<Duration>, ValueError> {
    if value.is_empty() { Ok(None) } else { duration(value).map(Some) }
}
