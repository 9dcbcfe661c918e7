#!/usr/bin/env python3
"""Writes the dashboards beside it from the tables below: `dashboards/build.py`, or `--check` to compare only.

A table rather than clicks in the UI, so that the same unit, colour, legend and description stand wherever a figure is
shown, every query is filtered by the same variables, and a renamed metric is one edit. Standard library only.

Every query reads raw metrics: the dashboards work without the recording rules. Memory that nests (allocated within
reserved within the process within the device) is drawn one over the other and not as differences, so that a series that
is absent takes nothing else away.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
SCHEMA_VERSION = 42
RUNBOOKS = "https://stepmem.example/runbooks"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

# The words of docs/diagnoses.md, and one colour for each.
KINDS = {
    "CREEP_CONFIRMED": ("MEMORY CREEP", "red"),
    "CREEP_EARLY": ("MEMORY RISING", "yellow"),
    "HIGH_PRESSURE": ("HIGH PRESSURE", "orange"),
    "IMBALANCE": ("IMBALANCE", "purple"),
    "FRAGMENTATION": ("FRAGMENTATION", "blue"),
    "OUTSIDE_ALLOCATOR": ("OUTSIDE ALLOCATOR", "semi-dark-green"),
}
SEVERITIES = [(0, "healthy", "green"), (1, "info", "blue"), (2, "warning", "orange"), (3, "critical", "red")]
PRESSURE = [(None, "green"), (0.85, "yellow"), (0.92, "orange"), (0.97, "red")]
ETA = [(None, "red"), (1800, "orange"), (6 * 3600, "yellow"), (24 * 3600, "green")]
SKEW = [(None, "green"), (0.2, "orange"), (0.3, "red")]
BAD_ABOVE_0 = [(None, "green"), (1e-9, "orange")]
BAD_BELOW_1 = [(None, "red"), (1, "green")]

# Selectors. A rank is found by its run, whatever its pod is called.
PLACE = 'cluster=~"$cluster",namespace=~"$namespace"'
RUN = f'{PLACE},run="$run"'
RANKS = f'{RUN},rank=~"$rank"'
RANK = f'{RUN},rank="$rank"'
RANK_UUID = f"group by (uuid) (stepmem_rank_step{{{RANK}}})"


def q(expr, legend="", instant=False):
    """One query; `legend` is Grafana's format."""
    return {"expr": expr, "legend": legend, "instant": instant}


def panel(kind, title, size, description, queries, unit="short", **more):
    """One panel: its plugin, (width, height), and what its figures are."""
    return {"kind": kind, "title": title, "size": size, "description": description, "queries": queries, "unit": unit, **more}


def row(title):
    return {"kind": "row", "title": title}


def stat(title, width, description, expr, unit="short", **more):
    return panel("stat", title, (width, 4), description, [q(expr, instant=True)], unit, **more)


def override(name, *properties):
    """Properties of the series of a name, or of those that a /pattern/ matches."""
    matcher = "byRegexp" if name.startswith("/") else "byName"
    return {"matcher": {"id": matcher, "options": name}, "properties": [{"id": i, "value": v} for i, v in properties]}


def fixed(colour):
    return ("color", {"mode": "fixed", "fixedColor": colour})


