"""Proves that the exporter pushes OTLP: other implementations receive and decode it, over HTTP and gRPC.

    rotel     start Rotel (an OpenTelemetry agent) and read its debug log
    decode    receive with the official protobuf classes (opentelemetry-proto, grpcio)

Both print {"http": PORT, "grpc": PORT} on stdout once they accept on 127.0.0.1, then one line per resource
of each export:

    {"transport": "http" | "grpc" | "rotel", "resource": {NAME: VALUE}, "scope": NAME, "metrics": [
        {"name", "unit", "description", "kind", "monotonic", "temporality",
         "points": [{"attributes": {}, "value", "time_unix_nano", "start_time_unix_nano"}]}]}

`kind` is gauge, sum or histogram; `monotonic` and `temporality` ("cumulative", "delta") are null where the
kind has none; a histogram's value is {"count", "sum", "bounds", "bucket_counts"}. Rotel's log does not
distinguish HTTP from gRPC. The script, and Rotel with it, ends when its stdin closes.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import math
import os
import queue
import re
import select
import sys
import sysconfig
import tempfile
import threading
import zlib
from concurrent import futures

import grpc
import rotel
from child import Failure, end_on_sigterm, start_listening
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2

BODY_BYTES_MAX = 64 << 20
"""The longest OTLP/HTTP body accepted."""

IDLE_SECONDS = 0.2
"""Rotel's log does not mark the end of an export: a silence of this length does."""

LAST_LINES_SECONDS_MAX = 5.0
"""How long the end waits for a caller that has lines left to read."""

TEMPORALITIES = {
    metrics_pb2.AGGREGATION_TEMPORALITY_UNSPECIFIED: "unspecified",
    metrics_pb2.AGGREGATION_TEMPORALITY_DELTA: "delta",
    metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE: "cumulative",
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0, or 1 and why.",
    )
    parser.add_argument("mode", choices=["rotel", "decode"])
    args = parser.parse_args()
    end_on_sigterm()
    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        {"rotel": receive_with_rotel, "decode": receive_with_protobuf}[args.mode]()
    except Failure as failure:
        sys.exit(f"error: {failure}")
    finally:
        LINES.put(None)
        writer.join(LAST_LINES_SECONDS_MAX)


def say(line):
    """Queues one JSON line; never waits, since a slow reader must not delay an export."""
    LINES.put(json.dumps(line, allow_nan=False) + "\n")


def write_lines():
    """Writes the queued lines until `None` arrives or the reader is gone."""
    try:
        while (text := LINES.get()) is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # the caller is gone


LINES = queue.SimpleQueue()


# --- decode: the official protobuf classes ---


