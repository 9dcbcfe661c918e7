"""Failures of the exporter, the process or the disk do not change the result and exit code of training."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest
from conftest import STUB, await_true

from stepmem._client import FLUSH_SECONDS
from stepmem._connection import Connection
from stepmem._process import Process
from stepmem._sender import Sender
from stepmem._settings import Settings
from stepmem._wire import FIGURES, JSON_LINES, RECORD, STEPS_PATH, Request

LOOP = """
    import stepmem, sys, time
    total = 0
    for step in range(1, int(sys.argv[1]) + 1):
        with stepmem.step(step):
            total += step
        time.sleep(float(sys.argv[2]))
    print(total)
    sys.exit(7)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_absent_exporter_causes_one_warning(train):
    ended = train(LOOP, f"http://127.0.0.1:{free_port()}", "30", "0.1").ended()
    assert (ended.code, ended.out) == (7, "465\n")
    assert len(ended.err.splitlines()) == 1 and "keeps retrying" in ended.err, ended.err


def test_absent_exporter_raises_nothing_even_if_warnings_are_errors(train):
    ended = train(LOOP, f"http://127.0.0.1:{free_port()}", "3", "0.5", through=("-W", "error", "-X", "dev")).ended()
    assert (ended.code, ended.out) == (7, "6\n")
    assert "Traceback" not in ended.err and "ResourceWarning" not in ended.err, ended.err


def test_short_run_is_pushed_completely_at_exit(exporter, train):
    ended = train(LOOP, exporter.url, "500", "0").ended()
    assert (ended.code, ended.out, ended.err) == (7, "125250\n", "")
    assert exporter.rank()["steps_total"] == 500


@pytest.mark.parametrize("ending, code", [("sys.exit(5)", 5), ("raise RuntimeError('mine')", 1), ("return_ = 1", 0)])
def test_exit_flushes_and_keeps_the_exit_code(exporter, train, ending, code):
    ended = train(LOOP.replace("sys.exit(7)", ending), exporter.url, "5", "0").ended()
    assert ended.code == code
    assert exporter.rank()["step"] == 5


def test_interrupt_ends_training_as_without_the_client(exporter, train):
    training = train("import stepmem, time\nstepmem.step_end(1)\nprint('up', flush=True)\ntime.sleep(60)", exporter.url)
    training.read_line()
    training.process.send_signal(signal.SIGINT)
    ended = training.ended()
    assert ended.code == -signal.SIGINT and "KeyboardInterrupt" in ended.err
    assert exporter.rank()["step"] == 1


def test_training_can_be_interrupted_where_the_tests_cannot(exporter, train):
    """As under `nohup make test &`, whose SIGINT is ignored and inherited."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        training = train("import signal; print(signal.getsignal(signal.SIGINT).__name__)", exporter.url)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert training.ended().out == "default_int_handler\n"


def test_training_ends_while_the_exporter_hangs(exporter, train):
    exporter.freeze()
    ended = train(LOOP, exporter.url, "50", "0.01").ended()
    assert (ended.code, ended.out) == (7, "1275\n")
    assert FLUSH_SECONDS <= 1.0


@pytest.mark.parametrize("kind", ["TCP", "Unix"])
@pytest.mark.parametrize("n_bytes", [100, 16 << 20], ids=["no answer", "not even read"])
def test_exporter_that_hangs_is_left_at_the_deadline(tmp_path, kind, n_bytes):
    with socket.socket(socket.AF_UNIX if kind == "Unix" else socket.AF_INET) as listener:
        listener.bind(str(tmp_path / "socket") if kind == "Unix" else ("127.0.0.1", 0))
        listener.listen()
        url = f"unix://{tmp_path}/socket" if kind == "Unix" else f"http://127.0.0.1:{listener.getsockname()[1]}"
        connection = Connection(Settings.read({"STEPMEM_PUSH_URL": url}))
        with pytest.raises(TimeoutError):
            connection.post(Request(STEPS_PATH, JSON_LINES, b" " * n_bytes), time.monotonic() + 0.2)


def test_sender_packs_steps_when_a_push_is_due(fake, train):
    exporter = fake(200)
    code = """
        import stepmem, time
        stepmem.step_end(0)
        sender, packs = stepmem._client.CLIENT._sender, []
        pack = sender._pack
        sender._pack = lambda: packs.append(1) or pack()
        for n in range(1, 301):
            stepmem.step_end(n)
            time.sleep(0.01)
        print(len(packs))
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url).ended()
    assert len(exporter.records) == 301
    assert int(ended.out) <= 4 * len(exporter.accepted), "it packed ten times a push before"


def test_pushing_resumes_after_the_exporter_was_killed_and_restarted(start, train):
    port = free_port()
    first = start("--push.listen-address", f"127.0.0.1:{port}")
    training = train(LOOP, first.url, "700", "0.01")
    await_true("the first steps", lambda: first.status()["ranks"])
    first.kill()
    second = start("--push.listen-address", f"127.0.0.1:{port}")
    ended = training.ended()
    assert (ended.code, ended.out) == (7, "245350\n")
    rank = second.rank()
    assert rank["step"] == 700
    assert rank["steps_total"] >= 500, "records from before the restart are pushed too"


