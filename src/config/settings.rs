//! The settings: one row each with flag, environment variable, file key, default, unit and help, and how they become
//! the rooms' own configurations. The only file that reads the environment.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::analysis::captures::CaptureSettings;
use crate::analysis::config::EngineConfig;
use crate::input::nvml::config::{DeviceName, Devices};
use crate::input::push::http::{BODIES_BYTES_MAX, PushConfig};
use crate::model::ids::{GpuUuid, Run};
use crate::output::otlp::{OtlpConfig, Transport};

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes, and the key in a file.
    pub key: &'static str,
    /// What stands for the value in help; empty for a switch.
    pub value_name: &'static str,
    /// Whether it may be given several times (in the environment: separated by commas).
    pub is_repeatable: bool,
    /// What it is without being given, as it would be written; empty for nothing.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
    set: fn(&mut Settings, &[String]) -> Result<(), String>,
}

impl Setting {
    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("STEPMEM_{}", self.key.to_ascii_uppercase().replace(['.', '-'], "_"))
    }

    /// Whether it takes no value.
    pub fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }
}

/// What `serve` does, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the page and the metrics are served.
    pub web_addresses: Vec<SocketAddr>,
    /// The path of the metrics.
    pub telemetry_path: String,
    /// Where pushes are taken over TCP.
    pub push_addresses: Vec<SocketAddr>,
    /// Where pushes are taken over a Unix socket, with the socket's mode.
    pub push_socket: Option<(PathBuf, u32)>,
    /// How pushes are taken.
    pub push: PushConfig,
    /// What the engine may hold and how it judges.
    pub engine: EngineConfig,
    /// When ranks are asked for memory snapshots.
    pub snapshots: CaptureSettings,
    /// Where the table is pushed to; `None` without an endpoint.
    pub otlp: Option<OtlpConfig>,
    /// How NVML is asked; `None` when it is not.
    pub nvml: Option<NvmlSettings>,
    /// Where the windows of all ranks outlast a restart.
    pub state_file: Option<PathBuf>,
    /// Where summaries of runs are written.
    pub summary_dir: Option<PathBuf>,
    /// What is logged, and how.
    pub log: LogSettings,
    /// How long the web server answers after the rest has stopped.
    pub linger: Duration,
    /// Which devices are opened; `None` where nothing is said.
    devices: Option<Devices>,
    seen: Seen,
}

/// What the environment says of devices.
#[derive(Clone, Debug)]
struct Seen {
    is_in_pod: bool,
    /// The devices that the process sees, or what is wrong with the variable that says so.
    visible: Result<Devices, String>,
}

/// How NVML is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlSettings {
    /// The library; `None` for the system's.
    pub library: Option<PathBuf>,
    /// The time between two rounds.
    pub interval: Duration,
    /// How long a round may take before its devices count as unknown.
    pub timeout: Duration,
    /// Which devices are opened.
    pub devices: Devices,
    /// The kubelet's pod-resources socket; `None` where it is not asked.
    pub kubelet_socket: Option<PathBuf>,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The least level, or directives as `tracing` writes them.
    pub level: String,
    /// Whether lines are JSON.
    pub is_json: bool,
}

/// Everything that is wrong with the settings, one mistake a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .mistakes.join("\n"))]
pub struct ConfigError {
    /// The mistakes, each naming the setting, the value and what it should be.
    pub mistakes: Vec<String>,
}

/// Where values come from: what was given as flags, by key, and a file.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Values given as flags.
    pub flags: BTreeMap<&'static str, Vec<String>>,
    /// The file, if one was named.
    pub file: Option<PathBuf>,
}

/// The variable by which a process knows that it runs in a pod.
const IN_POD_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";

/// The variables that say which devices a process sees, the stronger first.
const VISIBLE_VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// The variable that names the file when no flag does.
pub const FILE_VARIABLE: &str = "STEPMEM_CONFIG_FILE";