DASHED = ("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
NO_FILL = ("custom.fillOpacity", 0)
CAPACITY = override("/^capacity/", fixed("red"), DASHED, NO_FILL, ("custom.lineWidth", 2))
HIDDEN = ("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False})


def band(name):
    """The area between a series' low and high end."""
    return [
        override(f"{name} low", ("custom.lineWidth", 0), NO_FILL, HIDDEN),
        override(f"{name} high", ("custom.lineWidth", 0), ("custom.fillOpacity", 25), ("custom.fillBelowTo", f"{name} low"), HIDDEN),
    ]


SIGNALS = {"allocated": "green", "reserved": "blue", "outside_allocator": "orange", "process": "purple"}
BANDS = [each for signal, colour in SIGNALS.items() for each in [override(f"/^{signal}( low| high)?$/", fixed(colour)), *band(signal)]]


# Of many ranks the steepest has its interval drawn.
SLOPE = f'stepmem_creep_slope_bytes_per_step{{{RANKS},signal=~"allocated|process"}}'
STEEPEST = f"on (rank, signal) topk(1, {SLOPE})"

RUN_PANELS = [
    stat("Verdict", 4, "The worst severity of any diagnosis that holds for a rank of the run.",
         f"max(stepmem_diagnosis_severity{{{RANKS}}}) or 0 * max(stepmem_run_ranks{{{RUN}}})", mappings="severity"),
    stat("Out of memory in", 4, "The shortest time to out-of-memory of any rank; no value while nothing creeps.",
         f"min(stepmem_oom_eta_seconds{{{RANKS}}})", "s", thresholds=ETA, no_value="–"),
    stat("Highest pressure", 4, "Recent peak of live memory by capacity, of the fullest rank. Reserved memory is left out: a caching allocator fills its device in good health.",
         f'max(stepmem_pressure_ratio{{{RANKS},basis=~"allocated|device"}})', "percentunit", thresholds=PRESSURE, gauge=True),
    stat("Imbalance", 4, "Highest recent peak by the median of all ranks of the run, over all its pods, less 1.",
         f"max(max by (rank) (stepmem_rank_interval_peak_allocated_bytes{{{RUN}}})) / quantile(0.5, max by (rank) (stepmem_rank_interval_peak_allocated_bytes{{{RUN}}})) - 1",
         "percentunit", thresholds=SKEW),
    panel("stat", "Ranks", (4, 4), "Ranks that push, and how many there are by the run's own word.",
          [q(f"count(count by (rank) (stepmem_rank_step{{{RUN}}}))", "seen", True), q(f"max(stepmem_run_ranks_expected{{{RUN}}})", "expected", True)]),
    stat("Steps per second", 4, "Train steps of the slowest rank.",
         f"min(rate(stepmem_rank_steps_total{{{RANKS}}}[$__rate_interval]))", "none", decimals=1),
    panel("state-timeline", "Diagnoses", (24, 7), "What was diagnosed, for which rank, when, and how severe. Empty: nothing was.",
          [q(f"max by (rank, kind) (stepmem_diagnosis_severity{{{RANKS}}})", "rank {{rank}} · {{kind}}")],
          mappings="severity", no_value="nothing diagnosed"),
    row("Memory"),
    panel("timeseries", "Live memory at its peak, by rank", (24, 10), "Highest allocated memory in this and the last whole interval of --rank.peak-interval, so that a spike between two scrapes is seen; the line is the capacity of the smallest device.",
          [q(f"max by (rank) (stepmem_rank_interval_peak_allocated_bytes{{{RANKS}}})", "rank {{rank}}"),
           q(f"min(stepmem_device_memory_total_bytes{{{PLACE}}} and on (uuid) stepmem_rank_step{{{RANKS}}})", "capacity")],
          "bytes", overrides=[CAPACITY], fill=0),
    row("Creep"),
    panel("timeseries", "Slope of live memory, with its interval", (12, 9), "Theil–Sen slope of each rank, and the 95 % interval of the steepest. A band that lies above 0 is growth.",
          [q(f"max by (rank) ({SLOPE})", "rank {{rank}}"),
           q(f"max(stepmem_creep_slope_lower_bytes_per_step{{{RANKS}}} and {STEEPEST})", "steepest low"),
           q(f"max(stepmem_creep_slope_upper_bytes_per_step{{{RANKS}}} and {STEEPEST})", "steepest high")],
          "bytes", overrides=[override("/^steepest/", fixed("orange")), *band("steepest")], fill=0, zero=True),
    panel("timeseries", "Out of memory in", (12, 9), "Headroom by slope, of the ranks that creep.",
          [q(f"min by (rank) (stepmem_oom_eta_seconds{{{RANKS}}})", "rank {{rank}}")], "s", no_value="nothing creeps", min=0),
    panel("timeseries", "Grown since the onset", (12, 8), "By how much the signal has grown since the step at which it began to.",
          [q(f"stepmem_creep_growth_bytes{{{RANKS}}}", "rank {{rank}} · {{signal}}")], "bytes", no_value="nothing grows"),
    panel("timeseries", "Slope in time", (12, 8), "The slope per second. Processes that don't push are judged by it.",
          [q(f'stepmem_creep_slope_bytes_per_second{{{RANKS},signal=~"allocated|process"}}', "rank {{rank}}")], "Bps", fill=0, zero=True),
    row("Room"),
    panel("timeseries", "Pressure", (12, 8), "Recent peak by capacity, by rank: the highest of allocated and device.",
          [q(f'max by (rank) (stepmem_pressure_ratio{{{RANKS},basis=~"allocated|device"}})', "rank {{rank}}")],
          "percentunit", thresholds=PRESSURE, threshold_lines=True, fill=0, min=0, max=1),
    panel("timeseries", "Headroom", (12, 8), "What the rank can still take before its device is full.",
          [q(f"min by (rank) (stepmem_headroom_bytes{{{RANKS}}})", "rank {{rank}}")], "bytes", fill=0, min=0),
    panel("status-history", "Imbalance", (24, 9), "Each rank's recent peak by the median of the run's ranks, less 1, over all its pods.",
          [q(f"max by (rank) (stepmem_rank_interval_peak_allocated_bytes{{{RANKS}}}) / scalar(quantile(0.5, max by (rank) (stepmem_rank_interval_peak_allocated_bytes{{{RUN}}}))) - 1", "rank {{rank}}")],
          "percentunit", scheme="continuous-GrYlRd", decimals=0, min=0, max=0.3, points=60),
    row("What live memory does not show"),
    panel("timeseries", "Fragmentation", (8, 8), "The share of reserved memory that is not live at the end of the step.",
          [q(f"max by (rank) (stepmem_fragmentation_ratio{{{RANKS}}})", "rank {{rank}}")], "percentunit", fill=0, min=0, max=1),
    panel("timeseries", "Outside the allocator", (8, 8), "Device memory of the rank's process that its allocator does not hold: CUDA context, NCCL, other libraries.",
          [q(f"max by (rank) (stepmem_memory_outside_allocator_bytes{{{RANKS}}})", "rank {{rank}}")], "bytes", fill=0, min=0),
    panel("timeseries", "Retries and out-of-memory errors", (8, 8), "Failed allocations that flushed the allocator's cache, and out-of-memory errors, of all ranks in the interval.",
          [q(f"sum(increase(stepmem_rank_alloc_retries_total{{{RANKS}}}[$__rate_interval]))", "retries"),
           q(f"sum(increase(stepmem_rank_ooms_total{{{RANKS}}}[$__rate_interval]))", "OOMs")], "short", bars=True, min=0),
    row("Pace"),
    panel("timeseries", "Steps per second", (12, 8), "Train steps by rank.",
          [q(f"sum by (rank) (rate(stepmem_rank_steps_total{{{RANKS}}}[$__rate_interval]))", "rank {{rank}}")], "none", fill=0, min=0),
    panel("timeseries", "Since the last push", (12, 8), "How long ago each rank last pushed.",
          [q(f"time() - max by (rank) (stepmem_rank_last_push_timestamp_seconds{{{RANKS}}})", "rank {{rank}}")], "s", fill=0, min=0),
    panel("table", "Ranks", (24, 9), "Where each rank is. A row opens the rank.",
          [q(f"max by (run, rank, namespace, pod) (stepmem_rank_step{{{RANKS}}})", "Step", True),
           q(f"max by (run, rank, namespace, pod) (stepmem_rank_memory_peak_allocated_bytes{{{RANKS}}})", "Peak", True),
           q(f'max by (run, rank, namespace, pod) (stepmem_pressure_ratio{{{RANKS},basis="allocated"}})', "Pressure", True),
           q(f'max by (run, rank, namespace, pod) (stepmem_creep_slope_bytes_per_step{{{RANKS},signal="allocated"}})', "Slope / step", True),
           q(f"min by (run, rank, namespace, pod) (stepmem_oom_eta_seconds{{{RANKS}}})", "Out of memory in", True)],
          columns={"Step": "none", "Peak": "bytes", "Pressure": "percentunit", "Slope / step": "bytes", "Out of memory in": "s"},
          sort="Pressure", link=("rank", "stepmem-rank")),
]

RANK_PANELS = [
    stat("Verdict", 4, "The worst severity of any diagnosis that holds for the rank.",
         f"max(stepmem_diagnosis_severity{{{RANK}}}) or 0 * max(stepmem_rank_step{{{RANK}}})", mappings="severity"),
    stat("Out of memory in", 4, "Headroom by slope; no value while nothing creeps.",
         f"min(stepmem_oom_eta_seconds{{{RANK}}})", "s", thresholds=ETA, no_value="–"),
    stat("Steps left", 4, "Headroom by slope in steps; no value while nothing creeps.", f"min(stepmem_oom_eta_steps{{{RANK}}})", "none", decimals=0, no_value="–"),
    stat("Headroom", 4, "What the rank can still take before its device is full.", f"min(stepmem_headroom_bytes{{{RANK}}})", "bytes"),
    stat("Step", 4, "Global step that the rank completed last.", f"max(stepmem_rank_step{{{RANK}}})", "none", decimals=0),
    stat("Last push", 4, "How long ago the rank last pushed.", f"time() - max(stepmem_rank_last_push_timestamp_seconds{{{RANK}}})", "s"),
    panel("timeseries", "Memory as it nests", (24, 11), "From the inside out: live memory at the end of the step, its peak within, what the allocator holds, the process, everything on the device, its capacity. They lie one over the other and are not added up.",
          [q(f"max(stepmem_device_memory_used_bytes{{{PLACE}}} and on (uuid) {RANK_UUID})", "device used"),
           q(f'max(stepmem_process_memory_used_bytes{{{RANK}}})', "process"),
           q(f"max(stepmem_rank_memory_reserved_bytes{{{RANK}}})", "reserved"),
           q(f"max(stepmem_rank_interval_peak_allocated_bytes{{{RANK}}})", "peak allocated"),
           q(f"max(stepmem_rank_memory_allocated_bytes{{{RANK}}})", "allocated"),
           q(f"max(stepmem_device_memory_total_bytes{{{PLACE}}} and on (uuid) {RANK_UUID})", "capacity")],
          "bytes", overrides=[CAPACITY, override("device used", fixed("#5b6270")), override("process", fixed("purple")),
                              override("reserved", fixed("blue")), override("peak allocated", fixed("yellow"), NO_FILL),
                              override("allocated", fixed("green"), ("custom.fillOpacity", 30))],
          fill=12, min=0),
    panel("state-timeline", "Diagnoses", (24, 5), "What was diagnosed, when, and how severe. Empty: nothing was.",
          [q(f"max by (kind) (stepmem_diagnosis_severity{{{RANK}}})", "{{kind}}")], mappings="severity", no_value="nothing diagnosed"),
    row("Creep"),
    panel("timeseries", "Slope with its interval, by signal", (12, 9), "Theil–Sen slope and its 95 % interval: of live memory, of what the allocator holds, of what it does not hold.",
          [q(f"max by (signal) (stepmem_creep_slope_bytes_per_step{{{RANK}}})", "{{signal}}"),
           q(f"max by (signal) (stepmem_creep_slope_lower_bytes_per_step{{{RANK}}})", "{{signal}} low"),
           q(f"max by (signal) (stepmem_creep_slope_upper_bytes_per_step{{{RANK}}})", "{{signal}} high")],
          "bytes", overrides=BANDS, fill=0, zero=True),
    panel("timeseries", "Grown since the onset", (12, 9), "By how much each signal has grown since the step at which it began to.",
          [q(f"stepmem_creep_growth_bytes{{{RANK}}}", "{{signal}}")], "bytes", no_value="nothing grows", min=0),
    panel("timeseries", "Confidence", (8, 7), "How sure the estimator is that the signal grows, while it does.",
          [q(f"stepmem_creep_confidence_ratio{{{RANK}}}", "{{signal}}")], "percentunit", no_value="nothing grows", min=0, max=1, fill=0),
    panel("timeseries", "Onset", (8, 7), "The step at which the growth began.",
          [q(f"stepmem_creep_onset_step{{{RANK}}}", "{{signal}}")], "none", no_value="nothing grows", fill=0),
    panel("timeseries", "Out of memory in", (8, 7), "Headroom by slope, while the rank creeps.",
          [q(f"min(stepmem_oom_eta_seconds{{{RANK}}})", "rank {{rank}}")], "s", no_value="nothing creeps", min=0),
    row("Room"),
    panel("timeseries", "Pressure, by basis", (12, 8), "Recent peak by capacity: of allocated and reserved memory, and of the device.",
          [q(f"max by (basis) (stepmem_pressure_ratio{{{RANK}}})", "{{basis}}")], "percentunit", thresholds=PRESSURE, threshold_lines=True, fill=0, min=0, max=1),
    panel("timeseries", "Against the other ranks", (12, 8), "The rank's recent peak by the median of the others that push to the same exporter, less 1.",
          [q(f"max(stepmem_imbalance_ratio{{{RANK}}})", "imbalance")], "percentunit", fill=0, zero=True),
    panel("timeseries", "Fragmentation", (12, 8), "The share of reserved memory that is not live at the end of the step.",
          [q(f"max(stepmem_fragmentation_ratio{{{RANK}}})", "unused share")], "percentunit", min=0, max=1),
    panel("timeseries", "Outside the allocator", (12, 8), "Device memory of the rank's process that its allocator does not hold.",
          [q(f"max(stepmem_memory_outside_allocator_bytes{{{RANK}}})", "outside")], "bytes", min=0),
    row("Pace"),
    panel("timeseries", "Duration of a step", (12, 8), "How long the last train step took.",
          [q(f"max(stepmem_rank_step_seconds{{{RANK}}})", "step")], "s", min=0, fill=0),
    panel("timeseries", "Retries and out-of-memory errors", (12, 8), "Failed allocations that flushed the allocator's cache, and out-of-memory errors, in the interval.",
          [q(f"sum(increase(stepmem_rank_alloc_retries_total{{{RANK}}}[$__rate_interval]))", "retries"),
           q(f"sum(increase(stepmem_rank_ooms_total{{{RANK}}}[$__rate_interval]))", "OOMs")], "short", bars=True, min=0),
    panel("table", "Who it is", (24, 5), "What the rank says of itself.",
          [q(f"max by (run, rank, local_rank, node_rank, world_size, attempt, pid, uuid, namespace, pod) (stepmem_rank_info{{{RANK}}})", "info", True)],
          hide=["info"], columns={}),
]

BY_RUN = "cluster, namespace, run"
FLEET_PANELS = [
    stat("Runs", 3, "Runs of which a rank pushes.", f"count(count by ({BY_RUN}) (stepmem_rank_step{{{PLACE}}}))", "none"),
    stat("Ranks", 3, "Ranks that push, over all runs.", f"count(count by ({BY_RUN}, rank) (stepmem_rank_step{{{PLACE}}}))", "none"),
    stat("Creeping ranks", 3, "Ranks with MEMORY CREEP.",
         f'count(count by ({BY_RUN}, rank) (stepmem_diagnosis{{{PLACE},kind="CREEP_CONFIRMED"}})) or 0 * count(stepmem_up{{{PLACE}}})', "none",
         thresholds=[(None, "green"), (1, "red")]),
    stat("Next OOM", 3, "The shortest time to out-of-memory of all; no value while nothing creeps.",
         f"min(stepmem_oom_eta_seconds{{{PLACE}}})", "s", thresholds=ETA, no_value="–"),
    stat("Silent ranks", 3, "Ranks that have not pushed for five minutes and are not forgotten yet.",
         f"count(time() - max by ({BY_RUN}, rank) (stepmem_rank_last_push_timestamp_seconds{{{PLACE}}}) > 300) or 0 * count(stepmem_up{{{PLACE}}})", "none",
         thresholds=[(None, "green"), (1, "orange")]),
    stat("GPUs", 3, "Devices that an exporter sees; one that two see counts once.",
         f"count(count by (uuid) (stepmem_device_memory_total_bytes{{{PLACE}}}))", "none"),
    stat("Memory in use", 3, "Memory in use by capacity, over all devices.",
         f"sum(max by (uuid) (stepmem_device_memory_used_bytes{{{PLACE}}})) / sum(max by (uuid) (stepmem_device_memory_total_bytes{{{PLACE}}}))",
         "percentunit", thresholds=PRESSURE, gauge=True),
    stat("Exporters", 3, "Exporters that answer.", f"sum(stepmem_up{{{PLACE}}})", "none"),
    panel("table", "Who is creeping, the next to die first", (24, 9), "Every rank with a time to out-of-memory. A row opens its run.",
          [q(f"min by ({BY_RUN}, rank, pod) (stepmem_oom_eta_seconds{{{PLACE}}})", "Out of memory in", True),
           q(f'max by ({BY_RUN}, rank, pod) (stepmem_creep_slope_bytes_per_second{{{PLACE}}} and on ({BY_RUN}, rank, pod) stepmem_oom_eta_seconds{{{PLACE}}})', "Slope / s", True),
           q(f"max by ({BY_RUN}, rank, pod) (stepmem_creep_growth_bytes{{{PLACE}}} and on ({BY_RUN}, rank, pod) stepmem_oom_eta_seconds{{{PLACE}}})", "Grown", True),
           q(f"min by ({BY_RUN}, rank, pod) (stepmem_headroom_bytes{{{PLACE}}} and on ({BY_RUN}, rank, pod) stepmem_oom_eta_seconds{{{PLACE}}})", "Headroom", True)],
          columns={"Out of memory in": "s", "Slope / s": "Bps", "Grown": "bytes", "Headroom": "bytes"}, sort="-Out of memory in",
          link=("run", "stepmem-run"), no_value="nothing creeps"),
    panel("table", "Runs", (14, 9), "Every run with its worst rank's figures. A row opens the run.",
          [q(f"count by ({BY_RUN}) (count by ({BY_RUN}, rank) (stepmem_rank_step{{{PLACE}}}))", "Ranks", True),
           q(f"max by ({BY_RUN}) (stepmem_diagnosis_severity{{{PLACE}}})", "Severity", True),
           q(f'max by ({BY_RUN}) (stepmem_pressure_ratio{{{PLACE},basis="allocated"}})', "Pressure", True),
           q(f"max by ({BY_RUN}) (stepmem_run_imbalance_ratio{{{PLACE}}})", "Imbalance", True),
           q(f"min by ({BY_RUN}) (stepmem_oom_eta_seconds{{{PLACE}}})", "Out of memory in", True),
           q(f"time() - max by ({BY_RUN}) (stepmem_rank_last_push_timestamp_seconds{{{PLACE}}})", "Last push", True)],
          columns={"Severity": "severity", "Pressure": "percentunit", "Imbalance": "percentunit", "Out of memory in": "s", "Last push": "s"},
          sort="Severity", link=("run", "stepmem-run")),
    panel("histogram", "Pressure over all ranks", (10, 9), "How many ranks are how full: recent peak of live memory by capacity.",
          [q(f'max by ({BY_RUN}, rank) (stepmem_pressure_ratio{{{PLACE},basis="allocated"}})', "{{run}} {{rank}}", True)], "percentunit", bucket=0.05, combine=True),
    panel("timeseries", "Diagnoses", (12, 8), "How many ranks have which diagnosis.",
          [q(f"count by (kind) (stepmem_diagnosis{{{PLACE}}})", "{{kind}}")], "none", overrides="kinds", min=0, stack=True, fill=30, no_value="nothing diagnosed"),
    panel("timeseries", "Memory of all devices", (12, 8), "In use, and capacity, over all devices.",
          [q(f"sum(max by (uuid) (stepmem_device_memory_used_bytes{{{PLACE}}}))", "used"), q(f"sum(max by (uuid) (stepmem_device_memory_total_bytes{{{PLACE}}}))", "capacity")],
          "bytes", overrides=[CAPACITY], min=0),
    panel("bargauge", "Silent runs", (12, 8), "How long ago the runs last pushed, the longest first.",
          [q(f"topk(10, time() - max by ({BY_RUN}) (stepmem_rank_last_push_timestamp_seconds{{{PLACE}}}))", "{{run}}", True)], "s",
          thresholds=[(None, "green"), (120, "yellow"), (300, "orange")], min=0, max=600),
    panel("timeseries", "Pressure of the fullest rank, by run", (12, 8), "Recent peak of live memory by capacity: the ten fullest runs.",
          [q(f'topk(10, max by ({BY_RUN}) (stepmem_pressure_ratio{{{PLACE},basis="allocated"}}))', "{{run}}")], "percentunit", fill=0, min=0, max=1,
          thresholds=PRESSURE, threshold_lines=True),
]

EXPORTER = f'{PLACE},pod=~"$pod"'
SELF = f"{EXPORTER}"
OWN = f'process_{{}}{{{{{EXPORTER}}}}} and on (job, instance) stepmem_up'
EXPORTER_PANELS = [
    stat("Exporters", 4, "Exporters that answer.", f"sum(stepmem_up{{{SELF}}})", "none"),
    stat("With NVML", 4, "Exporters that NVML answers.", f"sum(stepmem_nvml_up{{{SELF}}})", "none"),
    stat("Series", 4, "Series that the exporters give, added up.", f"sum(stepmem_series{{{SELF}}})", "none"),
    stat("Pushes per second", 4, "Push requests, whatever became of them.", f"sum(rate(stepmem_pushes_total{{{SELF}}}[$__rate_interval]))", "reqps"),
    stat("Refused", 4, "Share of the push requests that were not accepted.",
         f'sum(rate(stepmem_pushes_total{{{SELF},result!="accepted"}}[$__rate_interval])) / sum(rate(stepmem_pushes_total{{{SELF}}}[$__rate_interval]))',
         "percentunit", thresholds=[(None, "green"), (0.0001, "yellow"), (0.01, "red")]),
    stat("Largest memory", 4, "Resident memory of the largest exporter.", f"max({OWN.format('resident_memory_bytes')})", "bytes",
         thresholds=[(None, "green"), (24 << 20, "yellow"), (32 << 20, "red")]),
    row("Pushes"),
    panel("timeseries", "Push requests", (12, 8), "By what became of them.",
          [q(f"sum by (result) (rate(stepmem_pushes_total{{{SELF}}}[$__rate_interval])) > 0", "{{result}}")], "reqps", min=0, stack=True, fill=30),
    panel("timeseries", "Duration of a push", (12, 8), "From the end of the head to the answer.",
          [q(f"histogram_quantile({p}, sum by (le) (rate(stepmem_push_duration_seconds_bucket{{{SELF}}}[$__rate_interval])))", f"p{int(p * 100)}") for p in (0.5, 0.9, 0.99)],
          "s", fill=0, min=0),
    panel("timeseries", "Records", (12, 8), "Of accepted pushes: restarted and inconsistent ones are among the accepted.",
          [q(f"sum by (result) (rate(stepmem_push_records_total{{{SELF}}}[$__rate_interval]))", "{{result}}")], "cps", min=0, fill=0),
    panel("timeseries", "Waiting, shed and dropped", (12, 8), "Batches that wait; connections that gave way; what was left out to keep a bound.",
          [q(f"sum(stepmem_inbox_depth{{{SELF}}})", "waiting batches"),
           q(f"sum by (listener) (increase(stepmem_connections_shed_total{{{SELF}}}[$__rate_interval]))", "connections shed: {{listener}}"),
           q(f"sum by (reason) (increase(stepmem_series_dropped_total{{{SELF}}}[$__rate_interval]))", "dropped: {{reason}}")], "short", min=0, fill=0),
    row("NVML"),
    panel("state-timeline", "NVML answers", (12, 7), "1 while NVML answers, 0 when there is none or it fails (a normal state); absent when nobody asks it.",
          [q(f"max by (instance) (stepmem_nvml_up{{{SELF}}})", "{{instance}}")], mappings="up", no_value="nobody asks NVML"),
    panel("timeseries", "Failures of NVML", (12, 7), "How often NVML refused, by the code it gave.",
          [q(f"sum by (code) (rate(stepmem_nvml_errors_total{{{SELF}}}[$__rate_interval]))", "{{code}}")], "cps", min=0, no_value="none"),
    panel("timeseries", "Duration of a round", (8, 7), "How long a collector's last round took.",
          [q(f"max by (collector) (stepmem_collector_duration_seconds{{{SELF}}})", "{{collector}}")], "s", min=0, fill=0),
    panel("timeseries", "Since NVML last answered", (8, 7), "The longest of all exporters.",
          [q(f"max(time() - stepmem_nvml_last_success_timestamp_seconds{{{SELF}}})", "longest")], "s", min=0, fill=0),
    panel("timeseries", "Xid errors", (8, 7), "That the driver reported, by number and device.",
          [q(f"sum by (xid, uuid) (stepmem_device_xid_errors_total{{{SELF}}})", "Xid {{xid}} · {{uuid}}")], "short", min=0, fill=0, no_value="none"),
    panel("table", "What process lists can mean", (12, 7), "By device and state: whether NVML's process list can be attributed from where the exporter runs.",
          [q(f"max by (instance, pod, uuid, state) (stepmem_process_attribution{{{SELF}}} == 1)", "holds", True)], hide=["holds"], columns={}),
    panel("timeseries", "Failed collectors", (12, 7), "1 when a collector's last round failed.",
          [q(f"1 - min by (collector, instance) (stepmem_collector_success{{{SELF}}})", "{{collector}} · {{instance}}")], "none", min=0, max=1, fill=0),
    row("Itself"),
    panel("timeseries", "Memory", (8, 8), "Resident memory of each exporter.", [q(OWN.format("resident_memory_bytes"), "{{instance}}")], "bytes", min=0, fill=0),
    panel("timeseries", "Processor", (8, 8), "Processor time of each exporter, as a share of a core.",
          [q(f"rate(process_cpu_seconds_total{{{EXPORTER}}}[$__rate_interval]) and on (job, instance) stepmem_up", "{{instance}}")], "percentunit", min=0, fill=0),
    panel("timeseries", "Open files", (8, 8), "File descriptors of each exporter.", [q(OWN.format("open_fds"), "{{instance}}")], "none", min=0, fill=0),
    panel("timeseries", "Series", (8, 8), "How many series each exporter gives.", [q(f"stepmem_series{{{SELF}}}", "{{instance}}")], "none", min=0, fill=0),
    panel("timeseries", "OTLP exports", (8, 8), "By result; empty where none is configured.",
          [q(f"sum by (result) (rate(stepmem_otlp_exports_total{{{SELF}}}[$__rate_interval]))", "{{result}}")], "cps", min=0, fill=0, no_value="none configured"),
    panel("table", "Versions", (8, 8), "How many exporters run which version.",
          [q(f"count by (version) (stepmem_build_info{{{SELF}}})", "Exporters", True)], columns={}),
]

LABELS_OF_A_RUN = '{__name__=~"stepmem_run_ranks|stepmem_creep_slope_bytes_per_second"'


def variable(name, label, query, many=False, description=""):
    """A variable that asks Prometheus; one of many values matches also what has no such label."""
    made = {
        "type": "query", "name": name, "label": label, "description": description, "datasource": DATASOURCE,
        "definition": query, "query": {"query": query, "refId": name}, "refresh": 2, "sort": 7, "hide": 0,
        "includeAll": many, "multi": many, "current": {},
    }
    if many:
        made |= {"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return made


DATASOURCE_VARIABLE = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0, "refresh": 1, "current": {}}
CLUSTER = variable("cluster", "Cluster", "label_values(stepmem_up, cluster)", many=True)
NAMESPACE = variable("namespace", "Namespace", 'label_values(stepmem_up{cluster=~"$cluster"}, namespace)', many=True)
ONE_RUN = variable("run", "Run", f"label_values({LABELS_OF_A_RUN},{PLACE}}}, run)")
OF_RUN = '{__name__=~"stepmem_rank_step|stepmem_creep_slope_bytes_per_second"'
MANY_RANKS = variable("rank", "Rank", f'label_values({OF_RUN},{RUN}}}, rank)', many=True)
ONE_RANK = variable("rank", "Rank", f'label_values({OF_RUN},{RUN}}}, rank)')
PODS = variable("pod", "Pod", f"label_values(stepmem_up{{{PLACE}}}, pod)", many=True)

CHANGES = {
    "name": "Diagnoses", "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": "red",
    "expr": f"stepmem_diagnosis_since_timestamp_seconds{{{RUN}}} * 1000", "useValueForTime": "on",
    "titleFormat": "{{kind}}", "tagKeys": "kind", "textFormat": "rank {{rank}}", "step": "60s",
}

DASHBOARDS = [
    ("stepmem-run", "stepmem / Run", "One training job: who of its ranks grows, how fast, how long it has, and how full and even they are.",
     [CLUSTER, NAMESPACE, ONE_RUN, MANY_RANKS], [CHANGES], RUN_PANELS),
    ("stepmem-rank", "stepmem / Rank", "One rank in depth: its memory as it nests, its slopes by signal, its room and its pace.",
     [CLUSTER, NAMESPACE, ONE_RUN, ONE_RANK], [CHANGES | {"expr": f"stepmem_diagnosis_since_timestamp_seconds{{{RANK}}} * 1000"}], RANK_PANELS),
    ("stepmem-fleet", "stepmem / Fleet", "All clusters and runs: who is creeping and dies first, how full the ranks are, who is silent.",
     [CLUSTER, NAMESPACE], [], FLEET_PANELS),
    ("stepmem-exporter", "stepmem / Exporter", "The exporters' own health: pushes, NVML, bounds, memory and processor.",
     [CLUSTER, NAMESPACE, PODS], [], EXPORTER_PANELS),
]


def mapped(kind):
    if kind == "up":
        states = [(0, "no NVML", "orange"), (1, "answers", "green")]
    else:
        states = SEVERITIES
    options = {str(value): {"text": text, "color": colour, "index": value} for value, text, colour in states}
    return [{"type": "value", "options": options}]


def steps(thresholds):
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in thresholds]}