def test_pushing_resumes_after_the_socket_file_was_replaced(start, train, tmp_path):
    path = tmp_path / "push.sock"
    only_socket = ("--push.unix-socket", str(path))
    first = start(*only_socket)
    training = train(LOOP, f"unix://{path}", "700", "0.01")
    await_true("the first steps", lambda: first.status()["ranks"])
    path.unlink()
    first.kill()
    second = start(*only_socket)
    assert training.ended().code == 7
    assert second.rank()["step"] == 700


def test_busy_exporter_gets_every_record(fake, train):
    exporter = fake(503, 429, 503, 200)
    code = LOOP.replace("sys.exit(7)", "assert stepmem.flush(60); sys.exit(7)")
    ended = train(code, exporter.url, "100", "0.001").ended()
    assert (ended.code, ended.err) == (7, "")
    assert [record["step"] for record in exporter.records] == list(range(1, 101))


def test_refused_records_are_counted_and_logged_once(fake, train):
    exporter = fake(400, 200)
    code = LOOP.replace("print(total)", "print(total) if step < 4 else None").replace(
        "total += step", "total += step\n            stepmem.flush(5)"
    )
    ended = train(code, exporter.url, "4", "0.01").ended()
    assert ended.code == 7
    assert ended.err.count("refused a push with status 400") == 1 and "because" in ended.err
    assert exporter.records[-1]["dropped_records"] == 1


def test_too_large_batches_are_split(start, train):
    exporter = start("--push.listen-address", "127.0.0.1:0", "--push.body-max", "4096")
    code = LOOP.replace("sys.exit(7)", "assert stepmem.flush(60); sys.exit(7)")
    ended = train(code, exporter.url, "300", "0").ended()
    assert (ended.code, ended.err) == (7, "")
    rank = exporter.rank()
    assert (rank["step"], rank["steps_total"], rank["dropped_records"]) == (300, 300, 0)


def test_evicted_records_are_counted_and_the_count_is_pushed(train, start):
    port = free_port()
    training = train(
        """
        import stepmem, sys
        for step in range(1, 20001):
            stepmem.step_end(step)
        print("full", flush=True)
        sys.stdin.readline()
        for step in range(20001, 20004):
            stepmem.step_end(step)
        print(stepmem.flush(60), flush=True)
        """,
        f"http://127.0.0.1:{port}",
        STEPMEM_RUN="full",
    )
    assert training.read_line() == "full"
    exporter = start("--push.listen-address", f"127.0.0.1:{port}")
    training.write_line("go")
    assert training.read_line() == "True"
    assert training.ended().code == 0
    rank = exporter.rank()
    assert rank["steps_total"] + rank["dropped_records"] == 20_003
    assert rank["steps_total"] >= 8192
    assert exporter.metric('stepmem_rank_dropped_records_total{run="full",rank="0",uuid="cpu"}') == rank["dropped_records"]


def test_ten_thousand_steps_per_second_arrive_or_are_counted(exporter, train):
    code = """
        import stepmem, time
        began = time.perf_counter()
        for step in range(1, 30001):
            while time.perf_counter() - began < step / 10000:
                pass
            stepmem.step_end(step)
        print(stepmem.flush(60))
    """
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.out, ended.err) == (0, "True\n", "")
    rank = exporter.rank()
    assert rank["steps_total"] + rank["dropped_records"] == 30_000


FORK = """
    import stepmem, os, sys, threading
    def n_sockets():
        links = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                pass
        return sum("socket:" in link for link in links)
    stepmem.step_end(1)
    assert stepmem.flush(60)
    child = os.fork()
    if child == 0:
        if sys.argv[1] == "trains":
            os.environ["RANK"] = "1"
            stepmem.step_end(10)
            assert stepmem.flush(60)
        print(len(os.listdir("/proc/self/task")), n_sockets(), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    stepmem.step_end(2)
    assert stepmem.flush(60)
"""


def test_forked_worker_inherits_nothing_and_the_parent_continues(exporter, train):
    ended = train(FORK, exporter.url, "works", RANK="0").ended()
    assert (ended.code, ended.out, ended.err) == (0, "1 0\n", ""), "one thread, no connection"
    status = exporter.status()
    assert [(rank["rank"], rank["step"]) for rank in status["ranks"]] == [(0, 2)]
    assert {kind: n for kind, n in status["records"].items() if n} == {"accepted": 2}


def test_forked_child_that_trains_pushes_for_itself(exporter, train):
    ended = train(FORK, exporter.url, "trains", RANK="0").ended()
    assert (ended.code, ended.out, ended.err) == (0, "2 1\n", "")
    ranks = {rank["rank"]: rank["step"] for rank in exporter.status()["ranks"]}
    assert ranks == {0: 2, 1: 10}