def receive_with_protobuf():
    """Serves both transports until stdin closes."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HttpReceiver)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()

    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=4),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", BODY_BYTES_MAX)],
    )
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(GrpcReceiver(), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        say({"http": web.server_address[1], "grpc": grpc_port})
        sys.stdin.read()
    finally:
        server.stop(grace=None).wait()
        web.shutdown()


class GrpcReceiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """OTLP/gRPC; grpcio undoes the compression."""

    def Export(self, request, context):
        say_export("grpc", request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class HttpReceiver(http.server.BaseHTTPRequestHandler):
    """OTLP/HTTP with a protobuf body."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        status, answer = self.receive()
        if status != 200:
            print(f"refused {self.path} with {status}: {answer.decode()}", file=sys.stderr, flush=True)
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf" if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def receive(self):
        """Reads and prints one export; returns the status and the answer's body."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return 413, b"Content-Length is missing or exceeds the limit"
        body = self.rfile.read(int(length))  # even if it is refused: otherwise the client may not see the reason
        if self.path != "/v1/metrics":
            return 404, b"only /v1/metrics is served"
        if self.headers.get("Content-Type", "").split(";")[0] != "application/x-protobuf":
            return 415, b"only application/x-protobuf is accepted"
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "gzip"):
            return 415, b"only gzip and identity are accepted"
        try:
            request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(
                gzip.decompress(body) if encoding == "gzip" else body
            )
        except (DecodeError, OSError, EOFError, zlib.error) as error:
            return 400, f"cannot decode: {error}".encode()
        say_export("http", request)
        return 200, metrics_service_pb2.ExportMetricsServiceResponse().SerializeToString()

    def log_message(self, *_):
        pass


def say_export(transport, request):
    """Prints a decoded export, a line per resource and scope."""
    for of_resource in request.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            say(
                {
                    "transport": transport,
                    "resource": attributes_of(of_resource.resource),
                    "scope": of_scope.scope.name,
                    "metrics": [metric_of(each) for each in of_scope.metrics],
                }
            )


def metric_of(metric):
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    return {
        "name": metric.name,
        "unit": metric.unit,
        "description": metric.description,
        "kind": kind,
        "monotonic": data.is_monotonic if kind == "sum" else None,
        "temporality": None if kind in ("gauge", "summary") else TEMPORALITIES[data.aggregation_temporality],
        "points": [point_of(kind, each) for each in data.data_points],
    }


def point_of(kind, point):
    if kind in ("gauge", "sum"):
        member = point.WhichOneof("value")
        value = member and json_number(getattr(point, member))
    else:
        value = {"count": point.count, "sum": json_number(point.sum)}
        if kind == "histogram":
            value["bounds"] = list(point.explicit_bounds)
            value["bucket_counts"] = list(point.bucket_counts)
    return {
        "attributes": attributes_of(point),
        "value": value,
        "time_unix_nano": point.time_unix_nano,
        "start_time_unix_nano": point.start_time_unix_nano,
    }


def attributes_of(owner):
    return {each.key: any_value(each.value) for each in owner.attributes}


def any_value(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [any_value(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: any_value(each.value) for each in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return json_number(getattr(value, kind)) if kind else None


def json_number(value):
    """Returns text for a number that is not finite: JSON cannot represent it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return value


# --- rotel: an independent agent ---


def receive_with_rotel():
    """Starts Rotel and turns its debug log into lines until stdin closes or Rotel ends."""
    agent = os.path.join(os.path.dirname(rotel.__file__), "rotel-agent")  # the wheel does not put it into bin/
    # It is linked to this Python's libpython, which may be outside the loader's path.
    library_path = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, library_path))
    with tempfile.TemporaryDirectory(prefix="rotel-") as folder:
        log_from, log_to = os.pipe()
        child, (http_port, grpc_port) = start_listening(
            lambda http_port, grpc_port: [
                *[agent, "start", "--exporter", "blackhole"],
                *["--otlp-http-endpoint", f"127.0.0.1:{http_port}"],
                *["--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"],
                *["--debug-log", "metrics", "--debug-log-verbosity", "detailed"],
                *["--pid-file", os.path.join(folder, "pid"), "--log-file", os.path.join(folder, "log")],
            ],
            2,
            os.path.join(folder, "stderr"),
            stdout=log_to,
        )
        os.close(log_to)
        with child:
            say({"http": http_port, "grpc": grpc_port})
            follow(log_from)
            if child.has_ended():
                raise Failure(f"rotel-agent ended on the way:\n{child.log_tail()}")


def follow(log_from):
    """Reads Rotel's log and prints what it received until stdin or the log ends."""
    log = DebugLog()
    rest = b""
    while True:
        readable, _, _ = select.select([log_from, 0], [], [], IDLE_SECONDS)
        if log_from in readable:
            more = os.read(log_from, 1 << 16)
            if not more:
                break
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                log.take(line.decode(errors="replace"))
        elif not readable and not rest:
            log.flush()
        if 0 in readable and not os.read(0, 1 << 12):
            break
    log.flush()


