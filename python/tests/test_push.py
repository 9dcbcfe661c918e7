"""Pushes of a training process, for each way to use the client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from conftest import ROOT, STUB, await_true

import stepmem
from stepmem import _summary
from stepmem._settings import Identity, Settings, _clean, parse_url

LOOP = """
    import stepmem, sys
    for step in range(5):
        with stepmem.step(step):
            pass
    with stepmem.phase("eval"):
        pass
    stepmem.step_end()
    assert stepmem.flush(60)
"""


def test_steps_of_a_plain_loop_reach_the_status_with_resident_memory(exporter, train):
    assert train(LOOP, exporter.url, STEPMEM_RUN="plain").ended().code == 0
    rank = exporter.rank()
    assert (rank["run"], rank["step"], rank["steps_total"], rank["device"]) == ("plain", 5, 6, "cpu")
    assert 1 << 20 < rank["allocated_bytes"] < 1 << 28
    assert rank["total_bytes"] > rank["allocated_bytes"]
    assert exporter.status()["records"]["accepted"] == 7
    assert exporter.metric('stepmem_rank_dropped_records_total{run="plain",rank="0",uuid="cpu"}') == 0


def test_steps_are_pushed_over_a_unix_socket(start, train, tmp_path):
    path = tmp_path / "push.sock"
    exporter = start("--push.unix-socket", str(path))
    assert train(LOOP, f"unix://{path}").ended().code == 0
    assert exporter.rank()["step"] == 5


def test_token_is_sent(start, train, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    exporter = start("--push.listen-address", "127.0.0.1:0", "--push.token-file", str(token))
    without = train(LOOP.replace("assert ", ""), exporter.url).ended()
    assert without.code == 0 and without.err.count("status 401") == 1, without.err
    assert train(LOOP, exporter.url, STEPMEM_PUSH_TOKEN_FILE=str(token)).ended().code == 0
    assert exporter.rank()["step"] == 5


def test_rank_and_attempt_are_those_of_torchrun(exporter, train):
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert train(LOOP, exporter.url, TORCHELASTIC_RUN_ID="job7", **variables).ended().code == 0
    rank = exporter.rank(3)
    shown = {name: rank[name] for name in ("run", "local_rank", "world_size", "node_rank", "attempt")}
    assert shown == {"run": "job7", "local_rank": 1, "world_size": 4, "node_rank": 1, "attempt": 2}


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, (0, None, None, None)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "GROUP_RANK": "2"}, (5, 1, 8, 2)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "NODE_RANK": "2"}, (5, 1, 8, 2)),
        ({"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"}, (6, 2, 8, None)),
        ({"PMI_RANK": "7", "PMI_SIZE": "8", "MPI_LOCALRANKID": "3"}, (7, 3, 8, None)),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_NODEID": "1"}, (9, 1, 16, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "3", "WORLD_SIZE": "4"}, (3, None, 4, None)),
        ({"STEPMEM_RANK": "2", "RANK": "3"}, (2, None, None, None)),
        ({"RANK": "-1"}, (0, None, None, None)),
        ({"RANK": "99999999"}, (0, None, None, None)),
    ],
)
def test_identity_is_that_of_the_launcher(variables, expected):
    who = Identity.read(variables)
    assert (who.rank, who.local_rank, who.world_size, who.node_rank) == expected


@pytest.mark.parametrize(
    "variables, run",
    [
        ({"STEPMEM_RUN": "mine", "TORCHELASTIC_RUN_ID": "its"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "its"}, "its"),
        ({"SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "llm", "SLURM_PROCID": "0"}, "llm-12"),
        ({"STEPMEM_RUN": "a\tb" + "é" * 100}, "ab" + "é" * 63),
    ],
)
def test_run_name_is_one_that_the_exporter_accepts(variables, run):
    assert Identity.read(variables).run == run


@pytest.mark.parametrize(
    "url, expected",
    [
        ("unix:///a/b.sock", "unix:///a/b.sock"),
        ("http://127.0.0.1:9478", "http://127.0.0.1:9478"),
        ("http://[::1]:80/proxy/", "http://::1:80/proxy"),
        ("http://host", "http://host:9478"),
        ("https://user:hidden@host:1/x", "https://host:1/x"),
    ],
)
def test_valid_urls_are_parsed(url, expected):
    assert str(parse_url(url)) == expected


@pytest.mark.parametrize("url", ["ftp://host:1", "https://", "unix://a", "http://", "http://host:0", "http://h:99999", "host:1", "http://a b:1"])
def test_invalid_url_raises_an_error_that_names_the_variable(url):
    with pytest.raises(ValueError, match="STEPMEM_PUSH_URL"):
        Settings.read({"STEPMEM_PUSH_URL": url})


@pytest.mark.parametrize("url", ["ftp://u:hidden@host:1", "u:hidden@host:1", "http://u:hid/den@host", "http://u:hid@den@host:x", "http:/u:hidden@h"])
def test_password_of_an_invalid_url_is_not_shown(url):
    with pytest.raises(ValueError, match="STEPMEM_PUSH_URL") as raised:
        parse_url(url)
    assert "hid" not in str(raised.value) and "den" not in str(raised.value), raised.value


def test_password_of_the_page_is_not_shown():
    for url in ("ftp://u:hidden@h", "http://u:hid/den@h", "http://u:hidden@127.0.0.1:1"):
        with pytest.raises((OSError, ValueError)) as raised:
            _summary._read(url, "run", 1.0)
        assert "hid" not in str(raised.value) and "den" not in str(raised.value), raised.value


@pytest.mark.parametrize("hidden", ["\u00ad", "\u3164", "\u2800", "\u115f", "\u1160", "\ufe0f", "\u034f", "\U000e0100", " ", "\u3000", "\u0301"])
def test_script_and_run_that_nobody_sees_get_a_name(hidden, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"/a/{hidden}.py"])
    for run in ("", hidden, hidden * 3):
        assert Identity.read({"STEPMEM_RUN": run}).run.startswith("python-"), (run, Identity.read({"STEPMEM_RUN": run}).run)
    assert Identity.read({"STEPMEM_RUN": f"{hidden}a"}).run.strip() == "a"


def test_names_of_the_client_are_those_that_the_exporter_takes(exporter):
    starts = [*range(0x80, 0x3200), *range(0xFE00, 0x10000), *range(0x16FE0, 0x16FF0), *range(0x1BCA0, 0x1BCB0), *range(0x1D150, 0x1D180)]
    starts += [*range(0xE0000, 0xE0200), 0x1F525]
    names = sorted({_clean(f"{start}x") for start in map(chr, starts) if not 0xD800 <= ord(start) < 0xE000})
    assert len(names) > 1000
    for at in range(0, len(names), 500):
        records = [{"run": name, "rank": 0, "step": 1, "allocated_bytes": 1} for name in names[at : at + 500]]
        request = urllib.request.Request(f"{exporter.url}/v1/steps", json.dumps(records).encode(), {"Content-Type": "application/json"})
        try:
            assert urllib.request.urlopen(request, timeout=30).status == 200
        except urllib.error.HTTPError as error:
            # More runs than are held; a name that is not taken would be 400.
            assert error.code == 429, error.read()


def test_invalid_settings_cause_one_warning(train):
    ended = train(LOOP, "ftp://host").ended()
    assert ended.code == 0
    assert ended.err.count("STEPMEM_PUSH_URL") == 1 and len(ended.err.splitlines()) == 1, ended.err


@pytest.mark.parametrize(
    "value, n_bytes",
    [("2GiB", 2 << 30), ("2 Gi", 2 << 30), ("1.5MiB", 3 << 19), ("2GB", 2_000_000_000), ("4096", 4096), ("1tib", 1 << 40), ("", None)],
)
def test_capacity_is_a_number_of_bytes(value, n_bytes):
    assert Settings.read({"STEPMEM_CAPACITY": value}).capacity_bytes == n_bytes


@pytest.mark.parametrize("value", ["much", "0", "-1GiB", "2 XiB", "nan", "inf", "1e300", "GiB", "9007199254740994"])
def test_invalid_capacity_is_told_and_sets_none(value):
    settings = Settings.read({"STEPMEM_CAPACITY": value})
    assert settings.capacity_bytes is None
    assert settings.problems.startswith(f"STEPMEM_CAPACITY: {value!r} ") and settings.problems.endswith(", so no capacity is set")


def test_capacity_is_sent_as_the_total_of_a_process_without_cuda(fake, train):
    exporter = fake(200)
    code = LOOP + "    print(stepmem.memory_stats().total_bytes, stepmem.memory_stats().free_bytes)\n"
    ended = train(code, exporter.url, STEPMEM_CAPACITY="2GiB").ended()
    assert (ended.code, ended.out) == (0, "2147483648 None\n"), ended.err
    assert {record["total_bytes"] for record in exporter.records} == {2 << 30}
    assert not [record for record in exporter.records if "free_bytes" in record], "only what is left of a limit is known"


def test_disabled_client_pushes_nothing(exporter, train):
    ended = train(LOOP, exporter.url, STEPMEM_DISABLED="1").ended()
    assert (ended.code, ended.err) == (0, "")
    assert exporter.status()["ranks"] == []


PROGRAM = """
    import sys, json, os, pickle
    class Thing:
        pass
    def main():
        names = ("__name__", "__file__", "__package__")
        print(json.dumps([sys.argv, sys.path[0], [globals()[name] for name in names], os.path.exists(__file__)]))
        assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(Thing.__class__, ("a", (), {})).__name__)
            print(type(pool.apply(Thing)) is Thing)
    if __name__ == "__main__":
        main()
        ENDING
