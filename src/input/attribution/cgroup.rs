//! The container of a process, from the path of its control group. Pure.

use stepmem_types::device::Container;

/// Length of a container id in hexadecimal digits: containerd, CRI-O, Docker and Podman use 256
/// bits.
const ID_DIGITS: usize = 64;

/// The prefixes of the id with the systemd driver; CRI-O uses its prefix with cgroupfs, too.
const ID_PREFIXES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];

/// Returns the container of a process, from its `/proc/PID/cgroup` (version 1 or 2).
///
/// For nested containers (Kubernetes in Docker), returns the innermost. `None` outside a
/// container, and when the path ends at the border of the exporter's control group namespace.
pub fn container_of(cgroup: &str) -> Option<Container> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // In version 1, not every hierarchy names the pod.
    paths.filter_map(container_of_path).max_by_key(|container| container.pod_uid.is_some())
}

fn container_of_path(path: &str) -> Option<Container> {
    // containerd with systemd's notation on cgroupfs: `SLICE:cri-containerd:ID`.
    let parts: Vec<&str> = path.split(['/', ':']).collect();
    let (idx, id) =
        parts.iter().enumerate().rev().find_map(|(idx, part)| Some((idx, id_of(part)?)))?;
    let around = parts.get(..idx).unwrap_or_default();
    let pod_uid = around.iter().rev().find_map(|part| pod_uid_of(part));
    Some(Container { id: id.into(), pod_uid: pod_uid.map(Into::into) })
}

/// Parses the id in `ID`, `PREFIX-ID` or `PREFIX-ID.scope`.
pub(super) fn id_of(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let stripped = ID_PREFIXES.iter().find_map(|prefix| part.strip_prefix(prefix));
    Some(stripped.unwrap_or(part)).filter(|id| id.len() == ID_DIGITS && is_hex(id))
}

/// Parses the UID in `podUID` (cgroupfs) or `kubepods-QOS-podUID.slice` (systemd, with
/// underscores for dashes). The UID of a static pod is a hash of 32 digits.
pub(super) fn pod_uid_of(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid =
        part.strip_prefix("pod").or_else(|| part.rsplit_once("-pod").map(|(_, uid)| uid))?;
    let uid = uid.replace('_', "-");
    let groups: Vec<&str> = uid.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let is_uid = matches!(lengths[..], [8, 4, 4, 4, 12] | [32]);
    (is_uid && groups.iter().all(|group| is_hex(group))).then_some(uid)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "b6b1ee3b2a7e4f0c9d5a8f7e6c1d2b3a4958677685746352413021fedcba9876";
    const OUTER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    const SLICED: &str = "8dbc5577_d0e2_4706_8787_57d52c03ddf2";

    /// `pod`: the expected UID; `None` for a container without a pod.
    fn check(cgroup: &str, pod: Option<&str>) {
        let pod_uid = pod.map(Into::into);
        let expected = Some(Container { id: ID.into(), pod_uid });
        assert_eq!(container_of(cgroup), expected, "{cgroup}");
    }

    #[test]
    fn systemd_driver_names_pod_in_the_slice_and_container_in_the_scope() {
        for prefix in ["cri-containerd", "crio", "docker"] {
            for qos in ["kubepods-besteffort-pod", "kubepods-burstable-pod", "kubepods-pod"] {
                let class = qos.trim_end_matches("-pod");
                let path = format!(
                    "/kubepods.slice/{class}.slice/{qos}{SLICED}.slice/{prefix}-{ID}.scope"
                );
                check(&format!("0::{path}\n"), Some(UID));
                check(&format!("12:pids:{path}\n1:name=systemd:{path}\n"), Some(UID));
            }
        }
    }

    #[test]
    fn cgroupfs_driver_names_pod_and_container_as_they_are() {
        for container in [ID.to_owned(), format!("crio-{ID}")] {
            for class in ["/burstable", "/besteffort", ""] {
                let path = format!("/kubepods{class}/pod{UID}/{container}");
                check(&format!("0::{path}\n"), Some(UID));
                check(&format!("5:memory:{path}\n"), Some(UID));
            }
        }
    }

    #[test]
    fn containerd_with_a_systemd_name_under_cgroupfs_is_read() {
        let slice = format!("kubepods-burstable-pod{SLICED}.slice");
        let service = "/system.slice/containerd.service";
        check(&format!("0::{service}/{slice}:cri-containerd:{ID}\n"), Some(UID));
    }

    #[test]
    fn static_pod_has_a_hash_for_a_uid() {
        let hash = "d4d5e2f1a0b9c8d7e6f5a4b3c2d1e0f9";
        check(&format!("0::/kubepods/burstable/pod{hash}/{ID}\n"), Some(hash));
        let slice = format!("kubepods-burstable-pod{hash}.slice");
        let path = format!("/kubepods.slice/kubepods-burstable.slice/{slice}/crio-{ID}.scope");
        check(&format!("0::{path}\n"), Some(hash));
    }

    #[test]
    fn group_that_a_container_made_within_itself_is_the_containers() {
        let scope = format!("/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{ID}.scope");
        check(&format!("0::{scope}/container\n"), Some(UID));
        check(&format!("0::{scope}/init.scope/workers\n"), Some(UID));
    }

    #[test]
    fn innermost_of_nested_containers_counts() {
        let inner = format!("kubelet/kubepods/besteffort/pod{UID}/{ID}");
        check(&format!("0::/docker/{OUTER}/{inner}\n"), Some(UID));
        let slice = format!("kubelet-kubepods-besteffort-pod{SLICED}.slice");
        let path = format!("/kubelet.slice/kubelet-kubepods.slice/{slice}");
        check(&format!("0::{path}/cri-containerd-{ID}.scope\n"), Some(UID));
    }

    #[test]
    fn container_without_a_pod_has_an_id_only() {
        check(&format!("0::/docker/{ID}\n"), None);
        check(&format!("0::/system.slice/docker-{ID}.scope\n"), None);
        check(&format!("0::/machine.slice/libpod-{ID}.scope/container\n"), None);
        // Another container of the pod, as seen from the exporter's own control group
        // namespace.
        check(&format!("0::/../cri-containerd-{ID}.scope\n"), None);
    }

    #[test]
    fn hierarchy_that_names_the_pod_goes_before_one_that_does_not() {
        let lines =
            format!("9:misc:/docker/{OUTER}\n4:memory:/kubepods/burstable/pod{UID}/{ID}\n");
        check(&lines, Some(UID));
    }

    #[test]
    fn process_outside_a_container_has_none() {
        let check = |cgroup: &str| assert_eq!(container_of(cgroup), None, "{cgroup}");
        check("0::/user.slice/user-1000.slice/session-3.scope\n");
        check("0::/\n");
        check("0::/..\n");
        check("");
        check("nonsense");
        check(&format!("0::/kubepods.slice/kubepods-pod{SLICED}.slice\n"));
        check(&format!("0::/kubepods.slice/crio-conmon-{ID}.scope\n"));
        check(&format!("0::/docker/{}\n", ID.replace('b', "g")));
        check(&format!("0::/docker/{ID}0\n"));
    }
}
