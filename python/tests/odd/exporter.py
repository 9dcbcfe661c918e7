"""An exporter that requests a search for holders in each answer, and notes in files how many have ended."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
from collections import Counter
from typing import Any

ACTION = {"type": "holders", "run": "odd", "steps": 3, "bytes_per_step": 20_000.0, "is_on_host": True}


class Asking:
    """Listens on loopback. The n-th search that ends in a run makes a file `RUN.n` in `folder`."""

    def __init__(self) -> None:
        self.folder = pathlib.Path()
        self._n_over: "Counter[str]" = Counter()
        self._n_requests = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as file:
            try:
                while self._answer(file):
                    pass
            except (OSError, ValueError):
                pass

    def _answer(self, file: Any) -> bool:
        request = file.readline()
        length = 0
        for line in iter(file.readline, b"\r\n"):
            if not line:
                return False
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        body = file.read(length)
        actions = []
        with self._lock:
            if b" /v1/steps " in request:
                self._n_requests += 1
                actions = [{**ACTION, "id": f"odd-{self._n_requests}"}]
            elif b" /v1/holders " in request:
                self._note(json.loads(body))
        text = json.dumps({"accepted": 1, "actions": actions}).encode()
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        file.flush()
        return True

    def _note(self, result: Any) -> None:
        # Where another search is under way, a request fails at once.
        if result["outcome"] not in ("began", "failed"):
            self._n_over[result["run"]] += 1
            (self.folder / f"{result['run']}.{self._n_over[result['run']]}").touch(0o644)

    def close(self) -> None:
        self._listener.close()

    @property
    def n_over(self) -> int:
        """Searches that have ended in all runs."""
        return sum(self._n_over.values())
