//! Reads one GPU, or the MIG devices that it is divided into.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use crate::input::nvml::config::DeviceName;
use crate::input::nvml::cycle::{Cycle, DeviceEntry};
use crate::input::nvml::error::{GpuError, NvmlCode, refused};
use crate::input::nvml::process_list::{
    View, attribute, driver_of, identify, keep_largest, list,
};
use crate::input::nvml::raw;
use crate::input::nvml::session::Session;
use stepmem_types::device::{
    DeviceInfo, DeviceMemory, DeviceMemoryKind, GpuSample, device_text,
};
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::Bytes;

/// Maximum number of MIG devices per GPU. No product has more than a quarter of it.
const MIG_DEVICES_MAX: u32 = 64;

/// The addressing mode of GPUs whose memory the operating system may manage.
const ADDRESSING_ATS: &str = "ats";

/// The prefix of MIG UUIDs.
const MIG_PREFIX: &str = "MIG-";

/// Reads one GPU, or the MIG devices that it is divided into.
pub(super) struct DeviceReader<'a> {
    pub(super) session: &'a Session,
    pub(super) view: &'a mut View,
    pub(super) processes_max: usize,
    pub(super) cycle: &'a mut Cycle,
    pub(super) name: &'a DeviceName,
}

/// A GPU or MIG device whose UUID is known.
struct Target {
    uuid: GpuUuid,
    info: DeviceInfo,
    /// The GPU instance of a MIG device; `None` when the driver does not report it.
    gpu_instance: Option<u32>,
}

impl DeviceReader<'_> {
    /// # Errors
    /// Failures before NVML returned the device's UUID. Later ones are reported with the UUID.
    pub(super) fn read_named(&mut self) -> Result<(), GpuError> {
        let nvml = &self.session.nvml;
        match self.name {
            DeviceName::Index(idx) => {
                let device = nvml
                    .device_by_index(*idx)
                    .map_err(refused("nvmlDeviceGetHandleByIndex_v2"))?;
                self.read_gpu(&device, Some(*idx))
            }
            DeviceName::Uuid(uuid) => {
                let device = nvml
                    .device_by_uuid(uuid.as_str())
                    .map_err(refused("nvmlDeviceGetHandleByUUID"))?;
                let idx = device.index().ok();
                if uuid.as_str().starts_with(MIG_PREFIX) {
                    self.read_mig_device(&device, idx)
                } else {
                    self.read_gpu(&device, idx)
                }
            }
        }
    }

    fn read_gpu(&mut self, device: &Device<'_>, idx: Option<u32>) -> Result<(), GpuError> {
        let gpu = self.gpu(device, idx)?;
        if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            self.cycle.partitioned.insert(gpu.uuid.clone());
            return self.read_instances(device, &gpu);
        }
        self.read(gpu, device);
        Ok(())
    }

    fn gpu(&self, device: &Device<'_>, idx: Option<u32>) -> Result<Target, GpuError> {
        let addressing = addressing_of(device);
        Ok(Target {
            uuid: uuid_of(device)?,
            gpu_instance: None,
            info: DeviceInfo {
                index: idx.map(|idx| idx.to_string()),
                model: device.name().ok().as_deref().map(device_text),
                driver_version: self.session.driver_version.clone(),
                addressing: addressing.map(str::to_owned),
                // Grace: the operating system manages its memory, so that the driver's figures
                // mean nothing.
                memory_kind: (addressing == Some(ADDRESSING_ATS)
                    && device.numa_node_id().is_ok())
                .then_some(DeviceMemoryKind::NumaNode),
                ..DeviceInfo::default()
            },
        })
    }

    fn read_instances(&mut self, device: &Device<'_>, gpu: &Target) -> Result<(), GpuError> {
        let count =
            device.mig_device_count().map_err(refused("nvmlDeviceGetMaxMigDeviceCount"))?;
        for mig_idx in 0..count.min(MIG_DEVICES_MAX) {
            let read = match device.mig_device_by_index(mig_idx) {
                Ok(instance) => self.read_instance(gpu, Some(mig_idx), &instance),
                // Indices are slots, and slots may be empty.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => Ok(()),
                Err(error) => Err(refused("nvmlDeviceGetMigDeviceHandleByIndex")(error)),
            };
            if let Err(error) = read {
                self.cycle.unnamed.push((self.name.clone(), error));
            }
        }
        Ok(())
    }

    /// Reads a MIG device that was requested by its own UUID.
    fn read_mig_device(
        &mut self,
        device: &Device<'_>,
        mig_idx: Option<u32>,
    ) -> Result<(), GpuError> {
        let parent = device
            .mig_parent_device()
            .map_err(refused("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"))?;
        let gpu = self.gpu(&parent, parent.index().ok())?;
        self.read_instance(&gpu, mig_idx, device)
    }

    fn read_instance(
        &mut self,
        gpu: &Target,
        mig_idx: Option<u32>,
        device: &Device<'_>,
    ) -> Result<(), GpuError> {
        let name = device.name().ok().as_deref().map(device_text);
        let parts = name.as_deref().map(|name| name.split_once(" MIG ").unwrap_or((name, "")));
        let index = gpu.info.index.as_ref().zip(mig_idx);
        let instance = Target {
            uuid: uuid_of(device)?,
            info: DeviceInfo {
                index: index.map(|(gpu_idx, mig_idx)| format!("{gpu_idx}:{mig_idx}")),
                model: parts.map(|(model, _)| model.to_owned()),
                mig_profile: parts.map(|(_, it)| it.to_owned()).filter(|it| !it.is_empty()),
                parent: Some(gpu.uuid.clone()),
                ..gpu.info.clone()
            },
            gpu_instance: raw::gpu_instance_id(device).ok(),
        };
        self.read(instance, device);
        Ok(())
    }

    fn read(&mut self, target: Target, device: &Device<'_>) {
        let Target { uuid, mut info, gpu_instance } = target;
        let entry = DeviceEntry {
            name: self.name.clone(),
            parent: info.parent.clone(),
            code: None,
            is_reconfigured: false,
        };
        let is_numa_node = info.memory_kind.is_some();
        let memory = if is_numa_node { Ok(None) } else { memory_of(device) };
        match memory.and_then(|memory| Ok((memory, list(device)?))) {
            Ok((memory, rows)) => {
                // Memory belongs to the GPU instance: its first MIG device reports it for all.
                let instance = info.parent.clone().zip(gpu_instance);
                let holder = instance.map(|instance| {
                    self.cycle.memory_of.entry(instance).or_insert_with(|| uuid.clone())
                });
                info.memory_of = holder.filter(|holder| **holder != uuid).cloned();
                let total = memory.map(|memory| memory.total);
                // An integrated device has no memory of its own to report.
                let is_unified = memory.is_none() && !is_numa_node;
                if is_unified {
                    info.memory_kind = Some(DeviceMemoryKind::Unified);
                }
                let driver = self.session.driver_version.as_deref().and_then(driver_of);
                let mut listed = attribute(rows, total, driver, self.view);
                self.cycle.poll.processes_dropped +=
                    keep_largest(&mut listed.processes, self.processes_max);
                identify(&mut listed, self.view);
                self.cycle.poll.samples.push(GpuSample {
                    device: uuid.clone(),
                    info,
                    memory,
                    processes: listed.processes,
                    attribution: listed.attribution,
                    machine_total: is_unified.then(machine_total).flatten(),
                });
                self.cycle.answered.insert(self.name.clone());
                self.cycle.found.insert(uuid, entry);
            }
            Err(error) => {
                self.cycle.refuse(self.name, Some(uuid.clone()), &error);
                self.cycle
                    .found
                    .insert(uuid, DeviceEntry { code: Some(error.as_label()), ..entry });
            }
        }
    }
}