/// OpenTelemetry's own variable for the time between two exports, in milliseconds.
const OTLP_INTERVAL_VARIABLE: &str = "OTEL_METRIC_EXPORT_INTERVAL";

/// The longest warm-up, in steps.
const WARMUP_STEPS_MAX: u32 = 1_000_000;

/// Every setting, in the order of help.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    one("web.listen-address", "ADDRESS", "Where the page and /metrics are served; :PORT means every address.",
        |s, v| { s.web_addresses = addresses(v)?; Ok(()) }).by_default("0.0.0.0:9477").repeatable(),
    one("web.telemetry-path", "PATH", "The path of the metrics.", |s, v| {
        s.telemetry_path = telemetry_path(only(v))?; Ok(()) }).by_default("/metrics"),
    one("push.listen-address", "ADDRESS", "Where pushes are taken over TCP; empty for nowhere.",
        |s, v| { s.push_addresses = addresses(v)?; Ok(()) }).by_default("127.0.0.1:9478").repeatable(),
    one("push.unix-socket", "PATH[:MODE]", "Where pushes are taken over a Unix socket; its mode is 666 unless given in octal.",
        |s, v| { s.push_socket = socket(only(v))?; Ok(()) }),
    one("push.token-file", "PATH", "A file with the token that pushers must show as `Authorization: Bearer TOKEN`.",
        |s, v| { s.push.token = token(only(v))?; Ok(()) }),
    one("push.body-max", "BYTES", "The greatest push body, decoded, in bytes (1024 to 8388608).",
        |s, v| { s.push.body_bytes_max = number(only(v), 1024, BODIES_BYTES_MAX)?; Ok(()) }).by_default("1048576"),
    one("rank.ttl", "DURATION", "A rank silent for longer leaves every output; keep it far above a checkpoint's pause.",
        |s, v| { s.engine.rank_ttl = duration(only(v))?; Ok(()) }).by_default("10m"),
    one("rank.retention", "DURATION", "A rank silent for longer is forgotten; until then it may come back to its window.",
        |s, v| { s.engine.rank_retention = duration(only(v))?; Ok(()) }).by_default("6h"),
    one("rank.max", "N", "How many ranks are held, over all runs (1 to 65536); each takes up to 70 KiB.",
        |s, v| { s.engine.ranks_max = number(only(v), 1, 65_536)?; Ok(()) }).by_default("1024"),
    one("rank.peak-interval", "DURATION", "The interval of rank_interval_peak_allocated_bytes; at least the scrape interval.",
        |s, v| { s.engine.peak_interval = duration(only(v))?; Ok(()) }).by_default("1m"),
    one("run.max", "N", "How many runs are held (1 to 65536).",
        |s, v| { s.engine.runs_max = number(only(v), 1, 65_536)?; Ok(()) }).by_default("64"),
    one("creep.warmup-steps", "[RUN=]N", "How many steps at the start of a rank's life creep detection does not look at (0 to 1000000), of every run or of one.",
        warmups).by_default("96").repeatable(),
    one("creep.process-warmup", "DURATION", "How long a process that does not push is not looked at: it loads its model and fills its cache.",
        |s, v| { s.engine.creep.process_warmup_seconds = any_duration(only(v))?.as_secs_f64(); Ok(()) }).by_default("10m"),
    one("creep.process-interval", "DURATION", "Creep detection takes a reading of a process that does not push at most this often; its windows hold 32 to 60000000 of them.",
        |s, v| { s.engine.process_reading_every = duration(only(v))?; Ok(()) }).by_default("10s"),
    one("creep.critical-eta", "DURATION", "MEMORY CREEP is critical when out-of-memory is nearer than this.",
        |s, v| { s.engine.thresholds.creep_critical_eta_seconds = duration(only(v))?.as_secs_f64(); Ok(()) }).by_default("6h"),
    one("pressure.warning", "RATIO", "Peak by capacity from which HIGH PRESSURE is a warning (0 to 10).",
        |s, v| { s.engine.thresholds.pressure_warning = ratio(only(v))?; Ok(()) }).by_default("0.92"),
    one("pressure.critical", "RATIO", "Peak by capacity from which HIGH PRESSURE is critical (0 to 10).",
        |s, v| { s.engine.thresholds.pressure_critical = ratio(only(v))?; Ok(()) }).by_default("0.97"),
    one("imbalance.warning", "RATIO", "Skew from which IMBALANCE is a warning (0 to 10).",
        |s, v| { s.engine.thresholds.imbalance_warning = ratio(only(v))?; Ok(()) }).by_default("0.2"),
    one("imbalance.critical", "RATIO", "Skew from which IMBALANCE is critical (0 to 10).",
        |s, v| { s.engine.thresholds.imbalance_critical = ratio(only(v))?; Ok(()) }).by_default("0.3"),
    one("no-nvml", "", "Do not ask NVML; pushes are all there is.",
        |s, v| { if switch(only(v))? { s.nvml = None; } Ok(()) }).by_default("false"),
    one("nvml.library", "PATH", "The NVML library; empty for the system's libnvidia-ml.so.1.",
        |s, v| { let path = path(only(v)); nvml(s, |nvml| nvml.library = path); Ok(()) }),
    one("nvml.interval", "DURATION", "The time between two rounds of NVML.",
        |s, v| { let interval = duration(only(v))?; nvml(s, |nvml| nvml.interval = interval); Ok(()) }).by_default("5s"),
    one("nvml.timeout", "DURATION", "How long a round of NVML may take before its devices count as unknown.",
        |s, v| { let timeout = duration(only(v))?; nvml(s, |nvml| nvml.timeout = timeout); Ok(()) }).by_default("5s"),
    one("nvml.devices", "DEVICES",
        "Which devices are opened: all, visible (by CUDA_VISIBLE_DEVICES, else NVIDIA_VISIBLE_DEVICES), pushed (only those that ranks push from), \
         or UUIDs separated by commas; empty for pushed in a pod without --kubelet.socket, else all.",
        |s, v| { s.devices = devices(v, &s.seen)?; Ok(()) }).repeatable(),
    one("kubelet.socket", "PATH",
        "The kubelet's pod-resources socket, for an exporter that watches a whole node: it tells which containers have which devices; empty for nowhere.",
        |s, v| { let socket = absolute(only(v))?; nvml(s, |nvml| nvml.kubelet_socket = socket); Ok(()) }),
    one("nvml.processes.max", "N", "How many processes a device are told apart (0 to 4096); the rest is summed up.",
        |s, v| { s.engine.processes_max = number(only(v), 0, 4096)?; Ok(()) }).by_default("64"),
    one("snapshot.on-creep", "", "Ask a rank for a PyTorch memory snapshot when MEMORY CREEP is raised for it; needs --snapshot.directory.",
        |s, v| { s.snapshots.on_creep = switch(only(v))?; Ok(()) }).by_default("false"),
    one("snapshot.directory", "PATH", "Where training processes write these snapshots, as they see it: a volume that outlasts the pod.",
        |s, v| { s.snapshots.directory = directory(only(v))?; Ok(()) }),
    one("snapshot.steps", "N", "For how many steps a rank records its allocations before it writes (1 to 1000).",
        |s, v| { s.snapshots.steps = number(only(v), 1, 1000)?; Ok(()) }).by_default("3"),
    one("snapshot.run-max", "N", "How many snapshots a run is asked for at most (1 to 64).",
        |s, v| { s.snapshots.run_max = number(only(v), 1, 64)?; Ok(()) }).by_default("3"),
    one("snapshot.cooldown", "DURATION", "The time between two snapshots that a run is asked for.",
        |s, v| { s.snapshots.cooldown = any_duration(only(v))?; Ok(()) }).by_default("1h"),
    one("otlp.endpoint", "URL", "The OTLP collector; empty for none, unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT names one.",
        |s, v| { let endpoint = endpoint(only(v))?; otlp(s, |otlp| name_collector(otlp, endpoint)); Ok(()) }),
    one("otlp.protocol", "PROTOCOL", "http/protobuf or grpc; empty for what OTEL_EXPORTER_OTLP_METRICS_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL says, else http/protobuf.",
        |s, v| { let transport = transport(only(v))?; otlp(s, |otlp| otlp.transport = transport.unwrap_or(otlp.transport)); Ok(()) }),
    one("otlp.interval", "DURATION", "The time between two OTLP exports; empty for OTEL_METRIC_EXPORT_INTERVAL (milliseconds), else 1m.",
        |s, v| { if !only(v).is_empty() { let interval = duration(only(v))?; otlp(s, |otlp| otlp.interval = interval); } Ok(()) }),
    one("otlp.semconv", "", "Add the names of the OpenTelemetry hardware conventions (hw.gpu.memory.*).",
        |s, v| { let semconv = switch(only(v))?; otlp(s, |otlp| otlp.semconv = semconv); Ok(()) }).by_default("false"),
    one("state.file", "PATH",
        "Where the windows of all ranks outlast a restart of the exporter: at most 70 KiB a rank, written every 10 s and at the stop; empty for nowhere.",
        |s, v| { s.state_file = path(only(v)); Ok(()) }),
    one("summary.dir", "PATH",
        "Where final_summary.json and .txt of each run are written, in a directory of its name, when it ends and at the stop; empty for nowhere.",
        |s, v| { s.summary_dir = path(only(v)); Ok(()) }),
    one("stop.linger", "DURATION", "How long the page and /metrics answer after a SIGTERM, for a last scrape.",
        |s, v| { s.linger = any_duration(only(v))?; Ok(()) }).by_default("0s"),
    one("log.level", "LEVEL", "error, warn, info, debug or trace.", |s, v| {
        s.log.level = one_of(only(v), &["error", "warn", "info", "debug", "trace"])?; Ok(()) }).by_default("info"),
    one("log.format", "FORMAT", "text or json.", |s, v| {
        s.log.is_json = one_of(only(v), &["text", "json"])? == "json"; Ok(()) }).by_default("text"),
];