class DebugLog:
    """Reads the detailed debug log, which looks like the OpenTelemetry Collector's.

        ResourceMetrics #0
        Resource attributes:
             -> service.name: Str(stepmem)
        InstrumentationScope stepmem
        Metric #0
             -> Name: stepmem.rank.memory.allocated
             -> Unit: By
             -> DataType: Gauge
        NumberDataPoints #0
        Data point attributes:
             -> rank: Int(0)
        Timestamp: 1795173974191973236
        Value: 9007199254740992
    """

    def __init__(self):
        self.export = None
        self.attributes = None  # the ones that the following `-> name: Kind(value)` lines belong to

    def take(self, line):
        """Reads one line; ignores lines of another kind (Rotel's own log)."""
        if line.startswith("ResourceMetrics #"):
            self.flush()
            self.attributes = {}
            self.export = {"transport": "rotel", "resource": self.attributes, "scope": "", "metrics": []}
        elif self.export is None:
            return
        elif line.startswith("InstrumentationScope "):
            self.export["scope"] = line.split(" ")[1]  # its version follows
        elif line.startswith("Metric #"):
            self.attributes = None
            self.export["metrics"].append(
                dict.fromkeys(["name", "unit", "description", "kind", "monotonic", "temporality"], None)
            )
            self.metric["points"] = []
        elif re.match(r"\w*DataPoints #", line):
            self.attributes = {}
            self.metric["points"].append({"attributes": self.attributes, "value": None})
        elif line.startswith("     -> "):
            self.take_arrow(*line[len("     -> ") :].split(": ", 1))
        elif self.export["metrics"] and self.metric["points"]:
            self.take_point(line)

    @property
    def metric(self):
        return self.export["metrics"][-1]

    def take_arrow(self, name, value=""):
        """`-> Name: value` describes a metric, `-> name: Kind(value)` is an attribute."""
        if self.attributes is not None:
            self.attributes[name] = attribute_from_log(value)
        elif name in ("Name", "Unit", "Description"):
            self.metric[name.lower()] = value
        elif name == "DataType":
            self.metric["kind"] = value.lower()
        elif name == "IsMonotonic":
            self.metric["monotonic"] = value == "true"
        elif name == "AggregationTemporality":
            self.metric["temporality"] = value.rsplit("_", 1)[-1].lower()

    def take_point(self, line):
        """`Name: value` and `Name #index: value` lines of a data point."""
        point = self.metric["points"][-1]
        name, _, value = line.partition(": ")
        if name == "Timestamp":
            point["time_unix_nano"] = int(value)
        elif name == "StartTimestamp":
            point["start_time_unix_nano"] = int(value)
        elif name == "Value":
            point["value"] = number_from_log(value)
        elif name == "Count":
            point["value"] = {"count": int(value), "sum": None, "bounds": [], "bucket_counts": []}
        elif name == "Sum":
            point["value"]["sum"] = number_from_log(value)
        elif name.startswith("ExplicitBounds #"):
            point["value"]["bounds"].append(number_from_log(value))
        elif name.startswith("Buckets #"):
            point["value"]["bucket_counts"].append(int(value.removeprefix("Count: ")))

    def flush(self):
        """Prints the export that was being read."""
        if self.export is not None:
            say(self.export)
        self.export = self.attributes = None


def attribute_from_log(value):
    """`Str(text)`, `Int(0)`, `Double(0.5)`, `Bool(true)`; anything else stays as Rotel wrote it."""
    match = re.fullmatch(r"(Str|Int|Double|Bool)\((.*)\)", value, re.DOTALL)
    if not match:
        return value
    kind, text = match.groups()
    return {"Str": str, "Int": int, "Double": float, "Bool": "true".__eq__}[kind](text)


def number_from_log(text):
    """Rotel writes whole doubles as integers."""
    try:
        return int(text)
    except ValueError:
        return json_number(float(text))


if __name__ == "__main__":
    main()
