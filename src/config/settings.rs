//! The settings of an exporter in the form that the modules take, valid at any time.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::config::devices::DeviceEnvironment;
use crate::config::error::{Mistake, StartupProblem};
use crate::config::keys;
use crate::config::web_file::WebFile;
use crate::input::nvml::config::{Devices, GivenDevices};
use crate::input::push::http::PushConfig;
use crate::output::otlp::config::{Endpoint, OtlpConfig, Transport};
use stepmem_engine::{EngineConfig, SnapshotSettings};
use stepmem_types::device::PodName;

/// All mistakes in the settings, one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.mistakes))]
pub struct ConfigError {
    pub mistakes: Vec<Mistake>,
    /// The settings without mistakes, and defaults for the rest: further problems are searched
    /// for with them.
    pub usable: Box<Settings>,
}

fn lines(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The settings of `serve`. A test compares the default with that of the table.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses of the page and the metrics.
    pub web_addresses: Vec<SocketAddr>,
    /// The path of the metrics.
    pub telemetry_path: String,
    /// Names by which browsers reach the page.
    pub web_hosts: Vec<String>,
    /// The access rules for clients over TCP; `None` without any.
    pub web_file: Option<WebFile>,
    /// TCP addresses of the push endpoint.
    pub push_addresses: Vec<SocketAddr>,
    /// Unix socket of the push endpoint.
    pub push_socket: Option<PushSocket>,
    /// The limits of pushes.
    pub push: PushConfig,
    /// The limits and thresholds of the engine.
    pub engine: EngineConfig,
    /// The conditions under which ranks are asked for memory snapshots, and the part of
    /// snapshots that is read.
    pub snapshots: SnapshotSettings,
    /// The directory of snapshots until the summary of their run is written, which moves them
    /// into its own directory. An absolute path on the same disk. `None` leaves them where they
    /// are.
    pub snapshot_staging: Option<PathBuf>,
    /// The OTLP export; `None` without a collector.
    pub otlp: Option<OtlpConfig>,
    /// Polling of NVML; `None` disables it.
    pub nvml: Option<NvmlSettings>,
    /// The file that keeps the windows of all ranks across restarts.
    pub state_file: Option<PathBuf>,
    /// The directory of summaries.
    pub summary_dir: Option<PathBuf>,
    /// Number of launches of a run that keep their summaries.
    pub summary_launches_max: usize,
    pub record: RecordSettings,
    pub log: LogSettings,
    /// Time that the web server still answers after the rest has stopped.
    pub linger: Duration,
    /// The behavior of the exporter when a setting is wrong at its start.
    pub start: StartMode,
    /// The file of the container's termination message.
    pub termination_message: Option<PathBuf>,
    /// The settings that the exporter runs without.
    pub problems: Vec<StartupProblem>,
    /// Sentences about values that are valid, but probably mistakes.
    pub warnings: Vec<String>,
}

/// The port that clients push to unless told another.
pub const PUSH_PORT_DEFAULT: u16 = 9478;

/// The behavior of an exporter when a setting is wrong, or an address is taken, at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartMode {
    /// Ends the exporter.
    #[default]
    Strict,
    /// Runs without the setting, and listens on any free port.
    Sidecar,
    /// Runs without the setting, but listens on the next free port: a person opens its page.
    Command,
}

/// Number of ranks that a sidecar holds by default: those of its pod, and their successors.
const SIDECAR_RANKS_MAX: usize = 64;

/// The file that Kubernetes reads a container's termination message from, unless the container
/// names another.
const TERMINATION_MESSAGE_DEFAULT: &str = "/dev/termination-log";

/// The Unix socket of the push endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushSocket {
    /// An absolute path.
    pub path: PathBuf,
    /// The permissions, at most 0o777.
    pub mode: u32,
}

/// Polling of NVML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlSettings {
    /// The library; `None` for the system's.
    pub library: Option<PathBuf>,
    /// The interval between polls.
    pub interval: Duration,
    /// Time after which a poll's devices count as unavailable.
    pub timeout: Duration,
    /// The devices that are opened.
    pub devices: Devices,
    /// The devices that are opened in a pod once no rank pushes from one; `None` where the
    /// choice above is final.
    pub given: Option<GivenDevices>,
    /// Time without a push from a device before those are opened.
    pub open_given_after: Duration,
    /// True if the names of processes are left out.
    pub hides_names: bool,
    /// The kubelet's pod-resources socket; `None` where it is not asked.
    pub kubelet_socket: Option<PathBuf>,
    /// The exporter's own pod; `None` where it monitors a whole node or does not ask the
    /// kubelet.
    pub kubelet_pod: Option<PodName>,
    /// The mount of the node's control groups; `None` where they are not read.
    pub kubelet_cgroups: Option<PathBuf>,
}

/// The recordings to write, and their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// The directory of recordings; `None` records nothing there.
    pub directory: Option<PathBuf>,
    /// Byte budget of all recordings.
    pub bytes_max: u64,
    /// Set when a recording is written next to the summary of each launch where there is no
    /// directory.
    pub is_by_launch: bool,
}

