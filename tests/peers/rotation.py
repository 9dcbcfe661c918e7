"""Proves that a real Prometheus misses no scrape over TLS while the exporter's certificates are renewed.

Starts Debian's `prometheus` with a scrape every other second over TLS with a client certificate and a user, and a thread that opens
one connection after another. Then puts each of the given pairs in place of the exporter's certificate and key, sends
SIGHUP, and waits until the certificate is shown and Prometheus has scraped again. Prints what it counted as JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import ssl
import sys
import threading
import urllib.parse
import urllib.request

from child import Failure, end_on_sigterm, start_listening, wait_until

PAUSE_SECONDS = 0.01
"""Between two connections, so that the scrapes have a processor."""

SCRAPED_SECONDS_MAX = 300
"""Time in which Prometheus must have scraped again, and the exporter have read its files."""

ANSWER_SECONDS_MAX = 300

CONFIG = """\
global:
  scrape_interval: 2s
  scrape_timeout: 2s
scrape_configs:
  - job_name: peer
    scheme: https
    tls_config: {{ca_file: {ca}, cert_file: {cert}, key_file: {key}}}
    basic_auth: {{username: {user}, password: {password}}}
    static_configs:
      - targets: [{target}]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit status: 0, or 1 and why.")
    for name in ("target", "work-dir", "ca", "cert", "key", "user", "server-cert", "server-key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--pid", required=True, type=int, help="the exporter, which gets SIGHUP")
    parser.add_argument("--pairs", required=True, nargs="+", help="certificates and keys by turns")
    args = parser.parse_args()
    end_on_sigterm()
    try:
        print(json.dumps(rotate(args)))
    except Failure as failure:
        sys.exit(f"error: {failure}")


def rotate(args):
    """Puts each pair in place; returns the counts."""
    os.makedirs(args.work_dir)
    config = os.path.join(args.work_dir, "prometheus.yml")
    user, _, password = args.user.partition(":")
    with open(config, "w") as out:
        values = {name: json.dumps(getattr(args, name)) for name in ("ca", "cert", "key", "target")}
        out.write(CONFIG.format(user=json.dumps(user), password=json.dumps(password), **values))
    prometheus, (port,) = start_listening(
        lambda port: [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={os.path.join(args.work_dir, 'storage')}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        1,
        os.path.join(args.work_dir, "prometheus.log"),
        is_ready=lambda port: answer_of(f"http://127.0.0.1:{port}/-/ready") is not None,
    )
    with prometheus:
        load = Load(args)
        wait_for_scrapes(port, 1)
        load.start()
        certificates = set()
        for cert, key in zip(args.pairs[::2], args.pairs[1::2]):
            n_scrapes = scrapes(port)
            with open(cert) as file:
                shown = ssl.PEM_cert_to_DER_cert(file.read())
            for new, old in ((key, args.server_key), (cert, args.server_cert)):
                os.replace(new, old)
            os.kill(args.pid, signal.SIGHUP)
            wait_until(lambda: load.last == shown, SCRAPED_SECONDS_MAX, lambda: f"{cert} is not shown: {load.errors}")
            certificates.add(shown)
            wait_for_scrapes(port, n_scrapes + 1)
        load.stop()
        n_scrapes = scrapes(port)
        targets = answer_of(targets_url(port))
        return {
            "scrapes": n_scrapes,
            "failed_scrapes": int(value(port, "sum(count_over_time(up[10m]) - sum_over_time(up[10m]))")),
            "connections": load.n_made,
            "failed_connections": len(load.errors),
            "certificates": len(certificates),
            "errors": load.errors[:3],
            "targets": json.loads(targets or b"null"),
        }


class Load(threading.Thread):
    """Opens one connection after another and scrapes once on each."""

    def __init__(self, args):
        super().__init__(daemon=True)
        self.context = ssl.create_default_context(cafile=args.ca)
        self.context.load_cert_chain(args.cert, args.key)
        self.address = args.target.rsplit(":", 1)
        self.head = (
            f"GET /metrics HTTP/1.1\r\nHost: {args.target}\r\nConnection: close\r\n"
            f"Authorization: Basic {base64.b64encode(args.user.encode()).decode()}\r\n\r\n"
        ).encode()
        self.last = None
        self.n_made = 0
        self.errors = []
        self.is_over = threading.Event()

    def run(self):
        host, port = self.address
        while not self.is_over.wait(PAUSE_SECONDS):
            try:
                self.last = self.scrape(host, int(port))
                self.n_made += 1
            except OSError as error:
                self.errors.append(str(error))

    def scrape(self, host, port):
        """Scrapes once; returns the certificate that was shown."""
        with socket.create_connection((host, port), ANSWER_SECONDS_MAX) as plain:
            with self.context.wrap_socket(plain, server_hostname=host) as opened:
                opened.sendall(self.head)
                if not opened.recv(64).startswith(b"HTTP/1.1 200 "):
                    raise OSError("the answer is not 200")
                while opened.recv(65536):
                    pass
                return opened.getpeercert(binary_form=True)

    def stop(self):
        self.is_over.set()
        self.join()


def wait_for_scrapes(port, n_scrapes):
    wait_until(
        lambda: scrapes(port) >= n_scrapes,
        SCRAPED_SECONDS_MAX,
        lambda: f"Prometheus has {scrapes(port)} scrapes of {n_scrapes}: {answer_of(targets_url(port))}",
    )


def targets_url(port):
    return f"http://127.0.0.1:{port}/api/v1/targets"


def scrapes(port):
    """Scrapes so far, also those that failed."""
    return int(value(port, "sum(count_over_time(up[10m]))"))


def value(port, expression):
    """The only value of a query; 0 without one."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    result = json.loads(answer_of(url) or b'{"data":{"result":[]}}')["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def answer_of(url):
    """A GET; None while it cannot be answered."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.read()
    except OSError:
        return None


if __name__ == "__main__":
    main()