impl Settings {
    /// Reads every setting from the strongest source that has it: flags, the environment, the file, the default.
    ///
    /// # Errors
    /// Every mistake in any of them.
    pub fn read(sources: &Sources) -> Result<Self, ConfigError> {
        Self::read_with(sources, &|name| {
            #[expect(clippy::disallowed_methods, reason = "this is config.rs")]
            std::env::var(name).ok()
        })
    }

    fn read_with(
        sources: &Sources,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut mistakes = Vec::new();
        let file =
            sources.file.clone().or_else(|| environment(FILE_VARIABLE).map(PathBuf::from));
        let in_file = match file.as_deref().map_or_else(|| Ok(BTreeMap::new()), read_file) {
            Ok(values) => values,
            Err(mistake) => {
                mistakes.push(mistake);
                BTreeMap::new()
            }
        };
        for key in in_file.keys() {
            if !SETTINGS.iter().any(|setting| setting.key == key) {
                mistakes.push(format!("{key}: no such setting"));
            }
        }
        let otlp = otlp_of_environment(environment, &mut mistakes);
        let seen = Seen {
            is_in_pod: environment(IN_POD_VARIABLE).is_some(),
            visible: visible_devices(environment),
        };
        let mut settings = Self::bare(otlp, seen);
        for setting in SETTINGS {
            let given = sources
                .flags
                .get(setting.key)
                .map(|values| (format!("--{}", setting.key), values.clone()))
                .or_else(|| {
                    let variable = setting.variable();
                    let value = environment(&variable)?;
                    let values = if setting.is_repeatable {
                        value.split(',').map(|part| part.trim().to_owned()).collect()
                    } else {
                        vec![value]
                    };
                    Some((variable, values))
                })
                .or_else(|| Some((setting.key.to_owned(), in_file.get(setting.key)?.clone())));
            let (source, values) = given
                .unwrap_or_else(|| (setting.key.to_owned(), vec![setting.default.to_owned()]));
            if values.len() > 1 && !setting.is_repeatable {
                mistakes
                    .push(format!("{source}: given {} times, may be given once", values.len()));
            } else if let Err(problem) = (setting.set)(&mut settings, &values) {
                mistakes.push(format!("{source}: {problem}"));
            }
        }
        settings.finish(&mut mistakes);
        if mistakes.is_empty() { Ok(settings) } else { Err(ConfigError { mistakes }) }
    }

