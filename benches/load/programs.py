"""The programs that are measured: how each is started, pushed to and scraped."""

import json
import os
import re
import shutil

from child import Failure, start_listening, wait_until
from job import BYTES_FIELDS, DEVICE_BYTES, N_DEVICES, N_PROCESSES, N_RANKS, figures, uuid
from web import connect, get, post

BATCH_RECORDS = 500
DRAIN_SECONDS_MAX = 60.0

FIRST_UNUSED_PID = 1 << 21


class Program:
    """A program that serves /metrics on loopback; a subclass has its name, ports and arguments."""

    name = ""
    n_ports = 1

    def __init__(self, folder):
        self.log_path = os.path.join(folder, f"{self.name}.log")
        self.child = None
        self.ports = []
        self.next_step = 0

    def argv(self, *ports):
        raise NotImplementedError

    @property
    def web_port(self):
        return self.ports[0]

    def start(self):
        self.child, self.ports = start_listening(self.argv, self.n_ports, self.log_path)

    def stop(self):
        if self.child:
            self.child.stop()
            self.child = None

    def restart(self):
        self.stop()
        self.start()


class NodeExporter(Program):
    name = "node-exporter"

    def argv(self, *ports):
        listen = f"--web.listen-address=127.0.0.1:{ports[0]}"
        return ["prometheus-node-exporter", listen, "--log.level=warn"]


class Pushgateway(Program):
    name = "pushgateway"
    push_content_type = "text/plain; version=0.0.4"

    def argv(self, *ports):
        listen = f"--web.listen-address=127.0.0.1:{ports[0]}"
        return ["prometheus-pushgateway", listen, "--log.level=warn"]

    @property
    def push_port(self):
        return self.ports[0]

    def push_path(self, rank):
        return f"/metrics/job/default/instance/{rank}"

    def push_body(self, _rank):
        """The record in the text format, as a client library pushes it; `figures` fill it."""
        gauges = [("step", "%10d"), ("step_seconds", "0.25")]
        gauges += [(name, "%12d") for name in BYTES_FIELDS]
        gauges += [("total_bytes", DEVICE_BYTES)]
        counters = [("alloc_retries_total", 0), ("ooms_total", 0)]
        return "".join(
            [self.metric(name, "gauge", value) for name, value in gauges]
            + [self.metric(name, "counter", value) for name, value in counters]
        )

    @staticmethod
    def metric(name, kind, value):
        return f"# TYPE rank_{name} {kind}\nrank_{name} {value}\n"

    def push_groups(self, step):
        """Pushes one group for each rank."""
        for rank in range(N_RANKS):
            body = self.push_body(rank) % figures(rank, step)
            post(self.push_port, self.push_path(rank), self.push_content_type, body)


