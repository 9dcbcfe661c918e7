"""Pushes recordings to a real exporter, and takes its surfaces at several moments."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import time
from typing import Dict, List

from .observed import Moment, Observed
from .recordings import OUTCOMES

MOMENTS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Shares of a job after which the surfaces are taken."""

SECONDS_MAX = 120
LISTENING = re.compile(r'listening address=127\.0\.0\.1:(\d+) what="')
REQUESTS_MAX = 5
"""Times that a summary is asked for until its words are the same before and after."""

RUNS_MAX = 48
"""Runs that one exporter sees."""


class Exporter:
    """`stepmem serve` on free ports of loopback."""

    def __init__(self, stepmem: pathlib.Path, folder: pathlib.Path):
        self.stepmem, self.folder = stepmem, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "exporter.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPMEM_")}
        arguments = [stepmem, "serve", "--web.listen-address=127.0.0.1:0", "--push.listen-address=127.0.0.1:0", "--no-nvml"]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(arguments, stderr=log, stdout=log, env=environment)
        self.web, self.push = self._addresses()

    def _addresses(self):
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            lines = self.log.read_text(encoding="utf-8").splitlines()
            found = {line.split('what="')[1][:-1]: int(LISTENING.search(line)[1]) for line in lines if LISTENING.search(line)}
            if len(found) == 2:
                return found["web"], found["push"]
            time.sleep(0.02)
        raise SystemExit(f"the exporter did not start:\n{self.log.read_text(encoding='utf-8')}")

    def post(self, path, body):
        """Pushes; ends with the exporter's answer where that is not 200."""
        self._ask(self.push, "POST", path, json.dumps(body))

    def get(self, path):
        """A page of the web listener."""
        return self._ask(self.web, "GET", path, None)

    def _ask(self, port, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
        try:
            connection.request(method, path, body, {"content-type": "application/json"} if body else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise SystemExit(f"{method} {path}: {answer.status}: {text[:500]}")
        return text

    def summary(self, run, *arguments):
        """What `stepmem summary` prints of a run."""
        command = [self.stepmem, "summary", "--url", f"http://127.0.0.1:{self.web}", "--run", run, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS_MAX).stdout

    def stop(self):
        """Ends the exporter."""
        self.process.terminate()
        self.process.wait(SECONDS_MAX)


def observe(exporter: Exporter, recording) -> Observed:
    """Pushes a recording, and takes what is said of it."""
    moments: List[Moment] = []
    sent = 0
    for share in MOMENTS:
        until = max(1, round(recording.last * share))
        batches = []
        for rank in recording.ranks:
            batches += [record for record in rank.records if sent < record["step"] <= until]
        batches.sort(key=lambda record: record["step"])
        for start in range(0, len(batches), 256):
            exporter.post("/v1/steps", batches[start : start + 256])
        if batches:
            moments.append(moment(exporter, recording.name, until))
        sent = until
    outcomes = [OUTCOMES.get(rank.truth.end) for rank in recording.ranks]
    if all(outcomes):
        for rank, outcome in enumerate(outcomes):
            exporter.post(f"/v1/runs/{recording.name}/end", {"rank": rank, "outcome": outcome})
        moments.append(moment(exporter, recording.name, recording.last, has_ended=True))
    return Observed(tuple(moments), *summary_and_card(exporter, recording.name))


def summary_and_card(exporter: Exporter, run: str):
    """The summary of a run as JSON and as text, as of one moment: of a run that goes on the time left falls between two requests."""
    for _ in range(REQUESTS_MAX):
        summary, card, again = (exporter.summary(run, *more) for more in (("--json",), (), ("--json",)))
        summary, again = json.loads(summary), json.loads(again)
        if [issue["summary"] for issue in summary["issues"]] == [issue["summary"] for issue in again["issues"]]:
            break
    return summary, card


def moment(exporter: Exporter, run: str, step: int, has_ended: bool = False) -> Moment:
    """The surfaces as they are now, of one run."""
    status = json.loads(exporter.get("/api/v1/status"))
    of_run: Dict = {key: [each for each in status[key] if each.get("run") == run] for key in ("runs", "ranks", "findings")}
    label = f'run="{run}"'
    metrics = "\n".join(line for line in exporter.get("/metrics").splitlines() if label in line)
    return Moment(step, of_run, metrics, has_ended)