    /// The settings before any row was read.
    fn bare(otlp: OtlpConfig, seen: Seen) -> Self {
        Self {
            web_addresses: Vec::new(),
            telemetry_path: String::new(),
            push_addresses: Vec::new(),
            push_socket: None,
            push: PushConfig { body_bytes_max: 0, token: None },
            engine: EngineConfig::default(),
            snapshots: CaptureSettings {
                on_creep: false,
                directory: String::new(),
                steps: 0,
                run_max: 0,
                cooldown: Duration::ZERO,
            },
            otlp: Some(otlp),
            nvml: Some(NvmlSettings::default()),
            state_file: None,
            summary_dir: None,
            log: LogSettings { level: String::new(), is_json: false },
            linger: Duration::ZERO,
            devices: None,
            seen,
        }
    }

    /// What no single row can tell.
    fn finish(&mut self, mistakes: &mut Vec<String>) {
        let limits = &self.engine.thresholds;
        for (name, warning, critical) in [
            ("pressure", limits.pressure_warning, limits.pressure_critical),
            ("imbalance", limits.imbalance_warning, limits.imbalance_critical),
        ] {
            if warning > critical {
                mistakes.push(format!(
                    "{name}.warning: {warning} exceeds {name}.critical, which is {critical}"
                ));
            }
        }
        self.otlp =
            self.otlp.take().filter(|otlp| otlp.endpoint.is_some() || otlp.is_from_environment);
        if self.engine.rank_retention < self.engine.rank_ttl {
            mistakes.push("rank.retention: it is shorter than rank.ttl".to_owned());
        }
        if self.snapshots.on_creep && self.snapshots.directory.is_empty() {
            mistakes.push("snapshot.on-creep: it needs snapshot.directory".to_owned());
        }
        if let Some(nvml) = &mut self.nvml {
            self.engine.gpu_ttl = nvml.interval * 2 + nvml.timeout;
            // Beside a job, only its own devices are opened; who watches a node opens all.
            let is_beside_a_job = self.seen.is_in_pod && nvml.kubelet_socket.is_none();
            let by_default = if is_beside_a_job { Devices::Pushed } else { Devices::All };
            nvml.devices = self.devices.take().unwrap_or(by_default);
        }
    }
}

