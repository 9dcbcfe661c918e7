"""The client below `stepmem run`: where it is written, what it shares its name with, and what tools see of it."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import BINARY, STUB
from test_run import OPTIONS, STEPS, python, run, script  # noqa: F401

COUNTED = """
import torch
from torch.optim.optimizer import Optimizer
print("executed", __name__, flush=True)
optimizer = Optimizer()
for _ in range(30):
    optimizer.step()
"""


def of_cache(home: pathlib.Path) -> pathlib.Path:
    (client,) = (home / ".cache/stepmem").iterdir()
    return client


def files(client: pathlib.Path) -> "dict[str, bytes]":
    return {str(path.relative_to(client)): path.read_bytes() for path in client.rglob("*.py")}


@pytest.mark.parametrize("how", ["script", "script beside modules of ours", "package", "package's module", "module beside the script", "namespace"])
def test_program_of_the_same_name_runs_once_and_is_watched(run, tmp_path, how):  # noqa: F811
    package = tmp_path / "stepmem"
    if how.startswith("script"):
        (tmp_path / "stepmem.py").write_text(COUNTED)
        for name in ("_auto", "_client") if how.endswith("ours") else ():
            (tmp_path / f"{name}.py").write_text("print('executed', __name__, flush=True)\n")
        arguments, names = ["stepmem.py"], ["__main__"]
    elif how == "package":
        package.mkdir()
        (package / "__init__.py").write_text("print('executed', __name__, flush=True)\n")
        (package / "__main__.py").write_text(COUNTED)
        arguments, names = ["-m", "stepmem"], ["stepmem", "__main__"]
    elif how == "package's module":
        package.mkdir()
        (package / "__init__.py").write_text("print('executed', __name__, flush=True)\n")
        (package / "train.py").write_text(COUNTED)
        arguments, names = ["-m", "stepmem.train"], ["stepmem", "__main__"]
    elif how == "module beside the script":
        (tmp_path / "stepmem.py").write_text("print('executed', __name__, flush=True)\n")
        (tmp_path / "train.py").write_text(COUNTED + "import stepmem\n")
        arguments, names = ["train.py"], ["__main__", "stepmem"]
    else:
        package.mkdir()
        (package / "notes.txt").write_text("a clone of a repository, say")
        (tmp_path / "train.py").write_text(COUNTED)
        arguments, names = ["train.py"], ["__main__"]
    ended = python(run, *arguments).ended()
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [f"executed {name}" for name in names], ended.err
    assert "1 rank, steps 1 to 30" in ended.err, ended.err


def test_package_that_is_installed_is_the_client(run, tmp_path):  # noqa: F811
    (tmp_path / "script.py").write_text(COUNTED + "import sys\nprint(sys.modules['stepmem'].__file__, '_stepmem' in sys.modules)\n")
    installed = pathlib.Path(__file__).parents[1]
    ended = python(run, "script.py", PYTHONPATH=f"{STUB}:{installed}").ended()
    assert ended.out.splitlines()[1] == f"{installed}/stepmem/__init__.py False"
    assert "1 rank, steps 1 to 30" in ended.err, ended.err


@pytest.fixture
def own(tmp_path: pathlib.Path) -> pathlib.Path:
    """A home directory of this test alone, below the system's directory for temporary files."""
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


