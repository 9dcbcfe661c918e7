"""The package stepmem-client: one small wheel without dependencies."""

from __future__ import annotations

import subprocess
import sys
import zipfile

from conftest import ROOT

import stepmem


ENTRY_POINTS = ["[pytest11]", "stepmem=stepmem.pytest_plugin"]


def test_wheel_is_small_and_typed_and_has_no_dependencies(tmp_path):
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-build-isolation"]
    subprocess.run([*build, "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT / "python")], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"stepmem_client-{stepmem.__version__}-py3-none-any.whl"
    # It reads marks, shared memory and children, searches holders across evaluations and reads bounds since it was 96 KiB.
    # It reads its memory from NVML, which an exporter in another container cannot, since it was 144 KiB.
    # It reports ends of forked processes and notes short calls of models since it was 151 KiB.
    # It owns its descriptors and modules apart from the program, and asks no object of it, since it was 173 KiB.
    # It judges the memory of tests of pytest since it was 180 KiB.
    # It says where it pushes, tells a wrong rank and keeps its token from an address that nobody named since it was 180 KiB.
    # It reads its memory from NVML more often while that moves since it was 180 KiB.
    # It names the step with which training ends, also of a trainer that reports nothing, since it was 180 KiB.
    # It reads malloc's figures, and what the program's code does to a holder, since it was 193 KiB.
    # It tells the line that fills a container of a library, and the pixels of images, since it was 204 KiB.
    # It lets a program checkpoint before memory runs out, and its ranks agree on the step, since it was 208 KiB.
    # It tells what child processes hold of their own from what they share since it was 207 KiB.
    # It names phases of the program's own since it was 208 KiB.
    # It counts the calls of programs without steps since it was 217 KiB.
    # It counts the replays of CUDA graphs, and knows while one is captured, since it was 223 KiB.
    # It ends for a planned restart since it was 225 KiB.
    # It tells the lines that fill items of dictionaries, and counts child processes that it does not read, since it was 233 KiB.
    # It says whether memory grew during a search, and remembers the code that ran when that began, since it was 235 KiB.
    assert wheel.stat().st_size < 238 * 1024
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        metadata = files.read(f"stepmem_client-{stepmem.__version__}.dist-info/METADATA").decode()
        entries = files.read(f"stepmem_client-{stepmem.__version__}.dist-info/entry_points.txt").decode()
    files = [path for path in (ROOT / "python/stepmem").rglob("*") if path.suffix in (".py", ".typed")]
    sources = sorted(str(path.relative_to(ROOT / "python")) for path in files)
    assert sorted(name for name in names if ".dist-info/" not in name) == sources
    assert entries.split() == ENTRY_POINTS
    assert "Requires-Dist" not in metadata and "Requires-Python: >=3.9" in metadata


def test_import_loads_no_heavy_module():
    code = "import sys, stepmem; print([m for m in ('torch', 'http.client', 'logging', 'pickle', 'pytest', 'ssl') if m in sys.modules])"
    bare = [sys.executable, "-S", "-c", code]
    ended = subprocess.run(bare, cwd=ROOT / "python", capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_snapshots_and_figures_are_imported_when_they_are_used():
    code = """
import sys, stepmem
rare = ("stepmem._on_demand", "stepmem._stats")
print([name in sys.modules for name in rare], set(stepmem.__all__) <= set(dir(stepmem)) and "TYPE_CHECKING" not in dir(stepmem))
stepmem.step_end(1)
print([name in sys.modules for name in rare])
from stepmem import *
print([name in sys.modules for name in rare], [name for name in stepmem.__all__ if name not in globals()])
try:
    stepmem.nothing
except AttributeError as error:
    print(error)
"""
    variables = {"PATH": "/usr/bin", "STEPMEM_DISABLED": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "python", env=variables, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == [
        "[False, False] True",
        "[False, False]",
        "[True, True] []",
        "module 'stepmem' has no attribute 'nothing'",
    ]


def test_every_public_name_is_documented():
    for name in stepmem.__all__:
        assert getattr(stepmem, name).__doc__, name