/// The settings as a page of documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Settings\n\nGenerated from `src/config.rs`. A flag is stronger than its environment variable, which is \
         stronger than the file\n(`--config.file`, or `STEPMEM_CONFIG_FILE`; TOML or YAML by its ending, keys \
         nested or dotted), which is stronger than\nthe default. Durations are written as `90s`, `10m` or \
         `1h 30m`.\n\n| flag, file key | environment | default | what |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let value = if setting.is_switch() {
            String::new()
        } else {
            format!(" {}", setting.value_name)
        };
        let default = match setting.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        let repeatable = if setting.is_repeatable { " Repeatable." } else { "" };
        let (key, variable, help) = (setting.key, setting.variable(), setting.help);
        let row =
            format!("| `--{key}{value}` | `{variable}` | {default} | {help}{repeatable} |\n");
        page.push_str(&row);
    }
    page
}

const fn one(
    key: &'static str,
    value_name: &'static str,
    help: &'static str,
    set: fn(&mut Settings, &[String]) -> Result<(), String>,
) -> Setting {
    Setting { key, value_name, is_repeatable: false, default: "", help, set }
}

impl Setting {
    const fn by_default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }
}

fn read_file(path: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let value: Value = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(&text).map_err(|error| format!("{shown}: {error}"))?,
        Some("yaml" | "yml") => {
            serde_norway::from_str(&text).map_err(|error| format!("{shown}: {error}"))?
        }
        _ => return Err(format!("{shown}: the name ends in none of .toml, .yaml, .yml")),
    };
    let mut values = BTreeMap::new();
    flatten("", &value, &mut values);
    Ok(values)
}