def test_files_are_private_whole_and_stay(run, own):  # noqa: F811
    run("true", HOME=str(own)).ended()
    client = of_cache(own)
    assert re.fullmatch("client-[0-9a-f]{16}", client.name)
    root = pathlib.Path(__file__).parents[1]
    expected = {str(path.relative_to(root)): path.read_bytes() for path in (root / "stepmem").rglob("*.py")}
    assert "stepmem/_holders/search.py" in expected
    assert files(client) == {**expected, "sitecustomize.py": (root / "run/sitecustomize.py").read_bytes()}
    for path in (client.parent, client, *client.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def changed(client: pathlib.Path) -> None:
    (client / "stepmem/_auto.py").write_bytes(b"raise SystemExit(9)")


def missing(client: pathlib.Path) -> None:
    (client / "sitecustomize.py").unlink()


def more(client: pathlib.Path) -> None:
    (client / "torch.py").write_bytes(b"raise SystemExit(9)")


def more_in_the_package(client: pathlib.Path) -> None:
    (client / "stepmem/os.py").write_bytes(b"raise SystemExit(9)")


def missing_in_the_sub_package(client: pathlib.Path) -> None:
    (client / "stepmem/_holders/heap.py").unlink()


def more_in_the_sub_package(client: pathlib.Path) -> None:
    (client / "stepmem/_holders/os.py").write_bytes(b"raise SystemExit(9)")


def linked(client: pathlib.Path) -> None:
    (client / "sitecustomize.py").rename(client.parent.parent / "elsewhere.py")
    (client / "sitecustomize.py").symlink_to(client.parent.parent / "elsewhere.py")


def linked_as_a_whole(client: pathlib.Path) -> None:
    client.rename(client.parent.parent / "elsewhere")
    client.symlink_to(client.parent.parent / "elsewhere")


def sub_package_linked(client: pathlib.Path) -> None:
    (client / "stepmem/_holders").rename(client.parent.parent / "elsewhere")
    (client / "stepmem/_holders").symlink_to(client.parent.parent / "elsewhere")


def a_file(client: pathlib.Path) -> None:
    client.rename(client.parent.parent / "elsewhere")
    client.write_bytes(b"")


def open_to_all(client: pathlib.Path) -> None:
    (client / "stepmem").chmod(0o777)


def compiled(client: pathlib.Path) -> None:
    for source in ("sitecustomize.py", "stepmem/_auto.py", "stepmem/_holders/search.py"):
        cache = client / source
        (cache.parent / "__pycache__").mkdir(exist_ok=True)
        (cache.parent / "__pycache__" / f"{cache.stem}.{sys.implementation.cache_tag}.pyc").write_bytes(b"\0" * 100)


CHANGES = [changed, missing, more, more_in_the_package, linked, linked_as_a_whole, a_file, open_to_all, compiled]
CHANGES += [missing_in_the_sub_package, more_in_the_sub_package, sub_package_linked]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_written_again_before_anything_runs(run, script, own, change):  # noqa: F811
    run("true", HOME=str(own)).ended()
    client = of_cache(own)
    before = files(client)
    change(client)
    ended = python(run, script(STEPS), "30", HOME=str(own)).ended()
    assert ended.code == 0 and "steps 1 to 30" in ended.err, ended.err
    assert of_cache(own) == client and client.is_dir() and not client.is_symlink()
    assert files(client) == before


def test_runs_that_begin_at_once_share_it(tmp_path, own, script):  # noqa: F811
    path = script(STEPS)
    command = [BINARY, "run", *OPTIONS, "--", sys.executable, path, "30"]
    variables = {**os.environ, "HOME": str(own), "PYTHONPATH": STUB}
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) for _ in range(6)
    ]
    for each in started:
        _, err = each.communicate(timeout=120)
        assert each.returncode == 0 and "steps 1 to 30" in err, err
        assert "stepmem: the client" not in err and "not watched" not in err, err
    assert len(files(of_cache(own))) > 20


def other_client(own: pathlib.Path, name: str, days: float) -> pathlib.Path:
    """A client of another version, last used so many days ago."""
    client = own / ".cache/stepmem" / name
    (client / "stepmem").mkdir(parents=True)
    (client / "stepmem/_auto.py").write_text("")
    os.utime(client, (time.time() - days * 86_400,) * 2)
    return client


def test_clients_of_other_versions_go_once_no_run_has_used_them_for_long(run, own):  # noqa: F811
    run("true", HOME=str(own)).ended()
    ours = of_cache(own)
    old, left = other_client(own, "client-0123456789abcdef", 31), other_client(own, "client-0123456789abcdef.00ff", 31)
    kept = [ours, other_client(own, "client-0000456789abcdef", 29), other_client(own, "summaries", 31), other_client(own, "client-in-use", 31)]
    (own / ".cache/stepmem/client-link").symlink_to(own)
    held = os.open(kept[-1], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)  # as a `run` of that version holds it
    os.utime(ours, (0, 0))
    run("true", HOME=str(own)).ended()
    os.close(held)
    assert not old.exists() and not left.exists()
    assert all((each / "stepmem/_auto.py").exists() for each in kept) and (own / ".cache/stepmem/client-link").is_symlink()
    assert time.time() - ours.stat().st_mtime < 86_400
    run("true", HOME=str(own)).ended()
    assert not kept[-1].exists()


