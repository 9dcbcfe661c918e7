//! The metrics of devices and of NVML, read.

use crate::rig::exporter::Exporter;
use crate::rig::series::Metrics;

/// The number of times that NVML answered with this code.
pub fn errors(metrics: &Metrics, code: &str) -> f64 {
    let series = format!("stepmem_nvml_errors_total{{code=\"{code}\"}}");
    metrics.get(&series).copied().unwrap_or_default()
}

/// The bytes in use on a device; `None` while it is absent.
pub fn used(metrics: &Metrics, uuid: &str) -> Option<f64> {
    metrics.get(&format!("stepmem_device_memory_used_bytes{{uuid=\"{uuid}\"}}")).copied()
}

/// The bytes of the processes of a device whose memory is known; `None` where there is none.
pub fn attributed(metrics: &Metrics, uuid: &str) -> Option<f64> {
    let beyond = format!("stepmem_device_memory_unattributed_bytes{{uuid=\"{uuid}\"}}");
    Some(used(metrics, uuid)? - metrics.get(&beyond)?)
}

/// The way in which the exporter attributes the processes of a device.
pub fn attribution<'a>(metrics: &'a Metrics, uuid: &str) -> Option<&'a str> {
    let start = format!("stepmem_device_info{{uuid=\"{uuid}\"");
    let info = metrics.keys().find(|series| series.starts_with(&start))?;
    Some(info.split_once("attribution=\"")?.1.trim_end_matches("\"}"))
}

/// Returns whether anything is known of any device.
pub fn has_device(metrics: &Metrics) -> bool {
    let is_of_device = |series: &String| {
        ["stepmem_device_", "stepmem_process_"].iter().any(|start| series.starts_with(start))
    };
    metrics.keys().any(is_of_device)
}

/// The metric `stepmem_nvml_up`, 1 while NVML answers; `None` while it is not asked.
pub fn up(metrics: &Metrics) -> Option<f64> {
    metrics.get("stepmem_nvml_up").copied()
}

/// The number of log lines that NVML fails, and of those that it answers again.
pub fn logged(exporter: &Exporter) -> (usize, usize) {
    (exporter.logged("WARN", "NVML: "), exporter.logged("INFO", "NVML answers again"))
}