def test_pools_forked_while_the_sender_works_do_not_hang(exporter, train):
    code = """
        import multiprocessing, stepmem, threading
        stop = threading.Event()
        def steps():
            while not stop.is_set():
                stepmem.step_end()
        thread = threading.Thread(target=steps)
        thread.start()
        for _ in range(20):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
        stop.set()
        thread.join()
        print("done")
    """
    ended = train(code, exporter.url, through=("-W", "ignore")).ended()
    assert (ended.code, ended.out, ended.err) == (0, "done\n", "")


def test_closed_standard_streams_do_not_matter(train):
    code = "import os, sys\nfor fd in (0, 1, 2): os.close(fd)\nimport stepmem\nfor n in range(5): stepmem.step_end(n)\nos._exit(0 if stepmem.flush(0.2) is False else 3)"
    assert train(code, f"http://127.0.0.1:{free_port()}").ended().code == 0


def test_invalid_arguments_cause_warnings(exporter, train):
    code = """
        import stepmem
        stepmem.step_end(-1); stepmem.step_end("x"); stepmem.step_end(1 << 60)
        with stepmem.phase("lunch"): pass
        stepmem.end("maybe")
        stepmem.record(steps=(5, 1)); stepmem.record(steps=None)
        stepmem.step_end(4)
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url).ended()
    assert ended.code == 0 and "Traceback" not in ended.err, ended.err
    assert exporter.rank()["step"] == 4


def test_step_that_raises_is_not_recorded_and_raises(exporter, train):
    code = """
        import stepmem
        stepmem.step_end(1)
        try:
            with stepmem.step(2):
                raise KeyError("mine")
        except KeyError as error:
            print(error)
        assert stepmem.flush(60)
    """
    assert train(code, exporter.url).ended().out == "'mine'\n"
    assert exporter.rank()["step"] == 1


def test_unreadable_allocator_causes_a_warning(exporter, train):
    code = """
        import torch, stepmem
        def broken(device):
            raise RuntimeError("no statistics")
        torch._C._cuda_memoryStats = broken
        for n in range(100):
            stepmem.step_end(n)
        print("trained")
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out) == (0, "trained\n")
    assert len(ended.err.splitlines()) == 2, ended.err
    assert exporter.status()["ranks"] == []


def test_statistics_that_lose_a_figure_cause_a_warning_and_end_the_recording(exporter, train):
    code = """
        import torch, stepmem
        read, lost = torch._C._cuda_memoryStats, {}
        torch._C._cuda_memoryStats = lambda device: {**read(device), **lost}
        stepmem.step_end(1)
        stepmem.flush(60)
        lost["reserved_bytes"] = {}
        for n in range(2, 200):
            stepmem.step_end(n)
        print(stepmem.flush(60), stepmem._client.CLIENT._recorder)
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out) == (0, "True None\n")
    assert ended.err.count("a step was not recorded") == 1 and ended.err.count("recording stopped: KeyError") == 1, ended.err
    assert exporter.rank()["step"] == 1


def test_full_disk_causes_a_warning_and_leaves_no_partial_file(exporter, train, tmp_path):
    code = """
        import resource, torch, stepmem
        stepmem.step_end(1)
        torch._C.trace.extend({"action": "alloc", "size": n} for n in range(10000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        print(stepmem.snapshot("snapshots/full.pickle"))
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out) == (0, "None\n"), ended.err
    assert ended.err.count("snapshot failed") == 1 and "File too large" in ended.err
    assert os.listdir(tmp_path / "snapshots") == []
    shown = await_true("the result", lambda: exporter.status()["snapshots"])[0]
    assert (shown["outcome"], "File too large" in shown["error"]) == ("failed", True)


def test_default_sigpipe_handler_does_not_end_training(start, train):
    port = free_port()
    exporter = start("--push.listen-address", f"127.0.0.1:{port}")
    code = """
        import signal, sys, stepmem
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        stepmem.step_end(1)
        print(stepmem.flush(60), flush=True)
        sys.stdin.readline()
        for n in range(2, 5):
            stepmem.step_end(n)
            stepmem.flush(0.3)
        print("trained", flush=True)
    """
    training = train(code, exporter.url)
    assert training.read_line() == "True"
    exporter.kill()
    training.write_line("go")
    assert training.read_line() == "trained"
    assert training.ended().code == 0


def test_hanging_exporter_does_not_block_the_training_thread(exporter, train):
    exporter.freeze()
    code = """
        import stepmem, time
        for n in range(3000):
            stepmem.step_end(n)
            time.sleep(0.001)
        print("trained", flush=True)
    """
    training = train(code, exporter.url)
    assert training.read_line() == "trained", "the exporter hangs until the test ends"
    assert training.ended().code == 0


def test_sender_that_sees_the_stop_before_it_is_woken_still_flushes(fake):
    exporter = fake(200)
    sender = Sender(Settings(exporter.url, None, False, None, False), Process(), lambda request: None)
    sender.add_device("cpu")
    sender.ring.append(RECORD.pack(1.0, -1.0, 0, 1, 1, 0, 0, 0, *[64] * len(FIGURES)))
    sender._stop.set()  # `stop` does this first, and the thread may wake up right then
    sender._sent_at = time.monotonic()
    sender._deadline = time.monotonic() + 5
    sender._loop()
    assert [record["step"] for record in exporter.records] == [1]