/// Joins the keys of nested tables by dots.
fn flatten(prefix: &str, value: &Value, values: &mut BTreeMap<String, Vec<String>>) {
    match value {
        Value::Object(table) => {
            for (key, inner) in table {
                let key =
                    if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, inner, values);
            }
        }
        Value::Array(items) => {
            values.insert(prefix.to_owned(), items.iter().map(plain).collect());
        }
        Value::Null if prefix.is_empty() => {}
        scalar => {
            values.insert(prefix.to_owned(), vec![plain(scalar)]);
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn only(values: &[String]) -> &str {
    values.first().map_or("", String::as_str)
}

/// A warm-up of every run, or of the run that is named before the last `=`.
fn warmups(settings: &mut Settings, values: &[String]) -> Result<(), String> {
    for value in values {
        let (run, steps) = match value.rsplit_once('=') {
            Some((run, steps)) => (Some(run), steps),
            None => (None, value.as_str()),
        };
        let steps = number(steps, 0, WARMUP_STEPS_MAX)?;
        match run {
            Some(run) => {
                let run =
                    Run::new(run).map_err(|problem| format!("{value:?}: run: {problem}"))?;
                settings.engine.warmup_pushes.insert(run, steps);
            }
            None => settings.engine.creep.warmup_pushes = steps,
        }
    }
    Ok(())
}

fn nvml(settings: &mut Settings, change: impl FnOnce(&mut NvmlSettings)) {
    if let Some(nvml) = &mut settings.nvml {
        change(nvml);
    }
}

fn otlp(settings: &mut Settings, change: impl FnOnce(&mut OtlpConfig)) {
    if let Some(otlp) = &mut settings.otlp {
        change(otlp);
    }
}

fn addresses(values: &[String]) -> Result<Vec<SocketAddr>, String> {
    values.iter().filter(|value| !value.is_empty()).map(|value| address(value)).collect()
}

fn address(value: &str) -> Result<SocketAddr, String> {
    let full =
        if value.starts_with(':') { format!("0.0.0.0{value}") } else { value.to_owned() };
    full.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| format!("{value:?} is not HOST:PORT or :PORT"))
}

fn telemetry_path(value: &str) -> Result<String, String> {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "/-_.".contains(character);
    if value.starts_with('/') && value.chars().all(is_plain) && !TAKEN_PATHS.contains(&value) {
        Ok(value.to_owned())
    } else {
        Err(format!("{value:?} is not a path of letters, digits, / - _ . that is free"))
    }
}

/// Paths that the web server needs itself.
const TAKEN_PATHS: [&str; 6] =
    ["/", "/style.css", "/page.js", "/api/v1/status", "/-/healthy", "/-/ready"];

/// Who reaches the directory of a Unix socket may push, as whoever runs on the node may push to its loopback.
const SOCKET_MODE_DEFAULT: u32 = 0o666;

fn socket(value: &str) -> Result<Option<(PathBuf, u32)>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let (path, mode) = match value.rsplit_once(':') {
        Some((path, mode)) => (path, parse_mode(mode)?),
        None => (value, SOCKET_MODE_DEFAULT),
    };
    if path.starts_with('/') {
        Ok(Some((PathBuf::from(path), mode)))
    } else {
        Err(format!("{path:?} is not an absolute path"))
    }
}

fn directory(value: &str) -> Result<String, String> {
    let is_text = value.len() <= DIRECTORY_BYTES_MAX && !value.chars().any(char::is_control);
    if value.is_empty() || (value.starts_with('/') && is_text) {
        Ok(value.to_owned())
    } else {
        Err(format!("{value:?} is not an absolute path of at most {DIRECTORY_BYTES_MAX} bytes"))
    }
}

