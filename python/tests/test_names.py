"""The default name of a run is unique for each launch and equal on all its ranks; so is the launch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import BINARY, ROOT, STUB, Reply, await_true, shown_on_terminal

from stepmem._settings import Identity

STEP = """
    import stepmem
    stepmem.step_end(1)
    assert stepmem.flush(60)
"""
NODE = {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}
NODES = {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
UID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def run_of(**variables: str) -> str:
    return Identity.read(variables).run


def test_each_launch_of_a_script_has_a_name_of_its_own(fake, train):
    exporter = fake(200)
    processes = [train(STEP, exporter.url).ended() for _ in range(2)]
    assert [process.code for process in processes] == [0, 0]
    first, second = (record["run"] for record in exporter.records)
    assert re.fullmatch(r"script0-\d{4}-\d{6}-\d+", first) and re.fullmatch(r"script1-\d{4}-\d{6}-\d+", second)


LAUNCHER = """
    import os, subprocess, sys
    for attempt in ("0", "1"):
        wrapper = ["sh", "-c", '"$0" "$@"; exit $?'] if attempt == "1" else []
        ranks = [
            subprocess.Popen([*wrapper, sys.executable, "rank.py"], env={**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                "WORLD_SIZE": "2", "MASTER_ADDR": "here", "TORCHELASTIC_RESTART_COUNT": attempt})
            for rank in (0, 1)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0]
