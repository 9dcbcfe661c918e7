"""Fields that only a newer exporter knows, and pushes to one of before, which refuses them."""

from __future__ import annotations

import json
import re

from conftest import ASKED, OLD, STUB, Reply, await_true

from stepmem._wire import UNKNOWN_KEYS_MAX

LOOP = """
    import stepmem, sys
    for step in range(1, 4):
        stepmem.step_end(step)
        assert stepmem.flush(60)
    if sys.argv[1:]:
        stepmem.end(sys.argv[1])
        assert stepmem.flush(60)
"""


def test_instance_and_launch_are_sent(fake, train):
    exporter = fake(200)
    for _ in range(2):
        assert train(LOOP, exporter.url).ended().code == 0
    found = [(record["instance"], record["launch"]) for record in exporter.records]
    assert found[:3] == [found[0]] * 3 and found[3:] == [found[3]] * 3
    assert found[0][0] != found[3][0], "each process is an instance of its own"
    assert found[0][1] != found[3][1], "each of the two is a launch of its own"
    assert all(re.fullmatch("[0-9a-f]{16}", instance) for instance, _ in found)
    assert all(re.fullmatch("[A-Za-z0-9._:-]{1,64}", launch) for _, launch in found)


def test_forked_child_is_an_instance_of_the_same_launch(fake, train):
    exporter = fake(200)
    code = """
        import os, stepmem
        stepmem.step_end(1)
        assert stepmem.flush(60)
        if os.fork() == 0:
            stepmem.step_end(1)
            os._exit(0 if stepmem.flush(60) else 1)
        assert os.wait()[1] == 0
    """
    assert train(code, exporter.url).ended().code == 0
    parent, child = exporter.records
    assert parent["instance"] != child["instance"]
    assert parent["launch"] == child["launch"]


def test_high_water_marks_are_those_since_the_process_began(fake, train):
    exporter = fake(200)
    code = """
        import torch, stepmem
        torch.malloc(1000)
        for spike in (5000, 100, 9000, 100):
            torch.malloc(spike)
            torch.free(spike)
            stepmem.step_end()
            torch.cuda.reset_peak_memory_stats()
        assert stepmem.flush(60)
    """
    assert train(code, exporter.url, PATHS=STUB).ended().code == 0
    marks = [(each["high_water_allocated_bytes"], each["high_water_reserved_bytes"]) for each in exporter.records]
    assert marks == [(6000, 7024), (6000, 7024), (10000, 11024), (10000, 11024)]


def test_older_exporter_gets_every_record_without_what_it_does_not_know(fake, train):
    exporter = fake(OLD)
    ended = train(LOOP, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert [record["step"] for record in exporter.records] == [1, 2, 3]
    assert not [name for record in exporter.records for name in record if name in OLD.refuses]
    assert [record["dropped_records"] for record in exporter.records] == [0, 0, 0]
    assert 0 < len(exporter.refused) <= len(OLD.refuses), "each unknown key is tried once a connection"
    assert len([line for line in ended.information if "older than this client" in line]) == 1, ended.information


def test_older_exporter_gets_the_end_without_what_it_does_not_know(fake, train):
    exporter = fake(OLD)
    assert train(LOOP, exporter.url, "failed", STEPMEM_RUN="a/b").ended().code == 0
    (end,) = exporter.ends
    assert (end["run"], end["rank"], end["outcome"], end["step"]) == ("a/b", 0, "failed", 3) and "instance" not in end


def test_newer_exporter_in_its_place_gets_all(fake, train):
    exporter = fake(OLD)
    code = """
        import stepmem, sys
        for step in range(1, 6):
            stepmem.step_end(step)
            print(stepmem.flush(60), flush=True)
            sys.stdin.readline()
    """
    training = train(code, exporter.url)
    for step in range(1, 6):
        assert training.read_line() == "True"
        if step == 2:
            exporter.replies = [200]
            exporter.disconnect()
        training.write_line("go")
    assert training.ended().code == 0
    assert [record["step"] for record in exporter.records] == [1, 2, 3, 4, 5]
    assert ["instance" in record for record in exporter.records] == [False, False, False, True, True]


def test_exporter_that_names_ever_other_keys_gets_each_record_a_bounded_number_of_times(fake, train):
    exporter = fake(*(Reply(400, detail=f"record 0: unknown field `key_{idx}`, expected `run`") for idx in range(200)), 200)
    ended = train("import stepmem\nstepmem.step_end(1)\nstepmem.step_end(2)\nassert stepmem.flush(60)", exporter.url).ended()
    assert ended.code == 0, ended.err
    requests_max = 3  # each of the records in its own, and the end
    assert UNKNOWN_KEYS_MAX < len(exporter.refused) <= UNKNOWN_KEYS_MAX + requests_max and not exporter.accepted


FIRST = Reply(400, refuses=(*OLD.refuses, "events_per_step", "file"))
"""Knows of a snapshot neither its events nor its place, and asks with a directory of its own."""


def test_older_exporter_that_asks_for_a_snapshot_gets_its_report_in_the_words_that_it_knows(fake, train, tmp_path):
    exporter = fake(FIRST)
    exporter.actions = [{"type": "snapshot", "id": "1-1", "run": "old", "rank": 0, "steps": 6, "directory": str(tmp_path / "theirs")}]
    own = tmp_path / "own"
    training = train(ASKED, exporter.url, PATHS=STUB, STEPMEM_RUN="old", STEPMEM_SNAPSHOT_DIRECTORY=str(own))

    def reports():
        sent = [json.loads(body) for path, body in exporter.accepted if path == "/v1/snapshots"]
        return [report for report in sent if report["outcome"] != "began"]

    await_true("a report", reports)
    (tmp_path / "over").touch()
    ended = training.ended()
    assert ended.code == 0, ended.err
    (report,) = reports()
    assert (report["outcome"], report["id"]) == ("written", "1-1")
    assert not set(report) & {"file", "events_per_step"}
    assert report["path"].startswith(str(own)), "the directory is the training side's"
    assert not (tmp_path / "theirs").exists()


def test_older_exporter_gets_holders_without_their_bounds_and_records_with_all_fields(fake, train):
    exporter = fake(Reply(400, refuses=("items", "items_max", "items_per_step")))
    exporter.actions = [{"type": "holders", "id": "1-1", "run": "old", "rank": 0, "steps": 20, "bytes_per_step": 100_000.0}]
    code = """
        import collections, time, stepmem
        kept = collections.deque(maxlen=700)
        for n in range(400):
            kept.append(bytearray(100_000))
            time.sleep(0.01)
            stepmem.step_end(n)
        assert stepmem.flush(60)
    """
    assert train(code, exporter.url).ended().code == 0
    (named,) = [report for report in exporter.holders if report["outcome"] == "named"]
    assert [each["name"] for each in named["holders"]] == ["`kept`"]
    assert len(exporter.refused) == 3
    assert all("instance" in record for record in exporter.records) and "instance" in named


def test_actions_and_answers_that_a_client_does_not_know_are_ignored(fake, train):
    exporter = fake(200)
    exporter.actions = [
        {"type": "a later kind", "id": "1-1", "rank": 0},
        {"type": "snapshot", "id": "1-2", "rank": 7, "steps": 6, "later": {"field": 1}},
        {"type": "holders", "id": "1-3", "rank": 7, "steps": 20, "later": [1]},
    ]
    ended = train(LOOP, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert not {path for path, _ in exporter.accepted} & {"/v1/snapshots", "/v1/holders"}
