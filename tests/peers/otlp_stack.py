"""Starts a real Prometheus 3 that receives OTLP, itself or through the OpenTelemetry Collector, and evaluates our rules.

    prometheus   exporters send to Prometheus' own receiver
    collector    exporters send to the Collector, which Prometheus scrapes

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
      grpc: {{endpoint: "127.0.0.1:{otlp}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [prometheus]}}
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
    return {"otlp": f"http://127.0.0.1:{port}/api/v1/otlp", "protocol": "http/protobuf", "prometheus": port}


def with_collector(folder, children):
    def command(otlp, scraped):
        exporters = replaced(documented("exporters:"), "0.0.0.0:8889", f"127.0.0.1:{scraped}")
        config = write(folder, "collector.yaml", exporters + COLLECTOR.format(otlp=otlp))
        return [TOOLS / "otelcol", f"--config=file:{config}"]

    collector, (otlp, scraped) = start_listening(command, 2, os.path.join(folder, "collector.log"))
    children.enter_context(collector)
    scrape = replaced(documented("scrape_configs:"), "collector:8889", f"127.0.0.1:{scraped}")
    port = prometheus(folder, children, scrape)
    return {"otlp": f"http://127.0.0.1:{otlp}", "protocol": "grpc", "prometheus": port}


def prometheus(folder, children, settings):
    """Starts Prometheus with our rules, evaluated every second; returns its port."""
    common = f"global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES}]\n"
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
        os.path.join(folder, "prometheus.log"),
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
