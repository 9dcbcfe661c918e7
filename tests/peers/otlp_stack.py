"""Starts a real Prometheus 3 that receives OTLP, itself or through the OpenTelemetry Collector, and evaluates our rules.

    prometheus   exporters send to Prometheus' own receiver
    collector    exporters send to the Collector, which Prometheus scrapes

tests/fleet/over_otlp.py has the Collector also forward what it receives to Prometheus' own receiver.

The settings are those of docs/otlp.md, with the addresses replaced. Prints {"otlp": URL, "protocol": NAME, "prometheus":
PORT} on stdout once all accept on 127.0.0.1, and ends when its stdin closes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile

from child import Failure, end_on_sigterm, start_listening

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target/tools/bin"
RULES = ROOT / "alerts/stepmem.rules.yaml"

COLLECTOR = """
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
      http: {{endpoint: "127.0.0.1:{http}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [{exporters}]}}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receiver", choices=["prometheus", "collector"])
    receiver = parser.parse_args().receiver
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory(prefix="stepmem-otlp-") as folder, contextlib.ExitStack() as children:
            say = {"prometheus": with_prometheus, "collector": with_collector}[receiver](folder, children)
            print(json.dumps(say), flush=True)
            sys.stdin.read()
    except Failure as failure:
        sys.exit(f"error: {failure}")


def documented(first_key):
    """Returns the settings of docs/otlp.md that begin with this key."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/otlp.md").read_text(), re.DOTALL)
    matching = [block for block in blocks if block.startswith(first_key)]
    if len(matching) != 1:
        raise Failure(f"docs/otlp.md has {len(matching)} blocks that begin with {first_key}")
    return matching[0]


def replaced(text, old, new):
    if old not in text:
        raise Failure(f"docs/otlp.md does not have {old} any more")
    return text.replace(old, new)


def with_prometheus(folder, children):
    port = prometheus(folder, children, documented("otlp:"))
    return {"otlp": receiver_of(port), "protocol": "http/protobuf", "prometheus": port}


def receiver_of(port):
    return f"http://127.0.0.1:{port}/api/v1/otlp"


def with_collector(folder, children):
    (grpc, _), scraped = collector(folder, children)
    port = prometheus(folder, children, scrape_of(scraped))
    return {"otlp": f"http://127.0.0.1:{grpc}", "protocol": "grpc", "prometheus": port}


def collector(folder, children, forwarded_to=None):
    """Starts the Collector, which forwards to the receiver of a Prometheus if given; returns its ports, gRPC and HTTP, and that to scrape."""

    def command(grpc, http, scraped):
        exporters = {"prometheus": replaced(documented("exporters:\n  prometheus:"), "0.0.0.0:8889", f"127.0.0.1:{scraped}")}
        if forwarded_to:
            [key, forwarding] = replaced(documented("exporters:\n  otlp_http:"), "http://prometheus:9090/api/v1/otlp", forwarded_to).split("\n", 1)
            exporters["otlp_http"] = forwarding
        settings = COLLECTOR.format(grpc=grpc, http=http, exporters=", ".join(exporters))
        config = write(folder, "collector.yaml", "".join(exporters.values()) + settings)
        return [TOOLS / "otelcol", f"--config=file:{config}"]

    child, (grpc, http, scraped) = start_listening(command, 3, os.path.join(folder, "collector.log"))
    children.enter_context(child)
    return (grpc, http), scraped


def scrape_of(port):
    return replaced(documented("scrape_configs:"), "collector:8889", f"127.0.0.1:{port}")


def prometheus(folder, children, settings, rules=RULES, seconds=1):
    """Starts Prometheus with rules, scraping and evaluating at this interval; returns its port."""
    common = f"global: {{scrape_interval: {seconds}s, scrape_timeout: {seconds}s, evaluation_interval: {seconds}s}}\nrule_files: [{rules}]\n"
    folder = tempfile.mkdtemp(prefix="prometheus-", dir=folder)
    config = write(folder, "prometheus.yml", common + settings)
    child, (port,) = start_listening(
        lambda port: [
            TOOLS / "prometheus3",
            f"--config.file={config}",
            f"--storage.tsdb.path={os.path.join(folder, 'storage')}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-otlp-receiver",
            "--log.level=warn",
        ],
        1,
        os.path.join(folder, "log"),
    )
    children.enter_context(child)
    return port


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as out:
        out.write(text)
    return path


if __name__ == "__main__":
    main()
