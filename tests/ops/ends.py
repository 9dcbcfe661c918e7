"""Jobs that leak and end, and what Prometheus and Alertmanager tell of them.

    ends.py STEPMEM WORK_DIR [COUNT]

COUNT jobs (6 unless given) complete, and as many run out of memory; half of them under `stepmem run`, whose target stays after it
has gone, and half next to `stepmem serve --sidecar`, whose target goes with it. Of those that complete, a third do so while their page
is still to come, a third once it has come, and a third when their memory is all but full. Shows the following, and ends with a message
when one of them does not hold:

- each job that runs out of memory was paged before, and the time left that Prometheus had of it was true, half-way to the end and at each
  scrape of the last minute: half of these jobs reach the limit that their program set, far below the device's memory;
- no alert begins at an evaluation that no longer saw its job, but for those about the death itself;
- an alert that fires when its job completes resolves within its keep_firing_for and two evaluations;
- of such an alert each receiver that was told of it gets one notification more, that it is resolved; that of no other alert begins;
- neither exporter waits for a scrape after a good end.

A job takes its steps by Prometheus' evaluations, whatever the pace of this machine. Time is compressed as in live.py.
"""

import http.client
import itertools
import json
import os
import pathlib
import sys
import time

import yaml

from live import GIB, MIB, RULES, Receiver, ask, compressed, start_alertmanager, started_prometheus

from child import Failure, end_on_sigterm, start_listening, wait_until

SECONDS_MAX = 300
"""How long Prometheus may take from one evaluation to the next, and a notification to come."""

STEPS = 100
"""Steps that a job takes from one evaluation to the next; each takes a second of its own time."""

LAST_STEPS = 15
"""Such steps of a job whose memory is nearly full: Prometheus scrapes every 15 seconds."""

NEARLY_FULL = 300
"""Steps that are left then."""

MINUTE = 60
"""Steps of the last minute."""

LEAKS = [rate * MIB for rate in (8, 9, 10, 11, 12)]
"""What jobs leak in a step."""

CAPACITY, BASE = 80 * GIB, 20 * GIB
FRACTIONS = [share * GIB for share in (35, 45, 55)]
"""The limits of jobs that their program limits."""

ONSET = 200
"""The step from which on jobs leak."""

TIME_LEFT_ERROR_MAX = 0.2
"""How far off a time left may be, beside the steps between two scrapes."""

NOTIFIED_SECONDS_MAX = 10
"""How long the notification of an alert may take that begins while its job ends."""

PENDING_EVALUATIONS = 4
"""Evaluations of a finding after which a job completes that does not await its page; that needs six."""

PENDING, PAGED, FULL = range(3)
"""When a job completes."""

LATER_EVALUATIONS = 45
"""Evaluations after the last end: three times the longest duration of an alert."""

DEATH = {"StepmemOutOfMemory"}
"""Alerts that a death causes."""


def main():
    stepmem, work = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    count = int(sys.argv[3]) if sys.argv[3:] else 6
    end_on_sigterm()
    work.mkdir(parents=True, exist_ok=True)
    jobs, began = [], time.monotonic()
    try:
        jobs += [Job(stepmem, work, idx, dies) for dies in (False, True) for idx in range(count)]
        show(jobs, work)
        print(f"in {time.monotonic() - began:.0f} s")
    except Failure as failure:
        sys.exit(f"error: {failure}")
    finally:
        for job in jobs:
            job.exporter.stop()


