//! The keys of settings that other files than the table name, for example in a problem at the
//! start.

/// The variable that names the file of settings when no flag does.
pub const FILE_VARIABLE: &str = "STEPMEM_CONFIG_FILE";
/// The addresses of the page and the metrics.
pub const WEB_ADDRESS: &str = "web.listen-address";
/// The file of TLS and users.
pub const WEB_FILE: &str = "web.config.file";
/// The switch for the page's buttons.
pub const WEB_ADMIN: &str = "web.admin";
/// The TCP addresses of the push endpoint.
pub const PUSH_ADDRESS: &str = "push.listen-address";
/// The Unix socket of the push endpoint.
pub const PUSH_SOCKET: &str = "push.unix-socket";
/// The time after which a rank is forgotten.
pub const RANK_RETENTION: &str = "rank.retention";
/// The warning of HIGH PRESSURE.
pub const PRESSURE_WARNING: &str = "pressure.warning";
/// The skew between ranks from which IMBALANCE is a warning.
pub const IMBALANCE_WARNING: &str = "imbalance.warning";
/// The kubelet's socket.
pub const KUBELET_SOCKET: &str = "kubelet.socket";
/// The file of the token that pushes need.
pub const PUSH_TOKEN_FILE: &str = "push.token-file";
/// The file of the secret that identifies an operator.
pub const ADMIN_TOKEN_FILE: &str = "admin.token-file";
/// The file that keeps the state across restarts.
pub const STATE_FILE: &str = "state.file";
/// The directory of summaries.
pub const SUMMARY_DIR: &str = "summary.dir";
/// The directory of recordings.
pub const RECORD_DIRECTORY: &str = "record.directory";
/// The lowest level that is logged.
pub const LOG_LEVEL: &str = "log.level";
/// The path from which the NVML library is loaded.
pub const NVML_LIBRARY: &str = "nvml.library";
/// The OTLP receiver.
pub const OTLP_ENDPOINT: &str = "otlp.endpoint";
/// The switch for asking growing ranks which objects hold their tensors.
pub const HOLDERS_ON_CREEP: &str = "holders.on-creep";
/// The time before out-of-memory at which ranks are asked to checkpoint.
pub const CHECKPOINT_BEFORE: &str = "checkpoint.before";
/// The directory in which snapshots are read.
pub const SNAPSHOT_READ_DIRECTORY: &str = "snapshot.read-directory";
/// The directory to which drawn snapshots are written.
pub const SNAPSHOT_TIMELINE_DIRECTORY: &str = "snapshot.timeline-directory";
/// The switch that makes the exporter a sidecar.
pub const SIDECAR: &str = "sidecar";
