"""The control group that limits this process's memory, in trees of files as Linux 6.8 (version 2) and 5.15 (version 1) write them."""

from __future__ import annotations

import os
import pathlib
from typing import Callable, Optional

import pytest
from conftest import Exporter, Training, await_true

from stepmem import _cgroup
from stepmem._cgroup import NO_READING, UNKNOWN, Container, tightest
from stepmem._readers import Capacity, HostReader

MIB = 1 << 20

STAT = """anon {anon}
file 8388608000
kernel {kernel}
kernel_stack 3145728
pagetables 41943040
sec_pagetables 0
percpu 1048576
sock 4096
vmalloc 0
shmem {shmem}
zswap 0
file_mapped 1048576000
slab_reclaimable 209715200
slab_unreclaimable 52428800
slab 262144000
workingset_refault_anon 0
"""

EVENTS = "low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 0\n"


class Tree:
    """Control groups in a folder, which this process finds as its own."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.own, self.boot = folder / "cgroup", folder / "own", folder / "boot_id"
        self.root.mkdir()
        self.boot.write_text("8d5f6a1e-1111-4222-8333-444455556666\n")
        for name, path in (("ROOT", self.root), ("OWN_GROUPS", self.own), ("BOOT_ID", self.boot)):
            monkeypatch.setattr(_cgroup, name, str(path))

    def is_in(self, groups: str) -> "Tree":
        self.own.write_text(groups)
        return self

    def group(self, path: str, limit: str, anon: int = 0, shmem: int = 0) -> "Tree":
        """Writes a group of version 2, whose kernel memory takes 100 MiB beyond what is reclaimable."""
        kernel = 209715200 + 100 * MIB
        return self.files(
            path,
            {
                "memory.max": limit + "\n",
                "memory.stat": STAT.format(anon=anon, shmem=shmem, kernel=kernel),
                "memory.events": EVENTS,
            },
        )

    def files(self, path: str, files: "dict[str, str]") -> "Tree":
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.root / path / name).write_text(text)
        return self


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch).is_in("0::/\n")


def limit() -> Optional[int]:
    group = tightest()
    return None if group is None else group.limit


def test_container_is_its_limit_and_what_the_kernel_cannot_reclaim(tree: Tree) -> None:
    tree.group("", str(64 * MIB), anon=20 * MIB, shmem=5 * MIB)
    number, limit, used, n_kills = Container().read(0.0)
    assert (limit, used, n_kills) == (64 * MIB, 125 * MIB + 4096, 1)
    assert number == os.stat(tree.root).st_ino ^ 0x8D5F6A1E1111422


def test_group_is_the_same_for_all_its_processes_and_another_on_another_machine(tree: Tree) -> None:
    tree.group("a", "1000").group("b", "1000")

    def number(group: str) -> int:
        return Container().read(0.0)[0] if tree.is_in(f"0::/{group}\n") else UNKNOWN

    assert number("a") == number("a") != number("b")
    here = number("a")
    tree.boot.write_text("9d5f6a1e-1111-4222-8333-444455556666\n")
    assert number("a") != here


def test_smallest_limit_counts_at_any_level_that_is_visible(tree: Tree) -> None:
    tree.group("", "max").group("pod", "3000").group("pod/container", "4000").is_in("0::/pod/container\n")
    assert limit() == 3000
    assert Container().read(0.0)[0] == os.stat(tree.root / "pod").st_ino ^ 0x8D5F6A1E1111422
    assert limit() == 3000 and tree.group("pod/container", "2000") and limit() == 2000
    tree.group("pod", "max")
    assert limit() == 2000


@pytest.mark.parametrize("path", ["/kubepods/pod1/gone", "/../other"])
def test_container_that_sees_its_group_as_the_root_finds_it_under_any_path(tree: Tree, path: str) -> None:
    tree.group("", "4000").is_in(f"0::{path}\n")
    (tree.root.parent / "other").mkdir()
    assert limit() == 4000


@pytest.mark.parametrize("text", ["max\n", "", "0\n", "-1\n", "12x\n", str(1 << 53), "9" * 4000, "9223372036854771712\n", "\0" * 100])
def test_no_limit_and_garbage_are_no_container(tree: Tree, text: str) -> None:
    tree.group("", text)
    assert Container().read(0.0) == NO_READING


def test_machine_without_a_container_has_none(tree: Tree) -> None:
    assert Container().read(0.0) == NO_READING
    tree.own.unlink()
    assert Container().read(0.0) == NO_READING


def test_what_cannot_be_read_is_unknown(tree: Tree) -> None:
    tree.files("", {"memory.max": "4000\n"})
    assert Container().read(0.0)[1:] == (4000, UNKNOWN, UNKNOWN)
    tree.files("", {"memory.stat": "anon x\nshmem 5\n\nfile\n", "memory.events": "oom_kill many\n"})
    assert Container().read(0.0)[1:] == (4000, UNKNOWN, UNKNOWN)
    tree.files("", {"memory.stat": "anon 5\n", "memory.events": f"oom_kill {1 << 40}\n"})
    assert Container().read(0.0)[1:] == (4000, 5, (1 << 31) - 1)


def test_files_that_nobody_answers_or_that_never_end_are_not_waited_for(tree: Tree) -> None:
    tree.group("", "4000")
    (tree.root / "memory.stat").unlink()
    os.mkfifo(tree.root / "memory.stat")
    (tree.root / "memory.events").unlink()
    (tree.root / "memory.events").symlink_to("/dev/zero")
    assert Container().read(0.0)[1:] == (4000, UNKNOWN, UNKNOWN)
    (tree.root / "memory.max").unlink()
    (tree.root / "memory.max").mkdir()
    assert Container().read(0.0) == NO_READING


def test_older_kernel_has_its_memory_in_parts(tree: Tree) -> None:
    stat = STAT.format(anon=20 * MIB, shmem=0, kernel=0).replace("kernel 0\n", "")
    tree.group("", "4000").files("", {"memory.stat": stat})
    assert Container().read(0.0)[2] == 20 * MIB + 4096 + 3145728 + 41943040 + 1048576 + 52428800


def test_version_1_counts_anonymous_and_shared_memory(tree: Tree) -> None:
    tree.is_in("4:cpu:/a\n3:memory:/docker/a\n0::/\n").files(
        "memory/docker/a",
        {
            "memory.limit_in_bytes": "9000\n",
            "memory.usage_in_bytes": "8000\n",
            "memory.stat": "cache 7000\nrss 1\nshmem 1\nhierarchical_memory_limit 9000\ntotal_cache 5000\ntotal_rss 700\ntotal_shmem 80\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
    )
    assert Container().read(0.0)[1:] == (9000, 780, 2)


def test_container_is_read_seldom_unless_it_is_nearly_full(tree: Tree) -> None:
    tree.group("", str(1024 * MIB), anon=100 * MIB)

    def n_readings(anon: int) -> int:
        tree.group("", str(1024 * MIB), anon=anon * MIB)
        container = Container()
        return sum(container.read(float(second)) is not NO_READING for second in range(600))

    assert n_readings(100) < 75
    assert n_readings(860) > 500


def test_memory_of_a_rank_without_a_gpu_is_what_the_group_leaves(tree: Tree) -> None:
    tree.group("", str(200 * MIB), anon=20 * MIB, shmem=5 * MIB)
    assert HostReader().capacity() == Capacity(200 * MIB, 75 * MIB - 4096)
    tree.files("", {"memory.stat": ""})
    assert HostReader().capacity() == Capacity(200 * MIB, UNKNOWN)


RANK = """
    import sys
    from stepmem import _cgroup
    _cgroup.ROOT, _cgroup.OWN_GROUPS = sys.argv[1:3]
    import stepmem
    for step in range(1, 4):
        stepmem.step_end(step)
    assert stepmem.flush(60)
    input()
"""


def test_ranks_of_one_container_are_one_container_in_the_exporter(
    tree: Tree, exporter: Exporter, train: "Callable[..., Training]"
) -> None:
    tree.group("", str(64 << 30), anon=20 << 30)
    ranks = [train(RANK, exporter.url, str(tree.root), str(tree.own), RANK=str(rank)) for rank in range(2)]
    await_true("both are in it", lambda: [len(of["ranks"]) for of in exporter.status().get("containers", [])] == [2])
    container = exporter.status()["containers"][0]
    assert (container["limit_bytes"], container["oom_kills"]) == (64 << 30, 1)
    assert container["headroom_bytes"] == (44 << 30) - 100 * MIB - 4096
    for rank in ranks:
        rank.write_line("")
        assert rank.ended().code == 0