class Job:
    """A job of one rank, and its exporter."""

    def __init__(self, stepmem, work, idx, dies):
        self.dies, self.is_run = dies, idx % 2 == 0
        self.completes = None if dies else idx // 2 % 3
        self.leak = LEAKS[idx % len(LEAKS)]
        self.limit = FRACTIONS[idx // 4 % len(FRACTIONS)] if dies and idx // 2 % 2 == 1 else CAPACITY
        self.last = next(step for step in itertools.count() if self.allocated(step + 1) + GIB > self.limit)
        self.times_left = []
        self.name = f"{'dies' if dies else 'completes'}-{idx}"
        self.log = work / f"{self.name}.log"
        self.step, self.seen = 0, 0
        self.ended_at = self.gone_at = None
        self.n_received = 0
        """Notifications before its end."""
        self.fifo = work / f"{self.name}.exit"
        os.mkfifo(self.fifo)

        def command(web, push):
            listen = [f"--web.listen-address=127.0.0.1:{web}", f"--push.listen-address=127.0.0.1:{push}", "--no-nvml"]
            if self.is_run:
                return [stepmem, "run", *listen, f"--summary.dir={work}/logs", "--summary-json", work / f"{self.name}.json", "--", "sh", "-c", f"read code <{self.fifo}; exit $code"]
            return [stepmem, "serve", "--sidecar", *listen]

        self.exporter, [web, push] = start_listening(command, 2, str(self.log))
        self.target, self.push = f"127.0.0.1:{web}", f"127.0.0.1:{push}"

    def post(self, path, body):
        connection = http.client.HTTPConnection(self.push, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise Failure(f"{self.name}: {answer.status}: {text}")

    def allocated(self, step):
        noise = step * 2654435761 % (32 * MIB)
        return BASE + max(0, step - ONSET) * self.leak + noise

    def stride(self, step):
        """The steps from one evaluation to the next."""
        return STEPS if step <= self.last - NEARLY_FULL else LAST_STEPS

    def advance(self):
        """Takes steps; returns False when the next one does not fit."""
        records = []
        for step in range(self.step + 1, min(self.step + self.stride(self.step), self.last) + 1):
            allocated = self.allocated(step)
            records.append({
                "run": self.name, "rank": 0, "world_size": 1, "step": step, "time": self.began() + step, "step_seconds": 1.0,
                "device": f"GPU-{self.name}", "total_bytes": CAPACITY, "allocated_bytes": allocated, "peak_allocated_bytes": allocated + GIB,
                "reserved_bytes": allocated + GIB, "peak_reserved_bytes": allocated + GIB, "alloc_retries": 0, "ooms": 0,
                "reserved_limit_bytes": self.limit,
            })
        if records:
            self.post("/v1/steps", records)
            self.step += len(records)
        return self.step < self.last

    def began(self):
        return 1_750_000_000

    def check_times_left(self):
        """Compares the times left that were scraped with the steps that were left, which take a second each."""
        if not self.times_left:
            raise Failure(f"{self.name}: no time left was scraped")
        half = min(self.times_left, key=lambda at: abs(at[0] - (ONSET + self.last) / 2))
        minute = [at for at in self.times_left if self.last - at[0] <= MINUTE]
        if not minute:
            raise Failure(f"{self.name}: no time left was scraped in the last minute")
        for step, left in (half, *minute):
            truth = self.last - step
            if abs(left - truth) > TIME_LEFT_ERROR_MAX * truth + self.stride(step):
                raise Failure(f"{self.name}: a scrape at step {step:.0f} had {left:.0f} s left; it died after step {self.last}")

    def end(self, outcome):
        """Reports the end, and ends the exporter as its surroundings do; returns once that is gone."""
        self.post(f"/v1/runs/{self.name}/end", {"rank": 0, "outcome": outcome})
        if self.is_run:
            with open(self.fifo, "w") as fifo:
                fifo.write("1\n" if self.dies else "0\n")
            wait_until(self.exporter.has_ended, SECONDS_MAX, lambda: f"{self.name}: stepmem run goes on:\n{self.exporter.log_tail()}")
        else:
            self.exporter.stop()
        if not self.dies and "waiting for a last scrape" in self.log.read_text():
            raise Failure(f"{self.name}: its exporter waited for a scrape after a good end")


class Monitoring:
    """Prometheus as the jobs see it."""

    def __init__(self, port):
        self.port, self.evaluated = port, None

    def next_evaluation(self):
        """Waits until the rules of ranks were evaluated once more."""

        def look():
            groups = ask(self.port, "/api/v1/rules")["data"]["groups"]
            [newest] = [group["lastEvaluation"] for group in groups if group["name"] == "stepmem.ranks"]
            is_new, self.evaluated = newest != self.evaluated, newest
            return is_new

        wait_until(look, SECONDS_MAX, lambda: f"no evaluation since {self.evaluated}")

    def sees(self, job, time):
        """Whether a scrape had a finding of a job that goes on, at the time of an evaluation."""
        of_run = f'stepmem_diagnosis_severity{{run="{job.name}"}} unless on (run) stepmem_rank_ended_timestamp_seconds'
        return bool(self.values(of_run, time=time))

    def lists(self, job, time):
        """Whether a target that was taken from Prometheus' list before that time is one nevertheless: a busy machine reads the list late."""
        return job.gone_at is not None and job.gone_at < time and bool(self.values(f'up{{pod="{job.name}"}}', time=time))

    def values(self, expression, **parameters):
        answer = ask(self.port, "/api/v1/query", query=expression, **parameters)
        if answer["status"] != "success":
            raise Failure(f"{expression}: {answer['error']}")
        return answer["data"]["result"]

    def of_one_scrape(self, *names):
        """The newest sample of each run, by metric."""
        found = {name: {} for name in names}
        for of in self.values(f'{{__name__=~"{"|".join(names)}"}}'):
            found[of["metric"]["__name__"]][of["metric"]["run"]] = float(of["value"][1])
        return found.values()

    def times(self, selector):
        """The times of all samples of each series, with its labels."""
        return [(series["metric"], [time for time, _ in series["values"]]) for series in self.values(f"{selector}[3h]")]


def show(jobs, work):
    receiver = Receiver()
    targets = Targets(work / "targets.json", jobs)
    alertmanager, [alerts_port] = start_alertmanager(work, receiver.port)
    with alertmanager:
        prometheus, [port] = start_prometheus(work, alerts_port)
        with prometheus:
            monitoring = Monitoring(port)
            run(jobs, targets, monitoring, receiver)
            for _ in range(LATER_EVALUATIONS):
                monitoring.next_evaluation()
            judge(jobs, monitoring, receiver)


class Targets:
    """The file by which Prometheus finds the jobs' exporters."""

    def __init__(self, path, jobs):
        self.path, self.jobs = path, list(jobs)
        self.write()

    def gone(self, job):
        self.jobs.remove(job)
        self.write()
        job.gone_at = time.time()

    def write(self):
        labels = [{"targets": [job.target], "labels": {"cluster": "here", "namespace": "ml", "pod": job.name}} for job in self.jobs]
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps(labels))
        fresh.rename(self.path)


def start_prometheus(work, alerts_port):
    folder = work / "prometheus"
    folder.mkdir()
    (folder / "rules.yaml").write_text(compressed(RULES.read_text()))
    # Alertmanager takes as resolved what it was not sent for four times as long; a busy machine evaluates less often than every 4 s.
    return started_prometheus(folder, {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts_port}"]}]}]},
        "scrape_configs": [{"job_name": "stepmem", "file_sd_configs": [{"files": [str(work / "targets.json")]}]}],
    }, resent_after="15s")


