"""The wheel of `pip install stepmem`, installed into a fresh environment: program, client, manual pages, and nothing else.

Built around the program that the other tests use; STEPMEM_WHEEL names another one."""

from __future__ import annotations

import email
import fcntl
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import zipfile
from typing import Any

import pytest
from conftest import BINARY, DEADLINE, LEAK, ROOT, await_true
from test_package import ENTRY_POINTS

import stepmem

PAGES = (
    "share/man/man1/stepmem.1",
    "share/man/man1/stepmem-run.1",
    "share/bash-completion/completions/stepmem",
    "share/zsh/site-functions/_stepmem",
    "share/fish/vendor_completions.d/stepmem.fish",
)

class Environment:
    """A fresh virtual environment with the wheel, and with nothing else but pip."""

    def __init__(self, path: pathlib.Path, wheel: pathlib.Path) -> None:
        self.path, self.wheel = path, wheel
        self.program = str(path / "bin/stepmem")
        self.python = str(path / "bin/python")

    def output(self, *command: str) -> str:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
        return subprocess.run(command, env=variables, cwd=self.path, capture_output=True, text=True, check=True).stdout


def installed(folder: pathlib.Path) -> Environment:
    """Makes the environment, unless another worker has: a folder with a file `done`."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            wheel = os.environ.get("STEPMEM_WHEEL") or built(folder)
            subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
            pip = [str(folder / "venv/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", "--no-index", wheel], check=True)
            done.write_text(wheel)
        return Environment(folder / "venv", pathlib.Path(done.read_text()))


def built(folder: pathlib.Path) -> str:
    script = [str(ROOT / "packaging/wheel.sh"), "dev", str(folder)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
    return subprocess.run(script, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture
def environment(tmp_path_factory: Any, worker_id: str) -> Environment:
    base = tmp_path_factory.getbasetemp()
    return installed((base if worker_id == "master" else base.parent) / "wheel")


def test_wheel_is_for_any_python_on_glibc_and_requires_nothing(environment):
    assert re.fullmatch(rf"stepmem-{stepmem.__version__}-py3-none-manylinux_2_\d+_{os.uname().machine}\.whl", environment.wheel.name)
    with zipfile.ZipFile(environment.wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(files.read(metadata))
        entries = files.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert entries.split() == ENTRY_POINTS
    assert (fields["Name"], fields["Version"], fields["Requires-Python"]) == ("stepmem", stepmem.__version__, ">=3.9")
    assert fields["Requires-Dist"] is None and fields["License-Expression"] == "Apache-2.0"
    listed = environment.output(environment.python, "-m", "pip", "list", "--format", "freeze", "--exclude", "pip", "--exclude", "setuptools")
    assert listed.splitlines() == [f"stepmem=={stepmem.__version__}"]


def test_wheel_has_the_client_as_it_is_and_the_program_that_was_built(environment):
    package = ROOT / "python/stepmem"
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".typed")]
    sources = {str(path.relative_to(package.parent)): path.read_bytes() for path in files}
    with zipfile.ZipFile(environment.wheel) as files:
        packed = {name: files.read(name) for name in files.namelist() if name.startswith("stepmem/")}
        (program,) = [name for name in files.namelist() if name.endswith(".data/scripts/stepmem")]
        if "STEPMEM_WHEEL" not in os.environ:
            assert files.read(program) == pathlib.Path(BINARY).read_bytes()
        assert not [name for name in files.namelist() if str(ROOT).encode() in files.read(name) and name != program]
    assert packed == sources


def test_wheel_has_manual_pages_and_completions(environment):
    for page in PAGES:
        assert (environment.path / page).stat().st_size > 0, page
    assert (environment.path / PAGES[1]).read_text() == environment.output(environment.program, "man", "run")


def test_program_and_client_of_one_wheel_have_one_version(environment):
    client = environment.output(environment.python, "-c", "import stepmem; print(stepmem.__version__, stepmem.__file__)").split()
    assert environment.output(environment.program, "--version") == f"stepmem {client[0]}\n"
    assert pathlib.Path(client[1]).is_relative_to(environment.path)


def test_demo_of_the_wheel_finds_its_leak(environment, start):
    demo = start(command=(environment.program, "demo", "--log.level", "info"))
    await_true("a creeping rank", lambda: [each for each in demo.status()["findings"] if each["kind"].startswith("CREEP_")], 60)
    creeping = {each["rank"] for each in demo.status()["findings"] if each["kind"].startswith("CREEP_")}
    assert creeping == {3}


def test_run_of_the_wheel_watches_the_python_beside_it(environment, home, tmp_path, without_cuda):
    script = tmp_path / "plain_leak.py"
    script.write_text(textwrap.dedent(LEAK))
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": without_cuda}
    command = [environment.program, "run", "--no-nvml", "--web.listen-address", "127.0.0.1:0", "--", environment.python, str(script)]
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    assert "MEMORY CREEP" in ended.stderr and list(tmp_path.glob("logs/*/*/final_summary.json")), ended.stderr
