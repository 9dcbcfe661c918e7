#!/usr/bin/env bash
# Draws the dashboards from a demo that a real Prometheus has scraped: tests/ops/look/look.sh OUT_FOLDER PROGRAMS_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
look=$root/target/tools/look
out=${1:?a folder for the pictures}
mkdir -p "$out"
out=$(realpath "$out")
programs=$(realpath "${2:?the folder with stepmem and libfake_nvml.so}")
"$here/../install.sh" look
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

# address LOG WHAT waits for the address that an exporter logs.
address() {
    for _ in $(seq 200); do
        if grep -q "\"what\":\"$2\"" "$1"; then
            sed -n "s/.*\"address\":\"\([^\"]*\)\".*\"what\":\"$2\".*/\1/p;s/.*\"what\":\"$2\".*\"address\":\"\([^\"]*\)\".*/\1/p" "$1" | head -1
            return
        fi
        read -rt 0.05 <> <(:) || true
    done
    echo "no $2 in $1" >&2
    exit 1
}
# The second exporter's NVML: a device that a process fills, as live.py writes, and one that fails.
cp "$programs/libfake_nvml.so" "$work/libnvidia-ml.so.1"
scenario=$work/libnvidia-ml.so.1.json
cat >"$scenario" <<'JSON'
{"driver_version": "570.86.15", "events": [{"device": 0, "xid": 79}], "devices": [
    {"uuid": "GPU-a", "name": "NVIDIA H100 80GB HBM3", "compute": [],
     "memory": {"total": 85899345920, "reserved": 1073741824, "used": 9663676416}},
    {"uuid": "GPU-b", "code": 15}]}
JSON
common=(--web.listen-address 127.0.0.1:0 --push.listen-address 127.0.0.1:0 --log.format json --log.level info)
"$programs/stepmem" demo "${common[@]}" >/dev/null 2>"$work/demo.log" &
"$programs/stepmem" serve "${common[@]}" --otlp.endpoint http://127.0.0.1:1 --otlp.interval 1s \
    --nvml.library "$work/libnvidia-ml.so.1" --nvml.interval 50ms --creep.process-warmup 0s --creep.process-interval 50ms >/dev/null 2>"$work/faulty.log" &
# Assigned first: an address that does not come ends the script.
web=$(address "$work/demo.log" web)
push=$(address "$work/demo.log" push)
faulty=$(address "$work/faulty.log" web)
"$root/target/tools/ops/bin/python" "$here/../live.py" "$web" "$push" "$faulty" "$scenario" "$work/live" --dump "$out/dump.json"

cp "$here"/{index.html,main.jsx,shoot.mjs} "$look/"
cd "$look"
node shoot.mjs "$out/dump.json" "$root/dashboards" "$out"
