"""Every interpreter of this machine below `stepmem run` and with the bare client: those that the client knows are watched, the
others run as without it. STEPMEM_TEST_PYTHONS names more of them, separated by colons."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Dict, List, Tuple

import pytest
from conftest import BINARY, DEADLINE, INFORMATION, ROOT

QUESTION = "import sys; print('%s %d.%d' % ((getattr(getattr(sys, 'implementation', None), 'name', 'cpython'),) + sys.version_info[:2]))"

STEPS = """
import sys
try:
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for _ in range(50):
        optimizer.step()
except (ImportError, SyntaxError):
    pass
sys.stdout.write("done\\n")
sys.exit(7)
"""


def found() -> "Dict[str, Tuple[str, bool]]":
    """The interpreters by implementation and version, each with its path and whether the client knows it."""
    home = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates: List[str] = [sys.executable, *os.environ.get("STEPMEM_TEST_PYTHONS", "").split(":")]
    # The variable may be of another user, whose folder this one may not read.
    if os.access(home, os.R_OK | os.X_OK):
        candidates += [str(path) for path in sorted(pathlib.Path(home).glob("versions/*/bin/python"))]
    named = [f"python3.{minor}" for minor in range(6, 16)] + ["python2.7", "pypy3"]
    candidates += [path for path in map(shutil.which, named) if path]
    interpreters: "Dict[str, Tuple[str, bool]]" = {}
    for path in filter(None, candidates):
        ended = subprocess.run([path, "-c", QUESTION], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if ended.returncode != 0:
            # A shim of pyenv for a version that is not chosen.
            continue
        name, version = ended.stdout.split()
        known = name == "cpython" and tuple(map(int, version.split("."))) >= (3, 9)
        interpreters.setdefault(f"{name}-{version}", (path, known))
    return interpreters


INTERPRETERS = found()


@pytest.mark.parametrize("name", sorted(INTERPRETERS))
def test_interpreter_is_watched_by_run_if_it_is_known_and_runs_as_without_it(name, tmp_path, home, without_cuda):
    path, is_known = INTERPRETERS[name]
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": without_cuda, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [BINARY, "run", "--no-nvml", "--web.listen-address", "127.0.0.1:0", "--", path, str(script)]
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (7, "done"), ended.stderr
    if is_known:
        assert "steps 1 to 50" in ended.stderr + ended.stdout, ended.stderr
    else:
        assert "nothing was watched: no Python started that could be watched" in ended.stderr, ended.stderr


@pytest.mark.parametrize("name", sorted(name for name, (_, is_known) in INTERPRETERS.items() if is_known))
def test_bare_client_pushes_every_step(name, tmp_path, exporter):
    script = tmp_path / "steps.py"
    script.write_text("import stepmem\nfor step in range(1, 51):\n    stepmem.step_end(step)\n")
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "STEPMEM_PUSH_URL": exporter.url}
    ended = subprocess.run(
        [INTERPRETERS[name][0], "-B", str(script)], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
    )
    assert ended.returncode == 0 and all(map(INFORMATION.match, ended.stderr.splitlines())), ended.stderr
    rank = exporter.rank()
    assert (rank["steps_total"], rank["step"], rank["end"]["outcome"]) == (50, 50, "completed")


def test_uv_run_is_watched(tmp_path, home, without_cuda):
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    uv = [str(ROOT / "target/tools/wheel-venv/bin/uv"), "run", "--no-project", "--offline", "--no-python-downloads"]
    command = [BINARY, "run", "--no-nvml", "--web.listen-address", "127.0.0.1:0", "--", *uv, "--python", sys.executable, str(script)]
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": without_cuda}
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (7, "done"), ended.stderr
    assert "steps 1 to 50" in ended.stderr + ended.stdout, ended.stderr


CACHED = """
import functools, stepmem
@functools.lru_cache(maxsize=MAXSIZE)
def frame(n, kind="rgb"):
    return bytes(20_000)
for n in range(400):
    frame(n)
    frame(n // 2)
    stepmem.step_end(n)
    if n == 60:
        assert stepmem.flush(10)
stepmem.end()
assert stepmem.flush(10)
"""


@pytest.mark.parametrize("maxsize", [1000, None])
@pytest.mark.parametrize("name", sorted(name for name, (_, is_known) in INTERPRETERS.items() if is_known))
def test_bound_of_an_lru_cache_is_reported_by_every_interpreter(name, maxsize, fake, tmp_path):
    exporter = fake(200)
    exporter.actions = [{"type": "holders", "id": "7-h1", "run": "llm", "rank": 0, "steps": 20, "bytes_per_step": 20_000.0}]
    (tmp_path / "cached.py").write_text(CACHED.replace("MAXSIZE", str(maxsize)))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "STEPMEM_PUSH_URL": exporter.url, "STEPMEM_RUN": "llm"}
    ended = subprocess.run(
        [INTERPRETERS[name][0], "-B", "cached.py"], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
    )
    assert ended.returncode == 0, ended.stderr
    (holder,) = exporter.holders[-1]["holders"]
    assert "lru_cache of `frame`" in holder["name"] and holder["bytes_per_step"] == pytest.approx(20_000, rel=0.05)
    if maxsize is None:
        assert "items_max" not in holder
    else:
        assert holder["items_max"] == 1000 and holder["items_per_step"] == pytest.approx(1.0, rel=0.05)
        assert holder["bytes"] == pytest.approx(holder["items"] * 20_000, rel=0.05)
