"""Proves that Prometheus' reference parsers read /metrics as intended, in both formats.

Fetches the text format 0.0.4 and OpenMetrics 1.0, parses each with prometheus_client's own parser, checks
what those lax parsers let pass (metadata once and first, families in one piece, no series twice, no NaN of
stepmem's), and shows that both carry the same samples. Sends the Accept headers of real scrapers.

Prints {"families": {NAME: {"type", "unit", "help", "samples": [[name, labels, value], ...]}}} on stdout.
Types and names are OpenMetrics': a counter's family has no _total, an info's no _info; its samples do.

A live exporter changes between two fetches: text is fetched before and after OpenMetrics until the two agree,
and VOLATILE values are not compared at all. A job that never pauses needs --live: names and labels only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import sys
import time
import urllib.error
import urllib.request

from child import POLL_SECONDS, Failure
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

VOLATILE = re.compile(
    r"""process_.*                                       # the exporter's own CPU, memory, descriptors
      | go_.*                                            # the same for the programs compared with
      | stepmem_.*_duration_seconds(_bucket|_sum|_count)? # a poll or a push may end in between
      | stepmem_rank_interval_peak_allocated_bytes       # a scrape begins a new interval
      | stepmem_oom_eta_seconds                          # counts down by itself
      | stepmem_inbox_depth
      | stepmem_nvml_last_success_timestamp_seconds      # NVML is polled meanwhile,
      | stepmem_nvml_errors_total                        # or tried again,
      | stepmem_otlp_exports_total                       # and OTLP exported
    """,
    re.VERBOSE,
)
"""Samples whose value may differ between two fetches; their labels may not."""

ACCEPTS = [
    ("a client without Accept", None, TEXT),
    ("curl", "*/*", TEXT),
    ("a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TEXT),
    (
        "Prometheus 2.42",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        OPENMETRICS,
    ),
    (
        "Prometheus 3",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
        "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        OPENMETRICS,
    ),
    ("vmagent", "text/plain;version=0.0.4;q=1,*/*;q=0.1", TEXT),
    ("a client that prefers text", "application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.9", TEXT),
]
"""Scrapers, their Accept header, and the format they must get."""

FETCH_SECONDS_MAX = 300
SETTLE_SECONDS_MAX = 300

LINE = re.compile(r"# (?P<keyword>HELP|TYPE|UNIT) (?P<family>[^ ]+)( .*)?|(?P<series>[^ {]+({.*})?) (?P<value>[^ ]+)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit status: 0, or 1 and why.")
    parser.add_argument("url", help="http://HOST:PORT/metrics")
    parser.add_argument("--live", action="store_true", help="samples change all the time: do not compare values")
    parser.add_argument(
        "--no-negotiation", action="store_true", help="do not try the Accept headers of real scrapers"
    )
    args = parser.parse_args()
    try:
        families = check(args.url, args.live)
        if not args.no_negotiation:
            check_negotiation(args.url)
    except Failure as failure:
        sys.exit(f"error: {args.url}: {failure}")
    json.dump({"families": families}, sys.stdout, allow_nan=False)
    print()


def check(url, live):
    """Compares both formats; returns the families to print."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        before = Scrape(parse_text, fetch(url, TEXT))
        openmetrics = Scrape(parse_openmetrics, fetch(url, OPENMETRICS))
        after = Scrape(parse_text, fetch(url, TEXT))
        if before.settled(live) == after.settled(live):
            compare(before, openmetrics, live)
            return openmetrics.as_json()
        if time.monotonic() >= deadline:
            raise Failure(
                f"two fetches of the text format differed for {SETTLE_SECONDS_MAX} s (pause the pushes, or "
                f"--live): {difference(before.settled(live), after.settled(live))}"
            )
        time.sleep(POLL_SECONDS)


def check_negotiation(url):
    """Sends the Accept headers of real scrapers and checks the Content-Type."""
    for who, accept, expected in ACCEPTS:
        fetch(url, expected, accept=accept, who=who)


def fetch(url, expected, accept="", who="this test"):
    """Fetches one exposition as text; its Content-Type must be the expected one. Answers may be gzipped."""
    headers = {"Accept-Encoding": "gzip"}
    accept = expected if accept == "" else accept
    if accept is not None:
        headers["Accept"] = accept
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=FETCH_SECONDS_MAX) as answer:
            body = answer.read()
            content_type = answer.headers.get("Content-Type", "none")
            encoding = answer.headers.get("Content-Encoding", "identity")
    except urllib.error.URLError as error:
        raise Failure(f"{who} got no answer to Accept: {accept}: {error}") from None
    if essence(content_type) != essence(expected):
        raise Failure(f"{who} sent Accept: {accept} and got Content-Type {content_type}, not {expected}")
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding != "identity":
        raise Failure(f"{who} accepts gzip and got Content-Encoding {encoding}")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(f"{expected} is not UTF-8: {error}") from None


def essence(content_type):
    """A media type's comparable part: type and version, whatever the order and the charset."""
    media, *parameters = [part.strip().lower() for part in content_type.split(";")]
    return media, sorted(part for part in parameters if part.startswith("version="))


