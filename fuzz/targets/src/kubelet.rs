//! An answer of the kubelet: any bytes as its protobuf message. What it names is in range and bounded.

use stepmem::input::attribution::kubelet::{Assignments, DEVICE_PODS_MAX};
use stepmem_types::device::DevicePod;

pub fn run(data: &[u8]) {
    let Ok(found) = Assignments::decode(data) else { return };
    assert!(found.pods.len() <= DEVICE_PODS_MAX);
    for pod in &found.pods {
        for name in [&pod.namespace, &pod.pod, &pod.container] {
            assert!(name.len() <= DevicePod::NAME_BYTES_MAX);
            assert!(!name.chars().any(char::is_control));
        }
    }
}