def drawn(spec):
    """The options of a panel's plugin, and what it draws by field."""
    kind = spec["kind"]
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == "timeseries":
        custom = {
            "drawStyle": "bars" if spec.get("bars") else "line", "lineWidth": 1 if not spec.get("bars") else 0,
            "fillOpacity": 60 if spec.get("bars") else spec.get("fill", 10), "showPoints": "never", "spanNulls": False,
            "stacking": {"mode": "normal" if spec.get("stack") else "none", "group": "A"},
            "axisCenteredZero": False, "thresholdsStyle": {"mode": "dashed" if spec.get("threshold_lines") else "off"},
        }
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}, custom
    if kind == "stat":
        return {"reduceOptions": reduced, "colorMode": "background" if spec.get("mappings") else "value", "graphMode": "area" if not spec.get("mappings") else "none",
                "textMode": "auto", "justifyMode": "center", "orientation": "auto", "wideLayout": True}, {}
    if kind == "state-timeline":
        return {"mergeValues": True, "showValue": "auto", "alignValue": "center", "rowHeight": 0.85,
                "legend": legend | {"showLegend": False}, "tooltip": {"mode": "single", "sort": "none"}}, {"fillOpacity": 80, "lineWidth": 0}
    if kind == "status-history":
        return {"showValue": "never", "rowHeight": 0.9, "colWidth": 0.95,
                "legend": legend | {"showLegend": False}, "tooltip": {"mode": "single", "sort": "none"}}, {"fillOpacity": 90, "lineWidth": 0}
    if kind == "histogram":
        return {"bucketSize": spec["bucket"], "bucketOffset": 0, "combine": spec["combine"], "legend": legend | {"showLegend": False},
                "tooltip": {"mode": "single", "sort": "none"}}, {"fillOpacity": 70, "lineWidth": 1}
    if kind == "bargauge":
        return {"reduceOptions": reduced, "displayMode": "lcd", "orientation": "horizontal", "showUnfilled": True, "valueMode": "color",
                "namePlacement": "auto", "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 40,
                "legend": legend | {"showLegend": False}, "text": {"titleSize": 14, "valueSize": 18}}, {}
    if kind == "table":
        sort = spec.get("sort", "")
        by = [{"displayName": sort.lstrip("-"), "desc": not sort.startswith("-")}] if sort else []
        return {"showHeader": True, "cellHeight": "sm", "sortBy": by}, {"align": "auto", "cellOptions": {"type": "auto"}}
    raise ValueError(kind)


