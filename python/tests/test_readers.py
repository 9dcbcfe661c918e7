"""The memory limit of a process without CUDA."""

from __future__ import annotations

import pathlib

from stepmem._readers import CGROUP_V1_FILES, CGROUP_V2_FILES, Capacity, _cgroup_limits


def cgroup(directory: pathlib.Path, limit: str, used: int, cache: int, shmem: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(limit + "\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 1\nfile {cache}\nshmem {shmem}\n")


def test_limits_of_a_cgroup_and_its_ancestors_are_found(tmp_path):
    cgroup(tmp_path / "pod/container", "4000", used=1000, cache=300)
    cgroup(tmp_path / "pod", "3000", used=2000, cache=0)
    cgroup(tmp_path, "max", used=9000, cache=0)
    limits = _cgroup_limits(str(tmp_path), "/pod/container", CGROUP_V2_FILES)
    assert limits == [Capacity(total=4000, free=3300), Capacity(total=3000, free=1000)]


def test_shared_memory_of_a_cgroup_is_not_free(tmp_path):
    cgroup(tmp_path, "4000", used=3000, cache=1000, shmem=800)
    assert _cgroup_limits(str(tmp_path), "/", CGROUP_V2_FILES) == [Capacity(total=4000, free=1200)]


def test_limit_of_the_root_is_found_if_the_path_is_the_hosts(tmp_path):
    cgroup(tmp_path, "4000", used=5000, cache=0)
    assert _cgroup_limits(str(tmp_path), "/kubepods/pod1", CGROUP_V2_FILES) == [Capacity(total=4000, free=0)]


def test_limit_of_cgroup_v1_that_means_none_is_ignored(tmp_path):
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert _cgroup_limits(str(tmp_path), "/", CGROUP_V1_FILES) == []