impl Default for RecordSettings {
    fn default() -> Self {
        Self { directory: None, bytes_max: 256 << 20, is_by_launch: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The lowest level that is logged.
    pub level: String,
    /// True if lines are JSON.
    pub is_json: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let nvml = NvmlSettings::default();
        Self {
            web_addresses: vec![(Ipv4Addr::UNSPECIFIED, 9477).into()],
            telemetry_path: "/metrics".to_owned(),
            web_hosts: Vec::new(),
            web_file: None,
            push_addresses: vec![(Ipv4Addr::LOCALHOST, PUSH_PORT_DEFAULT).into()],
            push_socket: None,
            push: PushConfig {
                body_bytes_max: 1024 * 1024,
                token_file: None,
                admin_token_file: None,
                trusts_machine: true,
                has_page_buttons: false,
                deadline: None,
            },
            engine: EngineConfig { gpu_ttl: nvml.ttl(), ..EngineConfig::default() },
            snapshots: SnapshotSettings::default(),
            snapshot_staging: None,
            otlp: None,
            nvml: Some(nvml),
            state_file: None,
            summary_dir: None,
            summary_launches_max: 32,
            record: RecordSettings::default(),
            log: LogSettings { level: "info".to_owned(), is_json: false },
            linger: Duration::ZERO,
            start: StartMode::Strict,
            termination_message: None,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Default for NvmlSettings {
    fn default() -> Self {
        Self {
            library: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            devices: Devices::All,
            given: None,
            open_given_after: Duration::from_mins(1),
            hides_names: false,
            kubelet_socket: None,
            kubelet_pod: None,
            kubelet_cgroups: None,
        }
    }
}

impl NvmlSettings {
    /// Returns the time for which a reading counts: two polls and the wait for the second.
    fn ttl(&self) -> Duration {
        self.interval * 2 + self.timeout
    }
}

/// Settings while their rows are being read: valid ones, and the parts that depend on each
/// other.
#[derive(Debug)]
pub(super) struct Draft {
    /// Everything but OTLP and NVML.
    pub(super) settings: Settings,
    /// The export, even without a collector.
    pub(super) otlp: OtlpDraft,
    /// Polling of NVML, even while `is_without_nvml`.
    pub(super) nvml: NvmlSettings,
    pub(super) is_without_nvml: bool,
    /// The devices that the setting chooses; `None` when it is empty.
    pub(super) devices: Option<Devices>,
    pub(super) device_environment: DeviceEnvironment,
    /// Number of ranks that are held; `None` where that is not set.
    pub(super) ranks_max: Option<usize>,
    /// Set when the token of admins was to be set and could not be read.
    pub(super) is_admin_closed: bool,
    /// True if any client may push over the network.
    pub(super) is_push_open: bool,
}

/// The export while its settings are read.
#[derive(Clone, Debug)]
pub(super) struct OtlpDraft {
    /// The collector; `None` turns the export off.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) transport: Transport,
    pub(super) interval: Duration,
    pub(super) semconv: bool,
    pub(super) timeout: Duration,
}

impl OtlpDraft {
    /// Returns the export of so many ranks; `None` without a collector.
    pub(super) fn finish(self, ranks_max: usize) -> Option<OtlpConfig> {
        let Self { endpoint, transport, interval, semconv, timeout } = self;
        let instance = String::new();
        Some(OtlpConfig {
            endpoint: endpoint?,
            transport,
            interval,
            timeout,
            semconv,
            instance,
            ranks_max,
        })
    }
}

impl Draft {
    pub(super) fn new(otlp: OtlpDraft, device_environment: DeviceEnvironment) -> Self {
        Self {
            settings: Settings::default(),
            otlp,
            nvml: NvmlSettings::default(),
            is_without_nvml: false,
            devices: None,
            device_environment,
            ranks_max: None,
            is_admin_closed: false,
            is_push_open: false,
        }
    }

    /// Joins the parts, and adds the mistakes that several settings make together.
    pub(super) fn finish(self, mistakes: &mut Vec<Mistake>) -> Settings {
        let Self {
            mut settings,
            otlp,
            mut nvml,
            is_without_nvml,
            devices,
            device_environment,
            ranks_max,
            is_admin_closed,
            is_push_open,
        } = self;
        let by_default = if settings.start == StartMode::Sidecar {
            SIDECAR_RANKS_MAX
        } else {
            settings.engine.ranks_max
        };
        settings.engine.ranks_max = ranks_max.unwrap_or(by_default);
        settings.otlp = otlp.finish(settings.engine.ranks_max);
        // A sidecar opens only the devices of its job; an exporter for the whole node opens
        // all.
        let asks_for_pod = nvml.kubelet_socket.is_some() && nvml.kubelet_pod.is_some();
        let is_for_node = nvml.kubelet_socket.is_some() && !asks_for_pod;
        // In a pod, training shares the loopback interface and is often root. A command's
        // exporter belongs to it alone.
        let is_shared = settings.start == StartMode::Sidecar
            || nvml.kubelet_socket.is_some()
            || (device_environment.is_in_pod && settings.start == StartMode::Strict);
        settings.push.trusts_machine = !(is_shared || is_admin_closed);
        if !is_push_open {
            settings.close_open_pushes(mistakes);
        }
        settings.close_plain_admin(mistakes);
        let is_sidecar = device_environment.is_in_pod && !is_for_node;
        let given = match device_environment.given {
            GivenDevices::Unknown(_) if asks_for_pod => GivenDevices::OfPod,
            given => given,
        };
        nvml.given = (is_sidecar && devices.is_none()).then_some(given);
        let by_default = if is_sidecar { Devices::Pushed } else { Devices::All };
        nvml.devices = devices.unwrap_or(by_default);
        settings.engine.gpu_ttl = nvml.ttl();
        settings.nvml = (!is_without_nvml).then_some(nvml);
        if settings.start == StartMode::Sidecar && settings.termination_message.is_none() {
            settings.termination_message = Some(PathBuf::from(TERMINATION_MESSAGE_DEFAULT));
        }
        settings.check(mistakes);
        settings
    }
}

impl Settings {
    /// Returns whether every client over TCP must identify itself.
    fn knows_pushers(&self) -> bool {
        self.push.token_file.is_some()
            || self.web_file.as_ref().is_some_and(WebFile::knows_clients)
    }

    /// Removes the addresses at which everyone in the network could push.
    fn close_open_pushes(&mut self, mistakes: &mut Vec<Mistake>) {
        if self.knows_pushers() {
            return;
        }
        let open = self.push_addresses.iter().filter(|address| !is_local(address));
        mistakes.extend(open.copied().map(Mistake::OpenPush));
        self.push_addresses.retain(is_local);
    }

    /// Removes the page's buttons where no token opens them, or where one would be sent in
    /// plain text over the network.
    fn close_plain_admin(&mut self, mistakes: &mut Vec<Mistake>) {
        if !self.push.has_page_buttons {
            return;
        }
        let n_mistakes = mistakes.len();
        if self.push.admin_token_file.is_none() {
            mistakes.push(Mistake::AdminWithoutToken);
        }
        if !self.web_file.as_ref().is_some_and(WebFile::speaks_tls) {
            let open = self.web_addresses.iter().filter(|address| !is_local(address));
            mistakes.extend(open.copied().map(Mistake::PlainAdmin));
        }
        self.push.has_page_buttons = mistakes.len() == n_mistakes;
    }

    /// Adds the mistakes that several settings make together, and gives these settings their
    /// defaults.
    fn check(&mut self, mistakes: &mut Vec<Mistake>) {
        let defaults = EngineConfig::default();
        let (limits, by_default) = (&mut self.engine.thresholds, &defaults.thresholds);
        let pairs = [
            (
                "pressure",
                [&mut limits.pressure_warning, &mut limits.pressure_critical],
                [by_default.pressure_warning, by_default.pressure_critical],
            ),
            (
                "imbalance",
                [&mut limits.imbalance_warning, &mut limits.imbalance_critical],
                [by_default.imbalance_warning, by_default.imbalance_critical],
            ),
        ];
        for (name, [warning, critical], by_default) in pairs {
            if *warning > *critical {
                let (of_warning, of_critical) = (*warning, *critical);
                [*warning, *critical] = by_default;
                mistakes.push(Mistake::WarningAboveCritical {
                    name,
                    warning: of_warning,
                    critical: of_critical,
                });
            }
        }
        if self.engine.rank_retention < self.engine.rank_ttl {
            self.engine.rank_ttl = defaults.rank_ttl;
            self.engine.rank_retention = defaults.rank_retention;
            mistakes.push(Mistake::RetentionBelowTtl);
        }
        self.part_addresses(mistakes);
    }

    /// Removes the addresses that another listener has.
    fn part_addresses(&mut self, mistakes: &mut Vec<Mistake>) {
        let mut kept: Vec<(&'static str, SocketAddr)> = Vec::new();
        for (setting, addresses) in [
            (keys::WEB_ADDRESS, &mut self.web_addresses),
            (keys::PUSH_ADDRESS, &mut self.push_addresses),
        ] {
            addresses.retain(|address| {
                let other = kept.iter().find(|(_, other)| overlap(other, address));
                let mistake = other.map(|&(other, _)| Mistake::SameAddress {
                    setting,
                    address: *address,
                    other,
                });
                let is_own = mistake.is_none();
                mistakes.extend(mistake);
                kept.extend(is_own.then_some((setting, *address)));
                is_own
            });
        }
    }
}

/// Returns whether the system lets only one listener have these addresses.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let is_same =
        one.ip() == other.ip() || [one, other].iter().any(|of| of.ip().is_unspecified());
    one.port() != 0 && one.port() == other.port() && one.is_ipv4() == other.is_ipv4() && is_same
}

fn is_local(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