def link_to(uid, names):
    """The address of a dashboard with the variables of a row."""
    fields = "".join(f"&var-{name}=${{__data.fields.{name}}}" for name in names)
    return f"/d/{uid}?${{datasource:queryparam}}&${{cluster:queryparam}}{fields}&${{__url_time_range}}"


def overrides_of(spec):
    found = spec.get("overrides", [])
    if found == "kinds":
        return [override(kind, fixed(colour), ("displayName", words)) for kind, (words, colour) in KINDS.items()]
    made = list(found)
    if spec["kind"] == "table":
        for name, unit in spec["columns"].items():
            if unit == "severity":
                made.append(override(name, ("mappings", mapped("severity")), ("custom.cellOptions", {"type": "color-background"})))
            elif name == "Pressure":
                made.append(override(name, ("unit", unit), ("min", 0), ("max", 1), ("thresholds", steps(PRESSURE)),
                                     ("custom.cellOptions", {"type": "gauge", "mode": "basic"})))
            elif name == "Out of memory in":
                made.append(override(name, ("unit", unit), ("thresholds", steps(ETA)), ("custom.cellOptions", {"type": "color-text"})))
            else:
                made.append(override(name, ("unit", unit)))
        if "link" in spec:
            field, uid = spec["link"]
            names = ["namespace", "run"] + (["rank"] if field == "rank" else [])
            made.append(override(field, ("links", [{"title": f"Open this {field}", "url": link_to(uid, names)}])))
    return made