"""


def test_all_ranks_and_attempts_of_a_launch_have_one_name(fake, train, tmp_path):
    exporter = fake(200)
    (tmp_path / "rank.py").write_text("import stepmem\nstepmem.step_end(1)\nassert stepmem.flush(60)\n")
    assert train(LAUNCHER, exporter.url).ended().code == 0
    assert train(LAUNCHER, exporter.url).ended().code == 0
    records = exporter.records
    assert sorted((record["rank"], record["attempt"]) for record in records[:4]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    names = [(record["run"], record["launch"]) for record in records]
    assert len(set(names[:4])) == 1 and len(set(names[4:])) == 1
    assert names[0][0] != names[4][0] and names[0][1] != names[4][1]
    assert names[0][0].startswith("rank-")


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_the_script_starts_have_one_name(fake, train, method):
    exporter = fake(200)
    code = f"""
        import multiprocessing, os, stepmem
        def train(rank):
            os.environ["RANK"] = str(rank)
            stepmem.step_end(1)
            assert stepmem.flush(60)
        if __name__ == "__main__":
            ranks = [multiprocessing.get_context("{method}").Process(target=train, args=(rank,)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
    """
    assert train(code, exporter.url).ended().code == 0
    assert sorted(record["rank"] for record in exporter.records) == [0, 1]
    assert len({(record["run"], record["launch"]) for record in exporter.records}) == 1


@pytest.mark.parametrize(
    "arguments, name",
    [
        (["-c", "import stepmem; stepmem.step_end(1)"], "python"),
        (["-m", "job.train"], "job.train"),
        (["-m", "job"], "job"),
        (["-m", "early.train"], "early.train"),
        (["job/train.py"], "train"),
        (["-m", "stepmem", "-m", "job.train"], "job.train"),
        (["-m", "stepmem", "job/train.py"], "train"),
    ],
)
def test_name_is_that_of_the_script_or_module(fake, tmp_path, arguments, name):
    exporter = fake(200)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/__init__.py").touch()
    for module in ("train", "__main__"):
        (tmp_path / f"job/{module}.py").write_text("import stepmem\nstepmem.step_end(1)\n")
    (tmp_path / "early").mkdir()
    (tmp_path / "early/__init__.py").write_text("import stepmem\nstepmem.step_end(1)\n")
    (tmp_path / "early/train.py").touch()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "STEPMEM_PUSH_URL": exporter.url}
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, check=True)
    assert re.fullmatch(re.escape(name) + r"-\d{4}-\d{6}-\d+", exporter.records[0]["run"])


def test_name_of_several_nodes_is_that_of_their_rendezvous():
    names = {run_of(**NODES, RANK=str(rank)) for rank in range(8)}
    assert len(names) == 1 and re.fullmatch("[^-]+-[0-9a-f]{6}", *names)
    assert run_of(**{**NODES, "MASTER_PORT": "29501"}) not in names


def test_launch_of_several_nodes_is_that_of_their_rendezvous_or_job():
    def launch(**variables: str) -> "str | None":
        return Identity.read({**NODES, **variables}).launch

    assert launch(RANK="0") == launch(RANK="5")
    assert launch(SLURM_JOB_ID="7", SLURM_STEP_ID="0") != launch(SLURM_JOB_ID="7", SLURM_STEP_ID="1")
    assert launch(STEPMEM_KUBERNETES_UID="a") != launch(STEPMEM_KUBERNETES_UID="b")
    pods = [{"WORLD_SIZE": "2", "MASTER_ADDR": address, "STEPMEM_KUBERNETES_UID": "a"} for address in ("localhost", "job-master-0")]
    assert len({Identity.read({**pod, "RANK": str(rank)}).launch for rank, pod in enumerate(pods)}) == 1


@pytest.mark.parametrize(
    "variables, run",
    [
        ({"TORCHELASTIC_RUN_ID": "job7", **NODE}, "job7"),
        ({"SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "llm", "SLURM_PROCID": "0"}, "llm-12"),
        ({"RAY_JOB_ID": "02000000", **NODES}, "ray-02000000"),
        ({"STEPMEM_KUBERNETES_RAYJOB": "r-7x9k2", "RAY_JOB_ID": "02000000"}, "r-7x9k2-02000000"),
        ({"STEPMEM_KUBERNETES_RAYJOB": "r-7x9k2"}, "r-7x9k2"),
        ({"STEPMEM_KUBERNETES_JOBSET": "set", "STEPMEM_KUBERNETES_JOB": "set-workers-0"}, "set"),
        ({"STEPMEM_KUBERNETES_JOBSET": "", "STEPMEM_KUBERNETES_JOB": "llm"}, "llm"),
        ({"STEPMEM_KUBERNETES_PYTORCHJOB": "p", **NODES}, "p"),
        ({"STEPMEM_KUBERNETES_JOB": "llm", "STEPMEM_KUBERNETES_UID": UID, "JOB_COMPLETION_INDEX": "1", **NODES}, "llm-3f2504e0"),
        ({"STEPMEM_KUBERNETES_JOB": "sweep", "STEPMEM_KUBERNETES_UID": UID, "JOB_COMPLETION_INDEX": "1"}, "sweep-3f2504e0-1"),
        ({"STEPMEM_KUBERNETES_JOB": "sweep", "STEPMEM_KUBERNETES_UID": UID, "JOB_COMPLETION_INDEX": "1", **NODE}, "sweep-3f2504e0-1"),
        ({"STEPMEM_KUBERNETES_JOB": "llm", "JOB_COMPLETION_INDEX": "1", "STEPMEM_RANK": "1"}, "llm"),
        ({"STEPMEM_KUBERNETES_JOB": "llm", "STEPMEM_KUBERNETES_UID": ""}, "llm"),
        ({"STEPMEM_RUN": "mine", "TORCHELASTIC_RUN_ID": "its", "STEPMEM_KUBERNETES_JOB": "llm"}, "mine"),
    ],
)
def test_name_of_the_launcher_goes_before_that_of_the_script(variables, run):
    assert run_of(**variables) == run


def test_uuid_that_torchrun_made_up_is_not_the_name():
    name = run_of(TORCHELASTIC_RUN_ID="01234567-89ab-cdef-0123-456789abcdef", RANK="0", **NODE)
    assert re.fullmatch(r".+-\d{4}-\d{6}-\d+", name)


def test_long_script_name_keeps_its_launch(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["é" * 200 + ".py"])
    name = run_of()
    assert len(name.encode()) <= 128 and re.fullmatch(r"é+-\d{4}-\d{6}-\d+", name)


def test_name_and_address_are_said_once(fake, train):
    exporter = fake(200)
    plain = train(STEP, exporter.url, STEPMEM_RUN="llm", RANK="0", WORLD_SIZE="8").ended()
    assert plain.information == [f"stepmem: run 'llm', rank 0 of 8, pushes to {exporter.url}"]
    for later in ({"RANK": "3"}, {"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}):
        assert train(STEP, exporter.url, STEPMEM_RUN="llm", **later).ended().information == [], later
    logged = train("import logging\n" + STEP.replace("\n    ", "\n"), exporter.url, STEPMEM_RUN="llm").ended()
    assert (logged.information, logged.err) == ([], ""), "level info is not shown by default"
    code = "import logging\nlogging.basicConfig(level=logging.INFO)\n" + STEP.replace("\n    ", "\n")
    shown = train(code, exporter.url, STEPMEM_RUN="llm").ended()
    assert shown.err == f"INFO:stepmem:stepmem: run 'llm', rank 0, pushes to {exporter.url}\n"


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["-m", "stepmem"], "import logging\nfrom torch.optim.optimizer import Optimizer\nOptimizer().step()\n"),
        ([], "import logging, stepmem\nwith stepmem.step():\n    pass\n"),
        ([], "import stepmem\nstepmem.step_end(1)\n"),
    ],
)
def test_terminal_shows_name_and_address_once_a_launch(fake, tmp_path, arguments, code):
    exporter = fake(200)
    script = tmp_path / "train.py"
    script.write_text(code)
    paths = f"{STUB}{os.pathsep}{ROOT / 'python'}"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "STEPMEM_PUSH_URL": exporter.url, "STEPMEM_RUN": "llm"}

    def shown(*command: str, **more: str) -> str:
        return shown_on_terminal(command, tmp_path, {**variables, **more})

    line = f"stepmem: run 'llm', rank 0 of 2, pushes to {exporter.url}\n"
    assert shown(sys.executable, *arguments, str(script), RANK="0", WORLD_SIZE="2") == line
    assert shown(sys.executable, *arguments, str(script), RANK="1", WORLD_SIZE="2") == ""
    below = shown(BINARY, "run", "--summary.dir", "", "--", sys.executable, *arguments, str(script), HOME=str(tmp_path))
    assert "pushes to" not in below, below


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"STEPMEM_RANK": "abc"}, "STEPMEM_RANK: 'abc' is not an integer from 0 to 1048575, so it is 3"),
        ({"STEPMEM_RANK": "-1"}, "STEPMEM_RANK: '-1' is not an integer from 0 to 1048575, so it is 3"),
        ({"STEPMEM_RANK": "1048576"}, "STEPMEM_RANK: '1048576' is not an integer from 0 to 1048575, so it is 3"),
        ({"STEPMEM_RANK": "\x1b[2J" * 99}, "STEPMEM_RANK: '" + "\\x1b[2J" * 16 + "' is not an integer from 0 to 1048575, so it is 3"),
        (
            {"STEPMEM_RANK": "1.0", "STEPMEM_ATTEMPT": "two"},
            "STEPMEM_RANK: '1.0' is not an integer from 0 to 1048575, so it is 3; "
            "STEPMEM_ATTEMPT: 'two' is not an integer from 0 to 999999999999999, so it is 0",
        ),
    ],
)
def test_rank_or_attempt_that_is_no_integer_is_told_once(fake, train, variables, said):
    exporter = fake(200)
    ended = train(STEP, exporter.url, RANK="3", **variables).ended()
    assert (ended.code, ended.err) == (0, f"stepmem: {said}\n")
    assert {(record["rank"], record["attempt"]) for record in exporter.records} == {(3, 0)}


HELD = Reply(409, detail="run llm, rank 0 is held by pid 7, attempt 0, started 5 s ago", run="llm", rank=0)
OFFERED = Reply(409, detail=HELD.problem["detail"], run="llm", rank=0, offer="llm~2")
STEPS = """
    import stepmem, sys
    for step in range(1, 4):
        stepmem.step_end(step)
        print(stepmem.flush(float(sys.argv[1])), flush=True)
    stepmem.end()
    stepmem.flush(60)
"""


def test_process_whose_name_is_held_asks_again_and_keeps_its_records(fake, train):
    exporter = fake(HELD, HELD, 200)
    ended = train(STEPS, exporter.url, "1", STEPMEM_RUN="llm").ended()
    assert (ended.code, ended.err) == (0, ""), "a process that was relaunched is not worth a warning"
    assert [(record["run"], record["step"]) for record in exporter.records] == [("llm", 1), ("llm", 2), ("llm", 3)]
    assert exporter.records[-1]["dropped_records"] == 0
    assert len(exporter.refused) == 2 and "pid 7" in ended.information[-1]


def test_process_takes_the_name_that_it_is_offered_for_all_its_records(fake, train):
    exporter = fake(HELD, OFFERED, 200)
    ended = train(STEPS, exporter.url, "1", STEPMEM_RUN="llm").ended()
    assert ended.code == 0
    assert [(record["run"], record["step"]) for record in exporter.records] == [("llm~2", step) for step in (1, 2, 3)]
    assert [end["run"] for end in exporter.ends] == ["llm~2"]
    assert ended.err == "stepmem: run 'llm' is pushed by another process too; this one is now 'llm~2'\n"


def test_process_asks_again_after_the_time_that_the_exporter_names(fake, train):
    exporter = fake(Reply(409, retry_after=2, detail="held"), 200)
    code = """
        import stepmem, time
        stepmem.step_end(1)
        client = stepmem._client.CLIENT
        while not client._recorder._n_records or client._sender._batch or client._sender.ring:
            time.sleep(0.01)
        began = time.monotonic()
        print("accepted")
    """
    ended = train(code, exporter.url).ended()
    assert ended.out == "accepted\n"
    assert ended.seconds > 2.0


LIVE = """
    import stepmem, sys, threading
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    step = 0
    while not stop.wait(0.01):
        step += 1
        stepmem.step_end(step)
    print(step, stepmem.flush(60))
"""


def test_two_live_programs_under_one_name_become_two_runs(exporter, train):
    first = train(LIVE, exporter.url, STEPMEM_RUN="llm")
    await_true("the first", lambda: exporter.status()["ranks"])
    second = train(LIVE, exporter.url, STEPMEM_RUN="llm")
    await_true("both", lambda: {rank["run"] for rank in exporter.status()["ranks"]} == {"llm", "llm~2"})
    for program, run in ((first, "llm"), (second, "llm~2")):
        program.write_line("stop")
        ended = program.ended()
        (rank,) = [rank for rank in exporter.status()["ranks"] if rank["run"] == run]
        assert ended.out == f"{rank['steps_total']} True\n", "no record is lost or counted for the other"
        assert ended.err.count("this one is now 'llm~2'") == (run != "llm")
    assert exporter.status()["records"]["restarted"] == 0


def test_program_that_is_killed_and_relaunched_is_the_same_run(exporter, train):
    first = train(LIVE, exporter.url, STEPMEM_RUN="llm")
    await_true("the first", lambda: exporter.status()["ranks"])
    first.process.kill()
    second = train(LIVE, exporter.url, STEPMEM_RUN="llm")
    await_true("the new life", lambda: exporter.status()["records"]["restarted"] == 1)
    second.write_line("stop")
    ended = second.ended()
    assert ended.err == ""
    (rank,) = exporter.status()["ranks"]
    assert (rank["run"], f"{rank['step']} True\n") == ("llm", ended.out)


@pytest.mark.parametrize("offer", ["", 7, "a\nb", "x" * 129, None])
def test_offer_that_is_not_a_name_is_ignored(fake, train, offer):
    exporter = fake(Reply(409, offer=offer), 200)
    assert train(STEPS, exporter.url, "1", STEPMEM_RUN="llm").ended().code == 0
    assert {record["run"] for record in exporter.records} == {"llm"}


def test_end_that_another_process_holds_is_given_up(fake, train):
    exporter = fake(200, HELD)
    code = "import stepmem\nstepmem.step_end(1)\nassert stepmem.flush(60)\nstepmem.end()\nassert stepmem.flush(60)"
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.err, len(exporter.refused)) == (0, "", 1)