"""


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "raise KeyError('x')", "os._exit(4)", "os.kill(os.getpid(), 15)"])
def test_program_runs_as_under_python(exporter, train, ending):
    code = PROGRAM.replace("ENDING", ending)
    plain = train(code, None, "a", "--b").ended()
    through = train(code, exporter.url, "a", "--b", through=("-m", "stepmem")).ended()
    assert through.code == plain.code
    assert through.out.replace("script1", "script0") == plain.out
    said = [line for line in through.err.splitlines() if not line.startswith("stepmem: no step was counted")]
    assert said[-1:] == plain.err.splitlines()[-1:]


@pytest.mark.parametrize(
    "code, reason",
    [("print(1)", "the program did not import PyTorch"), ("import torch", "no optimizer of PyTorch stepped in this process")],
)
def test_program_without_a_step_is_told_so_at_its_end(train, code, reason):
    ended = train(code, None, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert ended.code == 0
    assert ended.err.count("stepmem: ") == 1 and f"no step was counted, so nothing is pushed: {reason}" in ended.err


@pytest.mark.parametrize(
    "code, variables",
    [
        ("import stepmem; stepmem.step_end(1)", {}),
        ("pass", {"STEPMEM_DISABLED": "1"}),
        ("raise ValueError('x')", {}),
        ("import sys; sys.exit(2)", {}),
        ("import threading, stepmem, time; threading.Thread(target=lambda: (time.sleep(0.3), stepmem.step_end(1))).start()", {}),
    ],
    ids=["steps", "disabled", "error", "usage", "thread that goes on"],
)
def test_program_that_steps_or_fails_or_is_not_recorded_is_not_told(fake, train, code, variables):
    ended = train(code, fake(200).url, through=("-m", "stepmem"), **variables).ended()
    assert "no step was counted" not in ended.err


def test_version_is_printed():
    command = [sys.executable, "-m", "stepmem", "--version"]
    ended = subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"stepmem {stepmem.__version__}\n", "")


def test_module_runs_as_under_python(train, tmp_path):
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import sys\nfrom . import name\nprint(__name__, __package__, __spec__.name, sys.argv[1:], name.X)\n")
    (package / "name.py").write_text("X = 1\n")
    arguments = ["-m", "job.train", "a"]
    plain = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
    environment = {"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin", "STEPMEM_DISABLED": "1"}
    command = [sys.executable, "-m", "stepmem", *arguments]
    through = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (through.returncode, through.stdout) == (0, plain.stdout), through.stderr
    assert plain.stdout == "__main__ job job.train ['a'] 1\n"


def test_command_line_errors_are_those_of_python(train):
    missing = subprocess.run([sys.executable, "-m", "stepmem", "absent.py"], cwd=ROOT / "python", capture_output=True, text=True)
    assert missing.returncode == 2 and "can't open file 'absent.py': [Errno 2]" in missing.stderr
    nothing = subprocess.run([sys.executable, "-m", "stepmem"], cwd=ROOT / "python", capture_output=True, text=True)
    assert nothing.returncode == 2 and nothing.stdout.startswith("usage:")


def test_memory_figures_need_no_exporter(train):
    ended = train(
        """
        import stepmem, json
        stats = stepmem.memory_stats()
        monitor = stepmem.MemoryMonitor()
        spike = b"x" * (64 << 20)
        del spike
        first = monitor.report(1)
        second = monitor.report(2)
        print(json.dumps([stats, first, second, stepmem.memory_utilization()]))
        print(stepmem.format_memory_stats(stepmem.MemoryStats(5 << 28, 7 << 29, 1 << 32, None, 80 << 30, None)))
        print(stepmem.format_memory_stats(stepmem.MemoryStats()))
        """,
        None,
    ).ended()
    assert (ended.code, ended.err) == (0, "")
    figures, full, empty = ended.out.splitlines()
    stats, first, second, utilization = json.loads(figures)
    assert stats[0] > 0 and stats[4] > stats[0]
    assert 0 < utilization < 1
    assert first[1] - second[1] > 60 << 20, "peaks are per interval"
    assert full == "allocated 1.25 GiB, peak 3.50 GiB / 80.0 GiB (4 %), reserved 4.00 GiB (5 %)"
    assert empty == "allocated –, peak – / –, reserved –"
    assert utilization == pytest.approx(second[1] / second[4], rel=0.2), "peak by total"
    steps = [re.match(r"stepmem: \[step (\d)\] host mem: allocated .*, peak .* MiB / ", line) for line in ended.information]
    assert [step and step[1] for step in steps] == ["1", "2"]


def test_file_pages_are_not_counted(exporter, train, tmp_path):
    (tmp_path / "data").write_bytes(b"x" * (64 << 20))
    ended = train(
        """
        import stepmem, mmap
        stepmem.step_end(1)
        with open("data", "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        total = sum(data[at] for at in range(0, len(data), 4096))
        stepmem.step_end(2)
        own = bytearray(b"x") * (32 << 20)
        stepmem.step_end(3)
        assert stepmem.flush(60)
        """,
        exporter.url,
        STEPMEM_RUN="mapped",
    ).ended()
    assert ended.code == 0, ended.err
    assert exporter.rank()["allocated_bytes"] < 64 << 20, "the mapped file does not count"
    assert exporter.rank()["allocated_bytes"] > 32 << 20


def test_end_is_shown_with_the_last_row(exporter, train):
    code = LOOP + "    stepmem.end('completed')\n    assert stepmem.flush(60)\n"
    ended = train(code, exporter.url, STEPMEM_RUN="a/b c").ended()
    assert ended.code == 0, ended.err
    await_true("the end", lambda: exporter.rank().get("end"))
    rank = exporter.rank()
    assert (rank["run"], rank["end"]["outcome"], rank["step"]) == ("a/b c", "completed", 5)
    assert exporter.metric('stepmem_pushes_total{result="accepted"}') >= 2
