"""Scrapes one after the other, with as little Python around them as possible."""

import re
import socket
import time

from child import Failure
from web import REQUEST_SECONDS_MAX

PLAIN = "Accept: text/plain;version=0.0.4\r\n"
AS_PROMETHEUS = (
    "Accept: application/openmetrics-text;version=1.0.0,"
    "application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
    "Accept-Encoding: gzip\r\n"
)


def scrape_alone(port, n_scrapes, headers):
    """Times scrapes on one kept-alive connection; returns (seconds of each, bytes of the last)."""
    scraper = Scraper(port, headers)
    seconds = []
    for _ in range(n_scrapes):
        begin = time.perf_counter()
        n_bytes = scraper.scrape()
        seconds.append(time.perf_counter() - begin)
    scraper.close()
    return seconds, n_bytes


class Scraper:
    """GET /metrics on one kept-alive connection."""

    def __init__(self, port, headers):
        self.request = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
        address = ("127.0.0.1", port)
        self.socket = socket.create_connection(address, timeout=REQUEST_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def scrape(self):
        """Scrapes once; returns the length of the answer's body, as sent."""
        self.socket.sendall(self.request)
        answer = self.receive()
        while b"\r\n\r\n" not in answer:
            answer += self.receive()
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Failure(f"/metrics answered {head.splitlines()[0].decode(errors='replace')}")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length:
            while len(body) < int(length[1]):
                body += self.receive()
        else:  # chunked
            while not body.endswith(b"0\r\n\r\n"):
                body += self.receive()
        return len(body)

    def receive(self):
        received = self.socket.recv(1 << 18)
        if not received:
            raise Failure("the connection was closed in the middle of a scrape")
        return received

    def close(self):
        self.socket.close()