class Scrape:
    """One exposition as a reference parser reads it."""

    def __init__(self, parse, body):
        self.is_openmetrics = parse is parse_openmetrics
        self.label = OPENMETRICS if self.is_openmetrics else TEXT
        check_lines(body, self.label)
        try:
            self.families = list(parse(body))
        except ValueError as error:
            raise Failure(f"prometheus_client cannot parse {self.label}: {error!r}") from None
        self.samples = {}
        self.types = {}
        self.helps = {}
        for family in self.families:
            for sample in family.samples:
                if self.is_openmetrics and sample.name.endswith("_created"):
                    continue  # only OpenMetrics has it
                if math.isnan(sample.value) and sample.name.startswith("stepmem_"):
                    raise Failure(f"{self.label}: {series_text(sample)} is NaN; an absent value is an absent series")
                self.samples[series_key(sample)] = sample.value
                self.types[sample.name] = family.type
                self.helps[sample.name] = family.documentation

    def settled(self, live):
        """Series and value, without the values that may change between two fetches."""
        return {
            key: None if live or VOLATILE.fullmatch(key[0]) or math.isnan(value) else value
            for key, value in self.samples.items()
        }

    def as_json(self):
        """The families as the caller gets them."""
        return {
            family.name: {
                "type": family.type,
                "unit": family.unit,
                "help": family.documentation,
                "samples": [[each.name, each.labels, json_value(each.value)] for each in family.samples],
            }
            for family in self.families
        }


def check_lines(body, label):
    """Checks the rules of both formats that prometheus_client's parsers do not check."""
    if not body.endswith("\n"):
        raise Failure(f"{label} does not end in a line feed")
    family, closed, metadata, seen = None, set(), set(), set()
    for number, line in enumerate(body.split("\n")[:-1], start=1):
        where = f"{label} line {number} ({line[:120]})"
        if line == "# EOF":
            continue
        match = LINE.fullmatch(line)
        if not match:
            raise Failure(f"{where} is neither HELP, TYPE, UNIT nor a sample without a timestamp")
        if match["keyword"]:
            if match["family"] != family:
                closed.add(family)
                family = match["family"]
                if family in closed:
                    raise Failure(f"{where} returns to a family after another one")
            elif (family, "sample") in metadata:
                raise Failure(f"{where} comes after a sample of its family")
            if (family, match["keyword"]) in metadata:
                raise Failure(f"{where} appears twice")
            metadata.add((family, match["keyword"]))
            continue
        name = match["series"].split("{")[0]
        if family is None or not re.fullmatch(f"{re.escape(family)}(_total|_bucket|_sum|_count|_info|_created)?", name):
            raise Failure(f"{where} is outside its family")
        missing = {"HELP", "TYPE"} - {keyword for of, keyword in metadata if of == family}
        if missing:
            raise Failure(f"{where} has no {' and '.join(sorted(missing))}")
        metadata.add((family, "sample"))
        if match["series"] in seen:
            raise Failure(f"{where} is a series that appeared before")
        seen.add(match["series"])


def compare(text, openmetrics, live):
    """Raises unless both formats carry the same samples under the same types and help."""
    ours, theirs = text.settled(live), openmetrics.settled(live)
    if ours != theirs:
        raise Failure(f"the text format (left) and OpenMetrics (right) differ: {difference(ours, theirs)}")
    for name, kind in openmetrics.types.items():
        expected = {"info": "gauge", "stateset": "gauge"}.get(kind, kind)
        if text.types[name] != expected:
            raise Failure(f"{name} is a {text.types[name]} in the text format and a {kind} in OpenMetrics")
        if text.helps[name] != openmetrics.helps[name]:
            raise Failure(f"{name} has two helps: {text.helps[name]!r} and {openmetrics.helps[name]!r}")


def series_key(sample):
    """Name and labels; bucket bounds and quantiles as numbers, since 1 and 1.0 are the same bound."""
    labels = {
        name: repr(float(value)) if name in ("le", "quantile") else value for name, value in sample.labels.items()
    }
    return sample.name, tuple(sorted(labels.items()))


def series_text(sample):
    return f"{sample.name}{{{','.join(f'{name}={value!r}' for name, value in sorted(sample.labels.items()))}}}"


def json_value(value):
    """A sample's value; text for one that is not finite, which JSON cannot represent."""
    if math.isfinite(value):
        return int(value) if value == int(value) and abs(value) <= 2**53 else value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def difference(left, right):
    """The first few series that are not the same, for a message."""
    keys = sorted(key for key in left.keys() | right.keys() if left.get(key, "absent") != right.get(key, "absent"))
    shown = [
        f"{name}{dict(labels)}: {left.get((name, labels), 'absent')} and {right.get((name, labels), 'absent')}"
        for name, labels in keys[:5]
    ]
    return "; ".join(shown) + (f"; and {len(keys) - 5} more" if len(keys) > 5 else "")


if __name__ == "__main__":
    main()