def transformations_of(spec):
    """A table's queries become its columns; a row that one query lacks stays."""
    if spec["kind"] != "table":
        return []
    refs = [chr(ord("A") + i) for i in range(len(spec["queries"]))]
    names = {"Value" if len(refs) == 1 else f"Value #{ref}": query["legend"] for ref, query in zip(refs, spec["queries"])}
    hidden = {"Time": True} | {old: True for old, new in names.items() if new in spec.get("hide", [])}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names, "indexByName": {}, "includeByName": {}}},
    ]


def built_panel(spec, number, at):
    if spec["kind"] == "row":
        return {"type": "row", "id": number, "title": spec["title"], "collapsed": False, "gridPos": at, "panels": []}
    options, custom = drawn(spec)
    defaults = {"unit": spec["unit"], "custom": custom, "mappings": mapped(spec["mappings"]) if "mappings" in spec else [],
                "color": {"mode": spec.get("scheme") or ("thresholds" if spec["kind"] in ("stat", "bargauge", "state-timeline", "table") else "palette-classic")},
                "thresholds": steps(spec.get("thresholds", [(None, "green")] if spec["kind"] != "stat" else [(None, "text")]))}
    if spec.get("zero"):
        custom["axisSoftMin"], custom["axisSoftMax"] = 0, 0
    for key, name in [("min", "min"), ("max", "max"), ("decimals", "decimals"), ("no_value", "noValue")]:
        if key in spec:
            defaults[name] = spec[key]
    if spec.get("gauge"):
        defaults |= {"min": 0, "max": 1}
    targets = [
        {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": query["expr"], "legendFormat": query["legend"] or "__auto", "editorMode": "code",
         "instant": query["instant"], "range": not query["instant"], "format": "table" if spec["kind"] == "table" else "time_series"}
        for i, query in enumerate(spec["queries"])
    ]
    made = {
        "type": spec["kind"], "id": number, "title": spec["title"], "description": spec["description"], "datasource": DATASOURCE,
        "gridPos": at, "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": overrides_of(spec)}, "options": options,
    }
    if spec.get("points"):
        made["maxDataPoints"] = spec["points"]
    if changes := transformations_of(spec):
        made["transformations"] = changes
    return made