def run(jobs, targets, monitoring, receiver):
    """Has the jobs take their steps and end."""
    going = list(jobs)
    while going:
        monitoring.next_evaluation()
        creeping = {of["metric"]["run"] for of in monitoring.values('stepmem_diagnosis_severity{kind="CREEP_CONFIRMED"} > 1')}
        steps, left = monitoring.of_one_scrape("stepmem_rank_step", "stepmem_oom_eta_seconds")
        for job in list(going):
            job.seen += job.name in creeping
            if job.name in steps and job.name in left:
                job.times_left.append((steps[job.name], left[job.name]))
            is_paged = bool(paged(receiver, job))
            goes_on = job.advance()
            if not goes_on and not is_paged:
                raise Failure(f"{job.name}: no page before its memory was full, after step {job.step}")
            if goes_on and not {None: False, PENDING: job.seen >= PENDING_EVALUATIONS, PAGED: is_paged, FULL: False}[job.completes]:
                continue
            if job.dies:
                job.check_times_left()
            job.ended_at, job.n_received = time.time(), len(receiver.received)
            job.end("oom" if job.dies else "completed")
            going.remove(job)
            if not job.is_run:
                targets.gone(job)


def is_about(labels, job):
    return job.name in (labels.get("run"), labels.get("pod"))


