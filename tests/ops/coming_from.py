"""Checks the queries of docs/coming-from.md by promtool: each joins the series of another exporter with ours as its text says."""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/coming-from.md"
METRICS = ROOT / "docs/metrics.md"

DCGM = 'gpu="0",modelName="H100",Hostname="n1",instance="n1:9400",job="dcgm"'
OURS = 'instance="n1:9477",job="stepmem"'


def rank(name: str, number: int, uuid: str) -> str:
    return f'{name}{{run="llm",rank="{number}",uuid="{uuid}",{OURS}}}'


INPUT = {
    rank("stepmem_rank_info", 0, "GPU-1a"): 1,
    rank("stepmem_rank_info", 1, "GPU-2b"): 1,
    # Two ranks share a device.
    rank("stepmem_rank_info", 2, "GPU-2b"): 1,
    rank("stepmem_rank_memory_reserved_bytes", 0, "GPU-1a"): 10 << 30,
    rank("stepmem_rank_memory_reserved_bytes", 1, "GPU-2b"): 20 << 30,
    rank("stepmem_rank_memory_reserved_bytes", 2, "GPU-2b"): 30 << 30,
    f'stepmem_diagnosis_severity{{run="llm",rank="0",kind="CREEP_CONFIRMED",{OURS}}}': 1,
    f'stepmem_diagnosis_severity{{run="llm",rank="1",kind="CREEP_EARLY",{OURS}}}': 1,
    f'stepmem_diagnosis_severity{{run="llm",rank="1",kind="HIGH_PRESSURE",{OURS}}}': 1,
    f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1a",{DCGM}}}': 4,
    f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-2b",{DCGM}}}': 97,
    f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-3c",{DCGM}}}': 0,
    f'DCGM_FI_DEV_FB_USED{{UUID="GPU-1a",{DCGM}}}': 12 << 10,
    f'DCGM_FI_DEV_FB_USED{{UUID="GPU-2b",{DCGM}}}': 60 << 10,
    'nvidia_smi_utilization_gpu_ratio{uuid="1a",instance="n1:9835",job="smi"}': 0.04,
    'nvidia_smi_utilization_gpu_ratio{uuid="2b",instance="n1:9835",job="smi"}': 0.97,
}


def joined(number: int, uuid: str, value: float, key: str = "UUID") -> "tuple[str, float]":
    more = f'UUID="{uuid}",uuid="{uuid}"' if key == "UUID" else f'uuid="{uuid}"'
    return f'{{{more},{OURS},rank="{number}",run="llm"}}', value


EXPECTED = [
    [joined(0, "GPU-1a", 4), joined(1, "GPU-2b", 97), joined(2, "GPU-2b", 97)],
    [(f'{{UUID="GPU-1a",{OURS},kind="CREEP_CONFIRMED",rank="0",run="llm"}}', 1)],
    [('{UUID="GPU-1a"}', 2 << 30), ('{UUID="GPU-2b"}', 10 << 30)],
    [joined(0, "1a", 0.04, "uuid"), joined(1, "2b", 0.97, "uuid"), joined(2, "2b", 0.97, "uuid")],
]


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    queries = re.findall(r"```promql\n(.+?)```", page, re.DOTALL)
    if len(queries) != len(EXPECTED):
        print(f"{PAGE.name} has {len(queries)} queries, {len(EXPECTED)} are expected", file=sys.stderr)
        return 1
    known = set(re.findall(r"`(stepmem_[a-z_]+)`", METRICS.read_text(encoding="utf-8")))
    unknown = {name for name in re.findall(r"stepmem_[a-z_]*[a-z]\b(?!_)", page) if not any(each.startswith(name) for each in known)}
    if unknown:
        print(f"{PAGE.name} names metrics that there are not: {sorted(unknown)}", file=sys.stderr)
        return 1
    tests = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": f"{value}x5"} for series, value in INPUT.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "3m",
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected],
                    }
                    for query, expected in zip(queries, EXPECTED)
                ],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "coming_from.yaml"
        path.write_text(yaml.safe_dump(tests), encoding="utf-8")
        ended = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    if ended.returncode != 0:
        print(ended.stdout + ended.stderr, file=sys.stderr)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