def placed(specs):
    """The panels from left to right, and a new line where one no longer fits."""
    x = y = height = 0
    made = []
    for number, spec in enumerate(specs, 1):
        width, tall = (WIDTH, 1) if spec["kind"] == "row" else spec["size"]
        if x + width > WIDTH:
            x, y, height = 0, y + height, 0
        made.append(built_panel(spec, number, {"x": x, "y": y, "w": width, "h": tall}))
        x, height = x + width, max(height, tall)
    return made


def built(uid, title, description, variables, annotations, specs):
    others = [
        {"type": "link", "title": other_title, "url": f"/d/{other}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{namespace:queryparam}}&${{__url_time_range}}",
         "icon": "dashboard", "tooltip": about, "tags": [], "asDropdown": False, "includeVars": False, "keepTime": False, "targetBlank": False}
        for other, other_title, about, *_ in DASHBOARDS if other != uid
    ]
    runbooks = {"type": "link", "title": "Runbooks", "url": RUNBOOKS, "icon": "doc", "tooltip": "What each alert means and what to do", "tags": [],
                "asDropdown": False, "includeVars": False, "keepTime": False, "targetBlank": True}
    return {
        "uid": uid, "title": title, "description": description, "tags": ["stepmem", "gpu"], "schemaVersion": SCHEMA_VERSION, "editable": True,
        "graphTooltip": 1, "timezone": "browser", "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "fiscalYearStartMonth": 0,
        "templating": {"list": [DATASOURCE_VARIABLE, *variables]}, "annotations": {"list": annotations}, "links": [*others, runbooks],
        "panels": placed(specs),
    }


def main():
    is_check = sys.argv[1:] == ["--check"]
    stale = []
    for dashboard in DASHBOARDS:
        path = HERE / f"{dashboard[0]}.json"
        text = json.dumps(built(*dashboard), indent=2, ensure_ascii=False) + "\n"
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what dashboards/build.py writes; run it")


if __name__ == "__main__":
    main()