def test_client_is_held_while_its_run_lives(run, own):  # noqa: F811
    started = run("sh", "-c", "echo began; read line", HOME=str(own))
    assert started.line() == "began"
    client = os.open(of_cache(own), os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(client, fcntl.LOCK_EX | fcntl.LOCK_NB)
    started.ended()
    fcntl.flock(client, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(client)


def test_home_below_a_directory_in_which_each_has_its_own(run, script, tmp_path):  # noqa: F811
    """As a HOME below /tmp, in a container: nobody else can replace what is there."""
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky/home").mkdir(mode=0o755)
    ended = python(run, script(STEPS), "30", HOME=str(tmp_path / "sticky/home")).ended()
    assert ended.notes.count("stepmem: ") == 0 and "steps 1 to 30" in ended.err, ended.err
    assert of_cache(tmp_path / "sticky/home").is_dir()


def test_cache_directory_itself_may_be_one_in_which_each_has_its_own(run, script, tmp_path):  # noqa: F811
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    ended = python(run, script(STEPS), "30", XDG_CACHE_HOME=str(tmp_path / "sticky")).ended()
    assert "XDG_CACHE_HOME" not in ended.err and "steps 1 to 30" in ended.err, ended.err


def unsafe(tmp_path: pathlib.Path) -> "tuple[str, str]":
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    return str(tmp_path / "open"), f"everybody may write to {tmp_path}/open"


def of_another(tmp_path: pathlib.Path, uid: int = 4711) -> "tuple[str, str]":
    if os.geteuid() != 0:
        pytest.skip("needs root, to have a directory of another user")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "open/home").mkdir()
    os.chown(tmp_path / "open/home", uid, uid)
    return str(tmp_path / "open/home"), f"another user owns {tmp_path}/open/home"


def of_nobody(tmp_path: pathlib.Path) -> "tuple[str, str]":
    """On a machine, services run as nobody."""
    return of_another(tmp_path, 65534)


def a_file_as_home(tmp_path: pathlib.Path) -> "tuple[str, str]":
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file"), f"{tmp_path}/file/.cache/stepmem: Not a directory (os error 20)"


@pytest.mark.parametrize("place", [unsafe, of_another, of_nobody, a_file_as_home])
def test_client_without_a_place_to_stay_lives_as_long_as_the_command(run, script, tmp_path, place):  # noqa: F811
    home, reason = place(tmp_path)
    path = script("import os\nprint(os.environ['PYTHONPATH'].split(':')[0])\n" + textwrap.dedent(STEPS))
    ended = python(run, path, "30", HOME=home).ended()
    client = ended.out.strip()
    line = f"stepmem: the client is in {client} while the command runs: {reason}; set XDG_CACHE_HOME to a directory that only you can write to\n"
    assert re.search(re.escape(line).replace(re.escape(client), ".*"), ended.err), ended.err
    assert "steps 1 to 30" in ended.err, ended.err
    assert not os.path.exists(client)
    assert not list(tmp_path.rglob("sitecustomize.py"))


def test_tools_open_the_files_of_the_client(run, script, tmp_path):  # noqa: F811
    """As `trace` and coverage do with all that runs, and `inspect` with what it is shown."""
    path = script(STEPS)
    arguments = ["-m", "trace", "--count", "--missing", "--coverdir", str(tmp_path / "counts"), path, "20"]
    ended = python(run, *arguments).ended()
    assert ended.code == 0 and "steps 1 to 20" in ended.err, ended.err
    assert "Error" not in ended.err and "Not printing" not in ended.err, ended.err
    inspected = script("import inspect, torch.optim.optimizer, stepmem\nprint(len(inspect.getsource(stepmem.step_end)) > 50)\n")
    assert python(run, inspected).ended().out == "True\n"


def test_processes_of_the_command_say_nothing_of_their_start(run, script):  # noqa: F811
    """One line says that the command is watched, however many processes it has, and whatever logs they have."""
    logs = script("import logging\nlogging.basicConfig(level=logging.INFO)\n" + textwrap.dedent(STEPS))
    both = " & ".join(f"RANK={rank} {sys.executable} {path} 20" for rank, path in enumerate([script(STEPS), logs, logs]))
    ended = run("bash", "-c", f"{both} & wait", PYTHONPATH=STUB, WORLD_SIZE="3", STEPMEM_RUN="job").ended()
    assert "3 of 3 ranks" in ended.err, ended.err
    assert ended.err.count("stepmem: ") == 1 and ended.err.startswith("stepmem: watching; page "), ended.err
