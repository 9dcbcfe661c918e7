"""The exporter's log as text, as `kubectl logs` shows it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request

from conftest import BINARY, DEADLINE


def test_card_of_a_run_is_legible_in_a_log_of_text():
    ports = ["--web.listen-address=127.0.0.1:0", "--push.listen-address=127.0.0.1:0"]
    with subprocess.Popen([BINARY, "serve", "--no-nvml", *ports], stderr=subprocess.PIPE, text=True) as exporter:
        before = iter(exporter.stderr.readline, "")
        address = next(found[1] for found in (re.search(r'address=(\S+) what="push"', line) for line in before) if found)
        records = [{"rank": 0, "step": step, "allocated_bytes": 1 << 30, "total_bytes": 1 << 34} for step in range(1, 101)]
        request = urllib.request.Request(f"http://{address}/v1/steps", json.dumps(records).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=DEADLINE).close()
        exporter.send_signal(signal.SIGTERM)
        _, log = exporter.communicate(timeout=DEADLINE)
    assert "\\n" not in log, log
    lines = [line.partition("INFO ")[2] for line in log.splitlines()]
    assert any(line.startswith("summary run=default verdict=") for line in lines), log
    (head,) = [at for at, line in enumerate(lines) if line.split()[:2] == ["RANK", "PEAK"]]
    assert lines[head + 1].split()[0] == "0", log
