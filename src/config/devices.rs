//! The devices that NVML opens: by the setting, by the variables of CUDA and of the container
//! toolkit, or by where the exporter runs.

use crate::config::environment::Environment;
use crate::config::error::ValueError;
use crate::input::nvml::config::{DeviceName, Devices, GivenDevices};
use stepmem_types::ids::GpuUuid;

/// The variable that is set where a process runs in a pod.
const IN_POD_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
/// The variable by which CUDA limits the devices that a process sees.
const CUDA_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The variable by which the container toolkit chooses the devices of a container.
const TOOLKIT_VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The reason that devices are not opened where the variable allows every device of the node.
const ALL_GIVEN: &str = "no rank pushes from a device, and NVIDIA_VISIBLE_DEVICES=all names every device of the node, not those of \
     this pod; set --nvml.devices to their UUIDs, or to all where the pod has the whole node, or give the exporter the pod's claim, \
     or --kubelet.socket with --kubelet.pod";
/// The reason that devices are not opened where the variable names none.
const NONE_GIVEN: &str = "no rank pushes from a device, and NVIDIA_VISIBLE_DEVICES does not name those of this pod; set --nvml.devices to \
     their UUIDs, or to all where the pod has the whole node, or give the exporter the pod's claim, or --kubelet.socket with \
     --kubelet.pod";

/// The environment, as far as it concerns devices.
#[derive(Clone, Debug)]
pub(super) struct DeviceEnvironment {
    /// True if the exporter runs in a pod.
    pub(super) is_in_pod: bool,
    /// The devices that a process here would see, or the mistake in the variable that lists
    /// them.
    visible: Result<Devices, ValueError>,
    /// The devices that the container toolkit or a claim put into the exporter's container.
    pub(super) given: GivenDevices,
}

impl DeviceEnvironment {
    pub(super) fn read(environment: Environment<'_>) -> Self {
        Self {
            is_in_pod: environment(IN_POD_VARIABLE).is_some(),
            visible: visible_devices(environment),
            given: given_devices(environment),
        }
    }

    /// Parses the setting; `None` when it is empty.
    pub(super) fn parse(&self, values: &[String]) -> Result<Option<Devices>, ValueError> {
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
            ["visible"] => self.visible.clone().map(Some),
            _ => {
                let names = words.iter().map(|word| {
                    uuid(word).ok_or_else(|| ValueError::Device((*word).to_owned()))
                });
                Ok(Some(Devices::Listed(names.collect::<Result<_, _>>()?)))
            }
        }
    }
}

/// The devices that the pod was given: UUIDs in the toolkit's variable, or those of a claim,
/// for which the driver's specification sets it to `void`.
fn given_devices(environment: Environment<'_>) -> GivenDevices {
    let value = environment(TOOLKIT_VARIABLE).unwrap_or_default();
    let uuids = value.split(',').map(|word| match uuid(word.trim()) {
        Some(DeviceName::Uuid(uuid)) => Some(uuid),
        _ => None,
    });
    match (value.as_str(), uuids.collect::<Option<_>>()) {
        (_, Some(uuids)) => GivenDevices::Listed(uuids),
        ("void", None) => GivenDevices::Claimed,
        ("all", None) => GivenDevices::Unknown(ALL_GIVEN),
        (_, None) => GivenDevices::Unknown(NONE_GIVEN),
    }
}

fn uuid(word: &str) -> Option<DeviceName> {
    let is_uuid = word.starts_with("GPU-") || word.starts_with("MIG-");
    is_uuid.then(|| GpuUuid::new(word).ok().map(DeviceName::Uuid))?
}

/// Returns the devices that the variables list.
///
/// Indices count for CUDA's variable only: the toolkit numbers the devices of a container
/// again. In a container, every device that NVML counts is therefore the container's.
fn visible_devices(environment: Environment<'_>) -> Result<Devices, ValueError> {
    let words = |value: &str| -> Vec<String> {
        value.split(',').map(|word| word.trim().to_owned()).collect()
    };
    if let Some(value) = environment(CUDA_VARIABLE) {
        let words = words(&value);
        // CUDA ignores everything after the first word that is not a device.
        let usable =
            words.iter().take_while(|word| !["", "-1", "NoDevFiles"].contains(&word.as_str()));
        let names = usable.map(|word| {
            let index = word.parse().ok().map(DeviceName::Index);
            index.or_else(|| uuid(word)).ok_or_else(|| ValueError::VisibleDevice {
                variable: CUDA_VARIABLE,
                word: word.clone(),
            })
        });
        return Ok(Devices::Listed(names.collect::<Result<_, _>>()?));
    }
    let value = environment(TOOLKIT_VARIABLE).unwrap_or_default();
    let names: Vec<DeviceName> = words(&value).iter().filter_map(|word| uuid(word)).collect();
    Ok(match value.as_str() {
        "none" => Devices::Listed(Vec::new()),
        _ if names.is_empty() => Devices::All,
        _ => Devices::Listed(names),
    })
}