/// The longest directory of snapshots, in bytes: with a file's name it is a path that a report can hold.
const DIRECTORY_BYTES_MAX: usize = 768;

fn parse_mode(mode: &str) -> Result<u32, String> {
    u32::from_str_radix(mode, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("mode {mode:?} is not octal 0..=777"))
}

/// The longest token that is read, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

fn token(value: &str) -> Result<Option<Vec<u8>>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let bytes = std::fs::read(value).map_err(|error| format!("{value}: {error}"))?;
    let token = bytes.trim_ascii();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        let n_bytes = token.len();
        return Err(format!(
            "{value}: a token of {n_bytes} bytes is outside 1..={TOKEN_BYTES_MAX}"
        ));
    }
    Ok(Some(token.to_vec()))
}

/// Which devices are opened; `None` where nothing is said.
fn devices(values: &[String], seen: &Seen) -> Result<Option<Devices>, String> {
    let words: Vec<&str> = values
        .iter()
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    match words[..] {
        [] => Ok(None),
        ["all"] => Ok(Some(Devices::All)),
        ["pushed"] => Ok(Some(Devices::Pushed)),
        ["visible"] => seen.visible.clone().map(Some),
        _ => {
            let names = words.iter().map(|word| {
                uuid(word).ok_or_else(|| {
                    format!(
                        "{word:?} is none of all, visible, pushed and no UUID (GPU-…, MIG-…)"
                    )
                })
            });
            Ok(Some(Devices::Listed(names.collect::<Result<_, _>>()?)))
        }
    }
}

fn uuid(word: &str) -> Option<DeviceName> {
    let is_uuid = word.starts_with("GPU-") || word.starts_with("MIG-");
    is_uuid.then(|| GpuUuid::new(word).ok().map(DeviceName::Uuid))?
}

/// What the variables of CUDA and of the container toolkit say. The toolkit numbers the devices that it gives to a
/// container anew, so that its indices say nothing in there: what NVML counts is what is visible.
fn visible_devices(environment: &dyn Fn(&str) -> Option<String>) -> Result<Devices, String> {
    let [cuda, toolkit] = VISIBLE_VARIABLES;
    let words = |value: &str| -> Vec<String> {
        value.split(',').map(|word| word.trim().to_owned()).collect()
    };
    if let Some(value) = environment(cuda) {
        let words = words(&value);
        // CUDA sees nothing from the first word on that is no device.
        let usable =
            words.iter().take_while(|word| !["", "-1", "NoDevFiles"].contains(&word.as_str()));
        let names = usable.map(|word| {
            let index = word.parse().ok().map(DeviceName::Index);
            index.or_else(|| uuid(word)).ok_or_else(|| {
                format!("{cuda}: {word:?} is neither an index nor a UUID (GPU-…, MIG-…)")
            })
        });
        return Ok(Devices::Listed(names.collect::<Result<_, _>>()?));
    }
    let value = environment(toolkit).unwrap_or_default();
    let names: Vec<DeviceName> = words(&value).iter().filter_map(|word| uuid(word)).collect();
    Ok(match value.as_str() {
        "none" => Devices::Listed(Vec::new()),
        _ if names.is_empty() => Devices::All,
        _ => Devices::Listed(names),
    })
}

fn absolute(value: &str) -> Result<Option<PathBuf>, String> {
    match value {
        "" => Ok(None),
        path if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
        path => Err(format!("{path:?} is not an absolute path")),
    }
}

fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

fn number<N: TryFrom<u64>>(value: &str, min: u64, max: impl TryInto<u64>) -> Result<N, String> {
    let max = max.try_into().unwrap_or(u64::MAX);
    value
        .parse::<u64>()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| format!("{value:?} is not an integer of {min}..={max}"))
}