def paged(receiver, job):
    return [alert for path, alert in receiver.alerts() if path == "pager" and alert["status"] == "firing" and is_about(alert["labels"], job)]


def judge(jobs, monitoring, receiver):
    keeps = {}
    for group in yaml.safe_load(compressed(RULES.read_text()))["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                keeps[rule["alert"]] = max(keeps.get(rule["alert"], 0), int(rule.get("keep_firing_for", "0s")[:-1]))
    firing = monitoring.times('ALERTS{alertstate="firing"}')
    n_began, n_resolved = 0, 0
    for job in jobs:
        of_job = [(labels, times) for labels, times in firing if is_about(labels, job)]
        for labels, times in of_job:
            name = labels["alertname"]
            n_began += 1
            if name in DEATH and job.dies:
                continue
            if name == "StepmemExporterDown" and monitoring.lists(job, times[0]):
                print(f"{job.name}: Prometheus listed its target for longer than it may be down", file=sys.stderr)
                continue
            if not monitoring.sees(job, times[0]):
                raise Failure(f"{name} of {job.name} began when its job was no longer seen")
            if not job.dies:
                n_later = sum(not monitoring.sees(job, time) for time in times)
                if n_later > keeps[name] + 2:
                    raise Failure(f"{name} of {job.name} went on for {n_later} evaluations after its job was gone; it is kept for {keeps[name]}")
        if not job.dies:
            n_resolved += notified(job, receiver, of_job)
    print(f"{len(jobs)} jobs, {n_began} alerts, {n_resolved} notifications that one is resolved after a good end")


def notified(job, receiver, of_job):
    """Compares the notifications after a good end with those before; returns of how many alerts a receiver was told that they are resolved."""
    began = {labels["alertname"]: min(times) for labels, times in of_job}
    told = {}
    """What a receiver was told of an alert, in order, each time with whether that was after the end."""
    for idx, (path, body) in enumerate(receiver.received):
        for alert in body["alerts"]:
            if is_about(alert["labels"], job):
                told.setdefault((path, alert["fingerprint"], alert["labels"]["alertname"]), []).append((alert["status"], idx >= job.n_received))
    for (path, _, name), words in told.items():
        # Of an alert that another one inhibits a receiver is told no more than that it is resolved.
        is_late = all(is_after for _, is_after in words) and words[0][0] == "firing"
        if is_late and began[name] < job.ended_at - NOTIFIED_SECONDS_MAX:
            raise Failure(f"{path} was first told of {name} of {job.name} after its end; it began {job.ended_at - began[name]:.0f} s before: {words}")
        if is_late:
            print(f"{job.name}: {name} began while it ended", file=sys.stderr)
        n_resolved = [status for status, is_after in words if is_after].count("resolved")
        if n_resolved != 1 or words[-1][0] != "resolved":
            raise Failure(f"{path} was told of {name} of {job.name}: {words}")
    if job.completes != PENDING and not any(path == "pager" for path, _, _ in told):
        raise Failure(f"the page of {job.name} did not resolve")
    return len(told)


if __name__ == "__main__":
    main()