class Stepmem(Program):
    name = "stepmem"
    n_ports = 2
    push_content_type = "application/json"

    def __init__(self, binary, folder, n_ranks=N_RANKS):
        super().__init__(folder)
        self.binary = os.path.abspath(binary)
        self.n_ranks = n_ranks

    def argv(self, *ports):
        of_ranks = [] if self.n_ranks == N_RANKS else ["--rank.max", str(self.n_ranks)]
        return [self.binary, "serve", "--no-nvml", *of_ranks, *self.listen(*ports)]

    @staticmethod
    def listen(web, push):
        return [
            *["--web.listen-address", f"127.0.0.1:{web}"],
            *["--push.listen-address", f"127.0.0.1:{push}"],
        ]

    @property
    def push_port(self):
        return self.ports[1]

    def push_path(self, _rank):
        return "/v1/steps"

    def push_body(self, rank):
        """One record; `figures` fill it."""
        fields = "".join(f',"{name}":%12d' for name in BYTES_FIELDS)
        return (
            f'{{"run":"default","rank":{rank},"world_size":{self.n_ranks},"device":"{uuid(rank)}"'
            f',"step":%10d,"step_seconds":0.25{fields},"total_bytes":{DEVICE_BYTES}'
            f',"alloc_retries":0,"ooms":0}}'
        )

    def push_steps(self, first, end):
        """Pushes steps first..end of every rank in batches; waits until the last are served."""
        bodies = [self.push_body(rank) for rank in range(self.n_ranks)]
        connection = connect(self.push_port)
        batch = []
        for step in range(first, end):
            for rank, body in enumerate(bodies):
                batch.append(body % figures(rank, step))
                if len(batch) == BATCH_RECORDS:
                    self.post_batch(connection, batch)
                    batch = []
        if batch:
            self.post_batch(connection, batch)
        connection.close()
        self.wait_until_served(end - 1)

    def step_of_all(self, step):
        """The record of every rank at a step, as one body."""
        records = (self.push_body(rank) % figures(rank, step) for rank in range(self.n_ranks))
        return "\n".join(records)

    def post_batch(self, connection, batch):
        """Posts one batch; tries again while the inbox is full (503)."""
        body = "\n".join(batch).encode()

        def is_accepted():
            headers = {"Content-Type": "application/x-ndjson"}
            connection.request("POST", "/v1/steps", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status not in (200, 503):
                size = f"a batch of {len(batch)} records"
                raise Failure(f"stepmem answered {answer.status} to {size}: {text}")
            return answer.status == 200

        wait_until(is_accepted, DRAIN_SECONDS_MAX, lambda: "stepmem's inbox stayed full")

    def wait_until_served(self, step):
        """Waits until this is the step of every rank in /metrics."""

        def explain():
            served = f"stepmem serves rank_step {self.served_steps()}"
            return f"{served}, not {step} for {self.n_ranks} ranks:\n{self.child.log_tail()}"

        wait_until(lambda: self.served_steps() == [step] * self.n_ranks, DRAIN_SECONDS_MAX, explain)

    def served_steps(self):
        body = get(self.web_port, "/metrics").decode()
        found = re.findall(r"^stepmem_rank_step\{[^\n]*\} (\d+)$", body, re.MULTILINE)
        return [int(step) for step in found]


class BareHyper(Stepmem):
    """hyper alone: takes the same pushes, and answers the bytes that `ours` answers."""

    name = "bare hyper"
    n_ports = 1

    def __init__(self, binary, folder, ours):
        super().__init__(binary, folder)
        self.answer_path = os.path.join(folder, "bare-answer.json")
        self.page_path = os.path.join(folder, "bare-page.txt")
        self.copy(ours)

    def copy(self, ours):
        """Takes the answers of `ours` as they are now; connections made from now on get them."""
        answer = post(ours.push_port, "/v1/steps", self.push_content_type, self.first_record(ours))
        with open(self.answer_path, "w") as out:
            out.write(answer)
        with open(self.page_path, "wb") as out:
            out.write(get(ours.web_port, "/metrics"))

    @staticmethod
    def first_record(ours):
        return ours.push_body(0) % figures(0, ours.next_step)

    def argv(self, *ports):
        return [self.binary, f"127.0.0.1:{ports[0]}", self.answer_path, self.page_path]

    @property
    def push_port(self):
        return self.ports[0]


class Recording(Stepmem):
    """stepmem that records what it accepts."""

    name = "stepmem-recording"

    def __init__(self, binary, folder):
        super().__init__(binary, folder)
        self.directory = os.path.join(folder, "recordings")

    def argv(self, *ports):
        return [*super().argv(*ports), "--record.directory", self.directory]

    def recorded_bytes(self):
        return sum(entry.stat().st_size for entry in os.scandir(self.directory))


class WithNvml(Stepmem):
    """stepmem beside a simulated driver."""

    name = "stepmem-nvml"

    def __init__(self, binary, folder, fake_nvml):
        super().__init__(binary, folder)
        self.library = os.path.join(folder, "libnvidia-ml.so.1")
        shutil.copy(fake_nvml, self.library)
        pids = process_ids()
        devices = [self.device(idx, pids[idx::N_DEVICES]) for idx in range(N_DEVICES)]
        with open(f"{self.library}.json", "w") as scenario:
            json.dump({"driver_version": "570.86.15", "devices": devices}, scenario)

    @staticmethod
    def device(idx, pids):
        return {
            "uuid": uuid(idx),
            "name": "NVIDIA H100 80GB HBM3",
            "memory": {"total": DEVICE_BYTES, "reserved": 1 << 30, "used": 40 << 30},
            "addressing": 1,
            "compute": [{"pid": pid, "used": 1 << 30} for pid in pids],
            "graphics": [],
            "mps": [],
        }

    def argv(self, *ports):
        nvml = ["--nvml.library", self.library, "--nvml.interval", "1s", "--nvml.devices", "all"]
        return [self.binary, "serve", *self.listen(*ports), *nvml]

    def n_processes(self):
        body = get(self.web_port, "/metrics").decode()
        return body.count("\nstepmem_process_memory_used_bytes{")


def process_ids():
    """N_PROCESSES of them: those that run here, so that they can be looked up, then unused ones."""
    running = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    unused = range(FIRST_UNUSED_PID, FIRST_UNUSED_PID + N_PROCESSES)
    return [*running, *unused][:N_PROCESSES]