fn ratio(value: &str) -> Result<f64, String> {
    value
        .parse::<f64>()
        .ok()
        .filter(|ratio| (0.0..=10.0).contains(ratio))
        .ok_or_else(|| format!("{value:?} is not a number of 0..=10"))
}

/// The longest duration that is taken: a year.
const DURATION_MAX: Duration = Duration::from_hours(366 * 24);

fn any_duration(value: &str) -> Result<Duration, String> {
    humantime::parse_duration(value)
        .ok()
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| {
            format!("{value:?} is not a duration such as 90s, 10m or 6h, up to a year")
        })
}

fn duration(value: &str) -> Result<Duration, String> {
    any_duration(value).and_then(|duration| {
        if duration.is_zero() {
            Err("a duration of 0 makes no sense here".to_owned())
        } else {
            Ok(duration)
        }
    })
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn one_of(value: &str, allowed: &[&str]) -> Result<String, String> {
    if allowed.contains(&value) {
        Ok(value.to_owned())
    } else {
        Err(format!("{value:?} is none of {}", allowed.join(", ")))
    }
}

fn transport(value: &str) -> Result<Option<Transport>, String> {
    match value {
        "" => Ok(None),
        "grpc" => Ok(Some(Transport::Grpc)),
        "http/protobuf" => Ok(Some(Transport::Http)),
        other => Err(format!("{other:?} is neither http/protobuf nor grpc")),
    }
}

/// OTLP as its own variables say; those about metrics are stronger than those about all signals.
fn otlp_of_environment(
    environment: &dyn Fn(&str) -> Option<String>,
    mistakes: &mut Vec<String>,
) -> OtlpConfig {
    let given = |name: &str| {
        let names = [
            format!("OTEL_EXPORTER_OTLP_METRICS_{name}"),
            format!("OTEL_EXPORTER_OTLP_{name}"),
        ];
        let mut found = names.into_iter().map(|name| (environment(&name), name));
        found.find_map(|(value, name)| Some((name, value.filter(|value| !value.is_empty())?)))
    };
    let mut milliseconds = |given: Option<(String, String)>, default| match given {
        None => Duration::from_millis(default),
        Some((name, value)) => {
            let parsed = value.parse().inspect_err(|_| {
                mistakes.push(format!("{name}: {value:?} is not a number of milliseconds"));
            });
            Duration::from_millis(parsed.unwrap_or(default))
        }
    };
    let interval = environment(OTLP_INTERVAL_VARIABLE)
        .map(|value| (OTLP_INTERVAL_VARIABLE.to_owned(), value));
    let interval = milliseconds(interval, 60_000);
    let timeout = milliseconds(given("TIMEOUT"), 10_000);
    let transport = match given("PROTOCOL") {
        None => Transport::Http,
        Some((name, value)) => match transport(&value) {
            Ok(transport) => transport.unwrap_or(Transport::Http),
            Err(problem) => {
                mistakes.push(format!("{name}: {problem}"));
                Transport::Http
            }
        },
    };
    let endpoint = given("ENDPOINT");
    OtlpConfig {
        endpoint: None,
        transport,
        interval,
        timeout,
        semconv: false,
        is_tls: endpoint.as_ref().is_some_and(|(_, url)| has_tls(url)),
        is_from_environment: endpoint.is_some(),
        instance: String::new(),
    }
}

fn name_collector(otlp: &mut OtlpConfig, endpoint: Option<String>) {
    if let Some(endpoint) = endpoint {
        otlp.is_tls = has_tls(&endpoint);
        otlp.endpoint = Some(endpoint);
    }
}

fn has_tls(url: &str) -> bool {
    url.starts_with("https://")
}

fn endpoint(value: &str) -> Result<Option<String>, String> {
    if value.is_empty() {
        Ok(None)
    } else if ["http://", "https://"].into_iter().any(|scheme| value.starts_with(scheme)) {
        Ok(Some(value.to_owned()))
    } else {
        Err(format!("{value:?} begins with neither http:// nor https://"))
    }
}