fn uuid_of(device: &Device<'_>) -> Result<GpuUuid, GpuError> {
    let uuid = device.uuid().map_err(refused("nvmlDeviceGetUUID"))?;
    GpuUuid::new(&uuid).map_err(|reason| GpuError::Uuid { reason })
}

fn addressing_of(device: &Device<'_>) -> Option<&'static str> {
    match raw::addressing_mode(device).ok()? {
        0 => Some("none"),
        1 => Some("hmm"),
        2 => Some(ADDRESSING_ATS),
        _ => None,
    }
}

/// The memory of a device, by v1 where the driver (below 510) lacks v2; `None` where it
/// supports neither.
fn memory_of(device: &Device<'_>) -> Result<Option<DeviceMemory>, GpuError> {
    let error = match device.memory_info() {
        Ok(v2) => {
            return Ok(memory([v2.total, v2.used, v2.free], Some(v2.reserved)));
        }
        Err(error) => refused("nvmlDeviceGetMemoryInfo_v2")(error),
    };
    if !matches!(error.code(), NvmlCode::SymbolMissing | NvmlCode::Nvml(3 | 13 | 25 | 26)) {
        return Err(error);
    }
    match raw::memory_v1(device) {
        Ok(v1) => Ok(memory([v1.total, v1.used, v1.free], None)),
        Err(NvmlError::NotSupported) => Ok(None),
        Err(_) if error.code() == NvmlCode::Nvml(3) => Ok(None),
        Err(error) => Err(refused("nvmlDeviceGetMemoryInfo")(error)),
    }
}

/// The machine's memory; `None` where the kernel does not report it.
fn machine_total() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Bytes::new(kibibytes * 1024).ok()
}

/// A device's memory from (total, used, free); `None` for impossible figures.
fn memory([total, used, free]: [u64; 3], reserved: Option<u64>) -> Option<DeviceMemory> {
    if total == 0 {
        return None;
    }
    let memory = DeviceMemory {
        total: Bytes::new(total).ok()?,
        used: Bytes::new(used).ok()?,
        free: Bytes::new(free).ok(),
        reserved: reserved.and_then(|reserved| Bytes::new(reserved).ok()),
    };
    Some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_meant_is_absent() {
        assert_eq!(memory([0, 0, 0], Some(0)), None);
        assert_eq!(memory([u64::MAX, 1, 1], None), None);
        let expected = memory([100, 30, 60], Some(10)).unwrap();
        assert_eq!(expected.reserved, Some(Bytes::new(10).unwrap()));
        assert_eq!(memory([100, 30, 60], None).unwrap().reserved, None);
    }
}
