"""The state of the run as flat figures, for an experiment tracker."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Union

from ._client import CLIENT
from ._settings import shown_url
from ._signals import raise_if_of_handler
from ._stats import memory_stats
from ._warn import warn_once

Figure = Union[str, int, float]

PAGE_URL = "http://127.0.0.1:9477"
"""The exporter's page, unless STEPMEM_WEB_URL or an argument names another."""

ANSWER_BYTES_MAX = 64 << 20
"""Longest summary that is read."""


def summary(url: Optional[str] = None, seconds: float = 2.0) -> Dict[str, Figure]:
    """Returns the run's diagnosis and figures as a flat dict, for a tracker: `wandb.log(stepmem.summary())`.

    `stepmem/…` is of this process, `stepmem/run/…` is what the exporter at `url` (its page; default: STEPMEM_WEB_URL, else
    http://127.0.0.1:9477) knows of the whole run. Waits at most `seconds` per read for it. Unknown figures are left out.
    """
    figures: Dict[str, Optional[Figure]] = {}
    try:
        figures = _own()
        CLIENT.flush(seconds)
        figures.update(_of_run(url or os.environ.get("STEPMEM_WEB_URL") or PAGE_URL, seconds))
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("summary", f"the summary of the run is unknown: {error}")
    return {f"stepmem/{name}": figure for name, figure in figures.items() if figure is not None}


def _own() -> Dict[str, Optional[Figure]]:
    identity, stats = CLIENT.process.identity(), memory_stats()
    return {"rank": identity.rank, "step": CLIENT.process.step, **stats._asdict()}


def _of_run(url: str, seconds: float) -> Dict[str, Optional[Figure]]:
    document = _read(url, CLIENT.process.identity().run, seconds)
    diagnosis, coverage = _mapping(document.get("diagnosis")), _mapping(document.get("coverage"))
    peaks = _mapping(_mapping(document.get("metrics")).get("peak_allocated"))
    figures = {
        "name": document.get("run"),
        "diagnosis": diagnosis.get("status"),
        "severity": diagnosis.get("severity"),
        "why": diagnosis.get("summary"),
        "worst_rank": document.get("worst_rank"),
        "ranks": coverage.get("ranks_seen"),
        "duration_seconds": document.get("duration_s"),
        "peak_allocated_bytes": peaks.get("worst_peak_bytes"),
        "imbalance_ratio": peaks.get("skew_pct"),
        "pressure_ratio": peaks.get("pressure_frac"),
    }
    evidence = _mapping(diagnosis.get("evidence"))
    for name in ("slope_bytes_per_step", "growth_bytes", "headroom_bytes", "oom_eta_seconds"):
        figures[name] = evidence.get(name)
    return {f"run/{name}": figure for name, figure in figures.items()}


def _read(url: str, run: str, seconds: float) -> Mapping[str, Any]:
    """Returns the exporter's summary of a run. Raises OSError or ValueError if there is none."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from json import loads
    from urllib.parse import quote, urlsplit

    shown = shown_url(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:  # its words repeat parts of the URL
        raise_if_of_handler(error)
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        raise ValueError(f"{shown} is not http://HOST:PORT")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(host, port, timeout=seconds)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/runs/{quote(run, safe='')}/summary")
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    except HTTPException as error:
        raise ValueError(f"{shown} does not answer as an exporter: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"{shown} answers {answer.status} for run {run!r}")
    return _mapping(loads(body))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
