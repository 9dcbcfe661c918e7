"""`stepmem run`: what the command is given, which processes are watched, and what happens to the command if stepmem fails."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
from conftest import BINARY, DEADLINE, LEAK, ROOT, STUB, await_true, command_line, is_alive

OPTIONS = ("--no-nvml", "--web.listen-address", "127.0.0.1:0")

STEPS = """
    import sys, time
    import torch
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for _ in range(int(sys.argv[1])):
        optimizer.step()
        time.sleep(0.001)
"""

class Run:
    """`stepmem run OPTIONS -- COMMAND` in a directory and a process group of its own."""

    def __init__(self, cwd: pathlib.Path, arguments: List[str], variables: Dict[str, Optional[str]]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "XDG_", "PYTHONPATH"))}
        environment = {**kept, **variables}
        self.process = subprocess.Popen(
            [BINARY, "run", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={name: value for name, value in environment.items() if value is not None},
            preexec_fn=os.setpgrp,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def children(self) -> List[int]:
        return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def child(self, words: str) -> int:
        """The child whose command line begins with these words."""
        return next(pid for pid in self.children() if command_line(pid).startswith(words))

    def ended(self) -> "Ended":
        out, err = self.process.communicate(timeout=DEADLINE)
        return Ended(self.process.returncode, out, err)


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def notes(self) -> str:
        """What stepmem said, without the line that says that it watches."""
        return re.sub(r"(?m)^stepmem: watching; page .*\n", "", self.err)


@pytest.fixture
def run(tmp_path: pathlib.Path, home: pathlib.Path) -> Iterator[Callable[..., Run]]:
    """Starts commands: `run("sh", "-c", …, options=[…], NAME=value…)`."""
    started: List[Run] = []

    def start_one(*command: str, options: "tuple[str, ...]" = (), **variables: Any) -> Run:
        started.append(Run(tmp_path, [*OPTIONS, *options, "--", *command], {"HOME": str(home), **variables}))
        return started[-1]

    yield start_one
    for each in started:
        if each.process.poll() is None:
            for pid in [*each.children(), each.pid]:
                os.kill(pid, signal.SIGKILL)
            each.process.communicate()


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Callable[[str], str]:
    def write(code: str) -> str:
        path = tmp_path / f"script{len(list(tmp_path.glob('script*')))}.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    return write


def python(run: Callable[..., Run], *arguments: str, **named: Any) -> Run:
    """Runs Python with the stub of PyTorch."""
    return run(sys.executable, *arguments, **{"PYTHONPATH": STUB, **named})


@pytest.mark.parametrize(
    "command, code",
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -SEGV $$"], 139),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN)"], 128 + signal.SIGRTMIN),
        (["no-such-command"], 127),
        (["/etc"], 126),
    ],
)
def test_exit_code_is_the_commands_as_a_shell_has_it(run, command, code):
    assert run(*command).ended().code == code


def test_command_has_the_terminal_the_group_and_the_streams_that_stepmem_was_given(run, script):
    path = script("import os, signal, sys; print(os.getpgrp(), sys.stdin.read(), signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    started = run(sys.executable, path)
    assert started.process.stdin is not None
    started.process.stdin.write("typed")
    started.process.stdin.close()
    started.process.stdin = None
    assert started.ended().out == f"{started.pid} typed set()\n"


def test_script_without_an_interpreter_line_runs_as_in_a_shell(run, tmp_path):
    path = tmp_path / "plain"
    path.write_text("exit 5\n")
    path.chmod(0o755)
    assert run(str(path)).ended().code == 5


def test_unknown_option_is_an_error_before_anything_runs(run, tmp_path):
    for wrong in ("--no-such-option", "--rank.ttl=soon"):
        ended = run("touch", "started", options=(wrong,)).ended()
        assert ended.code in (1, 2) and wrong.partition("=")[0] in ended.err, ended.err
    assert not (tmp_path / "started").exists()


def test_setting_in_the_environment_that_is_wrong_does_not_keep_the_command_from_starting(run):
    ended = run("sh", "-c", "exit 7", STEPMEM_RANK_TTL="soon").ended()
    assert ended.code == 7 and "rank.ttl: STEPMEM_RANK_TTL" in ended.err


def test_killed_supervisor_leaves_the_command_running_and_its_summary_is_written(run, script, tmp_path):
    started = python(run, "-u", script("print('ready')\nimport sys; sys.stdin.readline()\nprint('on')\nsys.argv = ['', '50']\n" + textwrap.dedent(STEPS)))
    assert started.line() == "ready"
    started.kill(signal.SIGKILL)
    started.process.wait()
    assert started.process.stdin is not None
    started.process.stdin.write("\n")
    started.process.stdin.flush()
    assert started.line() == "on"
    await_true("the summary", lambda: list((tmp_path / "logs").rglob("final_summary.json")))


def test_killed_exporter_does_not_change_the_command(run):
    started = run("sh", "-c", "echo ready; read line; exit 7")
    assert started.line() == "ready"
    os.kill(started.child("stepmem run --part=exporter"), signal.SIGKILL)
    ended = started.ended()
    assert ended.code == 7
    assert "no summary: the exporter ended early" in ended.err


def test_exporter_that_is_told_to_stop_stays_as_long_as_the_command(run):
    started = run("sh", "-c", "echo ready; read line; exit 7")
    assert started.line() == "ready"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(started.child("stepmem run --part=exporter"), number)
    ended = started.ended()
    assert ended.code == 7 and "exporter ended" not in ended.err


@pytest.mark.parametrize("n_files", [4, 6, 8, 10, 14])
def test_command_runs_however_few_files_stepmem_may_open(n_files, tmp_path):
    shell = f"ulimit -n {n_files}; exec {BINARY} run {' '.join(OPTIONS)} -- sh -c 'exit 7'"
    ended = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 7, ended.stderr


def test_command_runs_where_nothing_can_be_written(run, tmp_path):
    ended = run("sh", "-c", "exit 7", options=("--summary.dir=/dev/full/logs",), HOME="/dev/full", TMPDIR="/dev/full").ended()
    assert ended.code == 7, ended.err
    assert "stepmem: the client is in " in ended.err and "XDG_CACHE_HOME" in ended.err


def test_command_runs_where_nothing_at_all_can_be_written(tmp_path):
    places = ["/tmp", "/var/tmp", "/dev/shm"]
    mounts = (f"mount --bind {place} {place} && mount -o remount,bind,ro {place}" for place in places if os.path.isdir(place))
    unshare = ["unshare", "--mount", "sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "sh"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    variables.update(HOME="/dev/full", TMPDIR="/dev/full")
    command = [*unshare, BINARY, "run", *OPTIONS, "--", "sh", "-c", "exit 7"]
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 7, ended.stderr
    assert "Python processes are not watched: /dev/full/.cache/stepmem: Not a directory" in ended.stderr, ended.stderr
    assert "XDG_CACHE_HOME" in ended.stderr, ended.stderr


def test_long_path_of_the_runtime_directory_is_not_used_for_the_socket(run, tmp_path, script):
    long = tmp_path / ("x" * 100)
    long.mkdir(mode=0o700)
    started = python(run, script(STEPS), "50", XDG_RUNTIME_DIR=str(long))
    ended = started.ended()
    assert ended.code == 0 and "steps 1 to 50" in ended.err, ended.err


def test_page_listens_on_the_next_port_if_its_own_is_taken(run):
    first = run("sh", "-c", "read line", options=("--web.listen-address=127.0.0.1:0",))
    assert first.process.stderr is not None
    port = int(re.search(r"http://127.0.0.1:(\d+)/", first.process.stderr.readline())[1])
    options = ("--no-nvml", f"--web.listen-address=127.0.0.1:{port}")
    kept = {**os.environ}
    ended = subprocess.run([BINARY, "run", *options, "--", "true"], capture_output=True, text=True, env=kept, timeout=DEADLINE)
    assert ended.returncode == 0
    found = int(re.search(r"http://127.0.0.1:(\d+)/", ended.stderr)[1])
    assert found > port and f"127.0.0.1:{port} is taken; port {found} instead" in ended.stderr


def test_what_the_command_leaves_running_stays(run):
    started = run("sh", "-c", "sleep 60 >/dev/null 2>&1 </dev/null & echo $!")
    left = int(started.line())
    assert started.ended().code == 0
    assert is_alive(left)
    os.kill(left, signal.SIGKILL)


def test_first_process_of_a_container_reaps_what_is_left_to_it(tmp_path):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    orphans = "for i in 1 2 3; do (sh -c 'sleep 0.05' &) ; done; sleep 0.5; ps -eo pid,stat | awk '$2 ~ /Z/' | wc -l; kill -TERM 1; sleep 5"
    ended = subprocess.run(
        [*unshare, BINARY, "run", *OPTIONS, "--", "sh", "-c", orphans], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
    )
    assert ended.stdout.strip() == "0", ended.stderr
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr


def test_steps_of_a_plain_program_are_counted_and_summed_up(run, script, tmp_path):
    ended = python(run, script(STEPS), "60", options=("--summary-json=out.json",)).ended()
    assert ended.code == 0, ended.err
    assert "1 rank, steps 1 to 60" in ended.err
    (folder,) = {path.parent for path in (tmp_path / "logs").rglob("final_summary.*")}
    assert f"Written to {folder.relative_to(tmp_path)}/final_summary.txt" in ended.err
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads((folder / "final_summary.json").read_text())


def test_processes_of_a_shell_script_are_watched(run, script):
    path = script(STEPS)
    ended = python(run, "-c", f"import subprocess; subprocess.run(['bash', '-c', '{sys.executable} {path} 30 && {sys.executable} {path} 40'])").ended()
    assert "steps 1 to 30" in ended.err and "steps 1 to 40" in ended.err


def test_leak_has_a_line_when_it_is_found_and_fails_the_command_if_asked(run, script, without_cuda):
    path = script(LEAK)
    started = [python(run, path, options=options, PYTHONPATH=without_cuda) for options in ((), ("--fail-on=creep:warning",), ("--fail-on=pressure",))]
    for each, code in zip(started, (0, 3, 0)):
        ended = each.ended()
        assert ended.code == code, ended.err
        assert re.search(r"stepmem: MEMORY CREEP \((warning|critical)\), rank 0 of script0-\S+: .*out of memory in (about \d|less than a second)", ended.err), ended.err
        assert re.search(r"(?m)^MEMORY CREEP \((warning|critical)\) on rank 0$", ended.err), ended.err


def test_failing_command_keeps_its_code_whatever_the_verdict(run, script, without_cuda):
    failing = script(textwrap.dedent(LEAK) + "raise SystemExit(9)\n")
    ended = python(run, failing, options=("--fail-on=any:warning",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 9 and "MEMORY CREEP" in ended.err


def test_address_that_the_user_set_wins(run, script, exporter):
    ended = python(run, script(STEPS), "20", STEPMEM_PUSH_URL=exporter.url).ended()
    assert exporter.rank()["steps_total"] == 20
    assert ended.code == 0 and "nothing was watched" in ended.err


@pytest.mark.parametrize(
    "variables, reason",
    [
        ({"STEPMEM_DISABLED": "1"}, "STEPMEM_DISABLED is set, which turns the client off"),
        ({"STEPMEM_DISABLED": "yes"}, "STEPMEM_DISABLED is set, which turns the client off"),
        ({"STEPMEM_PUSH_URL": "http://127.0.0.1:9"}, "STEPMEM_PUSH_URL is set, so what ranks report goes to another exporter"),
        ({"STEPMEM_DISABLED": "0"}, "Python ran, but imported no PyTorch"),
    ],
)
def test_variable_that_keeps_the_client_away_is_the_reason(run, variables, reason):
    ended = python(run, "-c", "import stepmem" if "STEPMEM_PUSH_URL" in variables else "pass", **variables).ended()
    assert ended.code == 0
    assert f"stepmem: nothing was watched: {reason}" in " ".join(ended.err.split()), ended.err


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-I", "-c", "pass"], "no Python started that could be watched"),
        (["-S", "-c", "pass"], "no Python started that could be watched"),
        (["-E", "-c", "pass"], "no Python started that could be watched"),
        (["-c", "pass"], "Python ran, but imported no PyTorch, nor reported steps itself (stepmem.step() reports steps of any kind)"),
        (["-c", "import torch.optim.optimizer"], "none of its optimizers stepped"),
    ],
)
def test_command_that_could_not_be_watched_is_named_as_such(run, arguments, reason):
    ended = python(run, *arguments).ended()
    assert ended.code == 0
    assert ended.notes.startswith("stepmem: nothing was watched: ") and reason in ended.notes, ended.err


@pytest.mark.parametrize("activation", ["unset PYTHONPATH", "export PYTHONNOUSERSITE=1; unset PYTHONPATH", "export PYTHONPATH=/nowhere"])
def test_activation_that_replaces_the_search_path_hides_the_client_and_is_said_to(run, tmp_path, activation):
    """As activate.d of a conda environment, or a module file, may do."""
    (tmp_path / "activate").write_text(activation + "\n")
    ended = run("bash", "-c", f". ./activate && {sys.executable} -c 'print(1)'").ended()
    assert (ended.code, ended.out) == (0, "1\n")
    assert ended.notes.startswith("stepmem: nothing was watched: no Python started that could be watched"), ended.err


def test_other_interpreter_runs_on_unwatched_and_is_said_to_be(run, tmp_path):
    """PyPy and the like: `sitecustomize` runs in an interpreter that is not CPython, and does nothing."""
    (tmp_path / "sitecustomize.py").write_text("")
    code = """
        import os, sys, types
        folder = next(entry for entry in os.environ["PYTHONPATH"].split(":") if "/client-" in entry)
        sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), "name": "other"})
        before = list(sys.meta_path)
        sys.path.insert(0, folder)
        import sitecustomize
        print(sys.meta_path == before, sorted(os.listdir(os.environ["STEPMEM_TRACES"])))
    """
    ended = run(sys.executable, "-I", "-S", "-c", textwrap.dedent(code)).ended()
    assert (ended.code, ended.out) == (0, "True ['other', 'push.sock', 'push.sock.lock']\n"), ended.err
    assert "no Python started that could be watched (CPython 3.9 or newer" in ended.notes, ended.err


def modules(run: Callable[..., Run], *options: str) -> List[str]:
    show = [*options, "-c", "import sys; print(*sorted(sys.modules), sep=',')"]
    return run(sys.executable, *show).ended().out.strip().split(",")


def test_process_without_pytorch_has_one_module_more(run):
    bare = subprocess.run([sys.executable, "-c", "import sys; print(*sorted(sys.modules), sep=',')"], capture_output=True, text=True)
    assert set(modules(run)) - set(bare.stdout.strip().split(",")) <= {"sitecustomize"}


def test_sitecustomize_that_is_there_runs_once_and_first_things_stay_first(run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nprint('own', __file__, sys.path[1])\n")
    (own / "stepmem.py").write_text("print('their stepmem')\n")
    show = 'import sys, sitecustomize, stepmem; print(sitecustomize.__file__, sys.path[1], "/client-" in sys.path[-1])'
    ended = run(sys.executable, "-c", show, PYTHONPATH=str(own)).ended()
    file = f"{own}/sitecustomize.py"
    lines = ended.out.splitlines()
    assert lines[0].split()[:2] == ["own", file] and len(lines) == 3
    assert lines[1:] == ["their stepmem", f"{file} {own} True"], ended.err


def test_error_of_a_sitecustomize_is_reported_as_without_stepmem(run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for code in ("1 / 0", "import no_such_module", "raise ImportError('x')"):
        (own / "sitecustomize.py").write_text(code + "\n")
        bare = subprocess.run([sys.executable, "-c", "print(1)"], env={"PYTHONPATH": str(own)}, capture_output=True, text=True)
        ended = run(sys.executable, "-c", "print(1)", PYTHONPATH=str(own)).ended()
        assert ended.out == bare.stdout == "1\n"
        assert bare.stderr in ended.err, (bare.stderr, ended.err)


def test_sitecustomize_is_valid_in_old_and_new_pythons():
    source = (ROOT / "python/run/sitecustomize.py").read_text()
    lib2to3 = pytest.importorskip("lib2to3.pgen2.driver", reason="Python 3.13 and newer cannot parse Python 2")
    from lib2to3 import pygram, pytree

    lib2to3.Driver(pygram.python_grammar, convert=pytree.convert).parse_string(source)
    for minor in range(4, sys.version_info[1] + 1):
        import ast

        ast.parse(source, feature_version=(3, minor))


def test_import_in_many_threads_finds_every_module(run, script):
    code = """
        import sys, threading
        names = [name for name in sorted(sys.stdlib_module_names) if name in ("csv", "json", "queue", "sched", "shelve", "cmd", "zlib", "array", "math", "bisect")]
        begin = threading.Barrier(len(names) + 1)
        failed = []
        def load(name):
            begin.wait()
            try:
                __import__(name)
            except BaseException as error:
                failed.append(repr(error))
        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        begin.wait()
        import torch.optim.optimizer
        for thread in threads:
            thread.join()
        print(failed)
    """
    assert python(run, script(code)).ended().out == "[]\n"


def test_inner_run_keeps_its_command_and_its_exporter(run, script):
    inner = [BINARY, "run", *OPTIONS, "--", sys.executable, script(STEPS), "30"]
    ended = run(*inner, PYTHONPATH=STUB).ended()
    assert ended.code == 0 and "steps 1 to 30" in ended.err


@pytest.mark.parametrize("n_files", range(4, 20))
def test_too_few_files_are_a_plain_error(tmp_path, home, n_files):
    for command, code in ((["run", *OPTIONS, "--", "sh", "-c", "exit 7"], 7), (["serve", *OPTIONS], 1)):
        if command[0] == "serve" and n_files > 10:
            continue
        shell = ["sh", "-c", f'ulimit -n {n_files}; exec "$@"', "sh", BINARY, *command]
        ended = subprocess.run(shell, cwd=tmp_path, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, timeout=60)
        assert ended.returncode == code, ended.stderr
        assert "panicked" not in ended.stderr and "backtrace" not in ended.stderr, ended.stderr
        is_watching = "stepmem: watching; page http" in ended.stderr and "cannot listen" not in ended.stderr
        assert is_watching or "Too many open files" in ended.stderr, ended.stderr


def test_runs_that_end_at_once_leave_one_link_to_a_whole_summary(run, script, tmp_path):
    path = script("import os\n" + textwrap.dedent(STEPS) + "open(os.environ['STEPMEM_RUN'], 'w').close()\nwhile not os.path.exists('over'): time.sleep(0.01)\n")
    names = [f"run{n}" for n in range(5)]
    started = [python(run, path, "30", STEPMEM_RUN=name) for name in names]
    await_true("all have stepped", lambda: all((tmp_path / name).exists() for name in names))
    (tmp_path / "over").touch()
    for each in started:
        ended = each.ended()
        assert ended.code == 0 and "is not a link" not in ended.err, ended.err
    logs = tmp_path / "logs"
    latest = logs / "latest"
    assert latest.is_symlink() and json.loads((latest / "final_summary.json").read_text())["run"] in names
    assert sorted(entry.name for entry in logs.iterdir()) == ["latest", *names], "nothing is left"
    for name in names:
        assert json.loads((logs / name / "latest/final_summary.json").read_text())["run"] == name
