//! `stepmem judge`: the verdict on memory over time that others recorded, in each of their formats.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem, words};
use crate::rig::folder::{Folder, root, text};
use crate::rig::peers::run_peer;
use crate::rig::schema::{holds, schema};

/// The time of the first sample.
const START: u32 = 1_795_158_000;
const SAMPLES: u32 = 300;

/// MiB of a device that leaks 9.4 GiB an hour, read every 30 s, and of one that does not.
fn used(sample: u32, leaks: bool) -> u32 {
    20_480 + sample * 7919 % 17 + if leaks { sample * 80 } else { 0 }
}

/// Runs the command. What it prints as JSON holds its schema.
fn judge(arguments: &[&str], input: &[u8]) -> Ended {
    let ended = stepmem(&[&["judge"], arguments].concat(), &[], input);
    if arguments.contains(&"--json") && !ended.out.is_empty() {
        holds(&schema("judge"), &serde_json::from_str(&ended.out).unwrap());
    }
    ended
}

/// The verdict on each series, by its name.
fn verdicts(answer: &Value) -> Vec<(String, String)> {
    let of = |each: &Value, key: &str| each[key].as_str().unwrap().to_owned();
    let series = answer["series"].as_array().unwrap();
    series.iter().map(|each| (of(each, "name"), of(each, "verdict"))).collect()
}

/// Checks the verdicts on a file, the worst first.
#[track_caller]
fn check(arguments: &[&str], input: &str, expected: &[(&str, &str)]) -> Value {
    let answer = judge(&[&["--json", "-"], arguments].concat(), input.as_bytes()).json();
    let expected: Vec<_> =
        expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    assert_eq!(verdicts(&answer), expected);
    answer
}

/// A log of `nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 30` on two devices, in the form
/// that its manual gives.
fn smi_log() -> String {
    let mut log = "timestamp, index, memory.used [MiB], memory.total [MiB]\n".to_owned();
    for sample in 0..SAMPLES {
        for device in 0..2 {
            let (time, used) = (clock(sample, 17 + device), used(sample, device == 1));
            writeln!(log, "{time}, {device}, {used} MiB, 81920 MiB").unwrap();
        }
    }
    log
}

const OF_SMI: [(&str, &str); 2] =
    [("memory.used [MiB] index=1", "creep"), ("memory.used [MiB] index=0", "no_growth")];

#[test]
fn logs_of_nvidia_smi_are_judged_device_by_device() {
    let answer = check(&[], &smi_log(), &OF_SMI);
    let leak = &answer["series"][0];
    assert_eq!(leak["capacity_bytes"], 80.0 * 1024.0 * 1024.0 * 1024.0);
    assert_eq!((&leak["samples"], &leak["interval_seconds"]), (&json!(300), &json!(30.0)));
    let growth = &leak["growth"];
    let [slope, lower, upper] = ["slope", "slope_lower", "slope_upper"]
        .map(|key| growth[format!("{key}_bytes_per_second")].as_f64().unwrap());
    let planted = 80.0 * 1_048_576.0 / 30.0;
    assert!(lower <= planted && planted <= upper && (slope / planted - 1.0).abs() < 0.1);
    assert!(growth["onset_time"].as_f64().unwrap() < f64::from(START) + 1800.0);
    // 36.6 GiB are left of 80.
    assert!((growth["oom_eta_seconds"].as_f64().unwrap() / 14_050.0 - 1.0).abs() < 0.15);
    assert!(answer["note"].as_str().unwrap().contains("cannot show optimizer steps"));
    assert!(leak["story"]["events"].as_array().is_some_and(|events| !events.is_empty()));
    assert!(!leak.to_string().contains("\"pid\""), "{leak}");
}

/// The date and time of a sample of a log, `millis` after its second.
fn clock(sample: u32, millis: u32) -> String {
    let seconds = 30 * sample;
    let (hour, minute, second) = (7 + seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("2026/11/20 {hour:02}:{minute:02}:{second:02}.{millis:03}")
}

/// The output of drivers 545 to 610 for three devices: columns without a unit, a header for
/// each start of the loop, the devices of a burst in any order, and a device that falls off the
/// bus for a while.
#[test]
fn logs_with_every_column_are_judged_while_a_device_is_lost() {
    let head = "timestamp, name, pci.bus_id, driver_version, pstate, pcie.link.gen.max, temperature.gpu, utilization.gpu [%], \
                utilization.memory [%], memory.total [MiB], memory.free [MiB], memory.used [MiB], power.draw [W], mig.mode.current";
    let mut log = String::new();
    for sample in 0..SAMPLES {
        if sample % 60 == 0 {
            writeln!(log, "{head}").unwrap();
        }
        for place in 0..3 {
            let device = (sample + place) % 3;
            let start = format!(
                "{}, NVIDIA A100-SXM4-80GB, 00000000:{device}B:00.0, 545.23.08",
                clock(sample, sample * 7 % 900 + place)
            );
            let used = used(sample, device == 1);
            let row = if device == 2 && (100..110).contains(&sample) {
                "[Unknown Error], 4, [GPU requires reset], [Unknown Error], [Unknown Error], [GPU is lost], [GPU is lost], [GPU is lost], [N/A], [N/A]".to_owned()
            } else {
                format!(
                    "P0, 4, 44, 3 %, 0 %, 81920 MiB, {} MiB, {used} MiB, 71.27 W, Disabled",
                    81_920 - used
                )
            };
            writeln!(log, "{start}, {row}").unwrap();
        }
    }
    let name = |device: u32| format!("memory.used [MiB] pci.bus_id=00000000:{device}B:00.0");
    let expected = [(name(1), "creep"), (name(0), "no_growth"), (name(2), "no_growth")];
    let expected = expected.each_ref().map(|(name, verdict)| (name.as_str(), *verdict));
    let answer = check(&[], &log, &expected);
    let samples = |idx: usize| answer["series"][idx]["samples"].as_u64();
    assert_eq!([0, 1, 2].map(samples), [Some(300), Some(300), Some(290)]);
    // A GB10 reports no memory of its own.
    let unified = "timestamp, name, memory.used [MiB], memory.total [MiB]\n2026/11/20 07:00:00.000, NVIDIA GB10, [N/A], [N/A]\n";
    judge(&["-"], unified.as_bytes())
        .fails(2, "memory.used [MiB] has no figure that can be read");
}

/// The output of `--query-compute-apps`: processes come and go, some have no name or no figure,
/// and a name with commas has no quotes, so that its figure cannot be told.
#[test]
fn logs_of_processes_are_judged_process_by_process() {
    let head = "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n";
    let mut log = head.to_owned();
    for sample in 0..SAMPLES {
        let time = clock(sample, sample % 900);
        let (leak, flat) = (used(sample, true), used(sample, false));
        writeln!(log, "{time}, GPU-1, 41, /opt/chrome --type=gpu-process --x=a,b, c, 12 MiB")
            .unwrap();
        writeln!(log, "{time}, GPU-1, 42, [Not Found], {leak} MiB").unwrap();
        writeln!(log, "{time}, GPU-2, 43, python3, {flat} MiB").unwrap();
        writeln!(log, "{time}, GPU-2, 44, [Insufficient Permissions], [N/A]").unwrap();
        if sample == 50 {
            log += "No running processes found\n";
            log += head;
        }
    }
    let leak = "used_gpu_memory [MiB] gpu_uuid=GPU-1 pid=42";
    let flat = "used_gpu_memory [MiB] gpu_uuid=GPU-2 pid=43";
    let answer = check(&["--capacity", "80GiB"], &log, &[(leak, "creep"), (flat, "no_growth")]);
    let left_out = &answer["sources"][0]["left_out"];
    assert_eq!(left_out["rows_without_time"], 1);
    assert_eq!(left_out["figures_unreadable"], 300);
}

#[test]
fn text_names_verdict_rate_since_when_and_time_left_and_what_samples_cannot_show() {
    let out = judge(&["-"], smi_log().as_bytes()).quiet();
    let row = out.lines().find(|line| line.contains("index=1")).unwrap();
    for part in ["CREEP", "GiB/h  ", "2026-11-20 07:", "80.0 GiB", "300", "30 s"] {
        assert!(row.contains(part), "no {part} in {row}");
    }
    assert!(words(&out).contains("or a peak between two of them"), "{out}");
    assert!(out.contains("MEMORY CREEP, critical: memory grows by"), "{out}");
    assert!(!out.contains("rocess"), "{out}");
}

#[test]
fn a_log_in_any_state_gives_the_same_verdicts() {
    let log = smi_log();
    let (head, rows) = log.split_once('\n').unwrap();
    let backwards: Vec<&str> = rows.lines().rev().collect();
    // Restarted with >>, a device that was lost for a while, and a last line that is cut.
    let with_noise = format!(
        "{log}{head}\nUnable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n\
         2026/11/20 09:30:00.017, 0, [N/A], [N/A]\n2026/11/20 09:3"
    );
    let utf16: Vec<u8> = log.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    check(&[], &format!("{head}\n{}\n", backwards.join("\n")), &OF_SMI);
    check(&[], &with_noise, &OF_SMI);
    // --format=csv,nounits
    check(&[], &log.replace(" MiB", ""), &OF_SMI);
    check(&[], &log.replace(',', ";"), &OF_SMI);
    check(&[], &format!("\u{feff}{}", log.replace('\n', "\r\n")), &OF_SMI);
    check(&[], &format!("{log}{rows}"), &OF_SMI);
    let windows = judge(&["--json", "-"], &[&[0xff, 0xfe][..], &utf16].concat()).json();
    assert_eq!(verdicts(&windows)[0].1, "creep");
    check(
        &["--header", "time,gpu,mem,mem_total"],
        rows,
        &[("mem gpu=1", "creep"), ("mem gpu=0", "no_growth")],
    );
}

#[test]
fn columns_keys_units_and_capacities_are_found_or_given() {
    let mut lines = String::new();
    for sample in 0..SAMPLES {
        let (leak, flat) = (used(sample, true), used(sample, false));
        let time = START + 30 * sample;
        let row = json!({"_timestamp": time, "loss": 1.0, "system": {"gpu": [1], "memoryAllocated": 40.0, "memoryAllocatedBytes":
            u64::from(leak) << 20}, "rss_mb": flat, "host": "node\u{1b}7", "shape": {"a": {"b": "c"}}});
        writeln!(lines, "{row}").unwrap();
    }
    lines += "{\"_timestamp\": 17";
    let host = "host=node\\u{1b}7";
    let answer = check(
        &["--capacity", "48GiB"],
        &lines,
        &[
            (&format!("system.memoryAllocatedBytes {host}"), "creep"),
            (&format!("rss_mb {host}"), "no_growth"),
        ],
    );
    assert_eq!(answer["sources"][0]["left_out"]["is_cut"], true);
    check(
        &["--column", "rss_mb", "--by", "loss", "--unit", "MiB"],
        &lines,
        &[("rss_mb loss=1.0", "no_growth")],
    );
    let share = ["--column", "system.memoryAllocated", "--unit", "%", "--by", "host"];
    judge(&[&share[..], &["-"]].concat(), lines.as_bytes()).fails(2, "give --capacity");
    let name = format!("system.memoryAllocated {host}");
    let answer = check(
        &[&share[..], &["--capacity", "80GiB"]].concat(),
        &lines,
        &[(&name, "no_growth")],
    );
    let first = &answer["series"][0]["story"]["signals"][0]["floor"]["points_bytes"][0];
    assert_eq!(first.as_f64(), Some(32.0 * 1_073_741_824.0));
}

#[test]
fn event_files_that_tensorboard_wrote_are_judged_in_both_forms() {
    let file = |name: &str| text(&root().join("tests/data/series").join(name));
    let of = |arguments: &[&str]| {
        verdicts(&judge(&[&["--json", "--capacity", "32GiB"], arguments].concat(), b"").json())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        of(&[&file("scalars.tfevents")]),
        [
            pair("gpu0/memory_allocated_gib", "creep"),
            pair("gpu1/memory_allocated_gib", "no_growth")
        ]
    );
    assert_eq!(
        of(&[&file("tensors.tfevents")]),
        [pair("gpu0/memory_allocated_bytes", "creep")]
    );
    let several = of(&[&file("scalars.tfevents"), &file("tensors.tfevents")]);
    assert_eq!(several.len(), 3);
    assert!(several.iter().all(|(name, _)| name.contains("file=")), "{several:?}");

    // Cut short, and damaged in one record.
    let mut bytes = fs::read(file("scalars.tfevents")).unwrap();
    bytes.truncate(bytes.len() - 7);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let answer = judge(&["--json", "--capacity", "32GiB", "-"], &bytes).json();
    assert_eq!(verdicts(&answer)[0].1, "creep");
    let left_out = &answer["sources"][0]["left_out"];
    assert_eq!((&left_out["is_cut"], &left_out["records_damaged"]), (&json!(true), &json!(1)));
}

#[test]
fn frames_that_pandas_wrote_are_judged_as_tables_and_as_lines() {
    for (file, leak, flat) in [
        ("frame.csv", "memory_used_mib gpu=1", "memory_used_mib gpu=0"),
        ("frame.jsonl", "memory_used_mib gpu=1", "memory_used_mib gpu=0"),
        ("index.csv", "gpu.memory_used_mib.1", "gpu.memory_used_mib.0"),
    ] {
        let path = text(&root().join("tests/data/series").join(file));
        let answer = judge(&["--json", "--capacity", "80GiB", &path], b"").json();
        let expected = [(leak, "creep"), (flat, "no_growth")];
        let expected = expected.map(|(name, verdict)| (name.to_owned(), verdict.to_owned()));
        assert_eq!(verdicts(&answer), expected, "{file}");
        let of = |idx: usize| {
            let series = &answer["series"][idx];
            (series["samples"].as_u64(), series["interval_seconds"].as_f64())
        };
        assert_eq!([of(0), of(1)], [180, 179].map(|n| (Some(n), Some(60.0))), "{file}");
        let slope = &answer["series"][0]["growth"]["slope_bytes_per_second"];
        let planted = 82.0 * 1_048_576.0 / 60.0;
        assert!((slope.as_f64().unwrap() / planted - 1.0).abs() < 0.05, "{file}: {slope}");
    }
}

/// The columns of the log without a first line, by the query that its owners ran.
const COLUMNS: &str = "timestamp, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], \
                       temperature.gpu, power.draw [W]";

#[test]
fn logs_that_nvidia_smi_wrote_are_judged_as_they_are() {
    let path = |name: &str| text(&root().join("tests/data/series").join(name));
    let judged = |arguments: &[&str]| {
        let answer = judge(&[&["--json"], arguments].concat(), b"").json();
        let series = &answer["series"][0];
        assert_eq!(answer["series"].as_array().unwrap().len(), 1, "{answer}");
        let of = |key: &str| series[key].as_str().unwrap_or_default().to_owned();
        let capacity = series["capacity_bytes"].as_f64().unwrap();
        (of("name"), of("verdict"), series["samples"].as_u64(), capacity / 1_048_576.0)
    };
    let (name, verdict, samples, capacity) = judged(&[&path("smi.csv")]);
    assert_eq!((name.as_str(), verdict.as_str()), ("memory.used [MiB] index=0", "too_short"));
    assert_eq!((samples, capacity), (Some(107), 32_768.0));
    let noheader = path("smi-noheader.csv.gz");
    let (name, verdict, samples, capacity) = judged(&["--header", COLUMNS, &noheader]);
    assert_eq!((name.as_str(), verdict.as_str()), ("memory.used [MiB]", "no_growth"));
    assert_eq!((samples, capacity), (Some(1923), 20_146.0));

    // The same, with a leak of 5 MiB a sample on top of what the job holds.
    let packed = fs::read(&noheader).unwrap();
    let mut log = String::new();
    GzDecoder::new(&*packed).read_to_string(&mut log).unwrap();
    let leaking: String = (0_u32..)
        .zip(log.lines())
        .map(|(sample, line)| {
            let mut cells: Vec<String> = line.split(", ").map(str::to_owned).collect();
            let used: u32 = cells[3].trim_end_matches(" MiB").parse().unwrap();
            cells[3] = format!("{} MiB", used + 5 * sample);
            cells.join(", ") + "\n"
        })
        .collect();
    check(&["--header", COLUMNS], &leaking, &[("memory.used [MiB]", "creep")]);
}

#[test]
fn what_cannot_be_judged_is_refused_by_name() {
    let refused = |arguments: &[&str], input: &str, error: &str| {
        judge(&[arguments, &["-"]].concat(), input.as_bytes()).fails(2, error);
    };
    refused(&[], "", "it is empty");
    refused(&[], "a,b\n1,2\n", "no column of it is a time");
    refused(&[], "time,loss\n1,2\n", "choose with --column (it has time, loss)");
    refused(&[], "time,mem\nnoon,2\n", "column time has \"noon\"");
    refused(&[], "time,mem\n1,2\n", "the unit of mem is unknown");
    refused(&[], "time,mem_mb\n1,[N/A]\n", "mem_mb has no figure that can be read");
    refused(&["--column", "x\u{1b}"], "time,mem_mb\n1,2\n", "no column \"x\\u{1b}\"");
    refused(&["--by", "pod"], "time,mem_mb\n1,2\n", "no column \"pod\" (it has time, mem_mb)");
    refused(&["--capacity", "1MiB"], "time,mem_mib\n1,2\n", "exceeds --capacity");
    refused(&[], "{\"time\":1}\n{]\n{}\n", "line 2");
    let log = smi_log().replace(", index", "").replace(", 0, ", ", ").replace(", 1, ", ", ");
    refused(&[], &log, "rows come in bursts");
    let wide = format!("time,mem_mb\n1,2{}\n", " ".repeat(1 << 20));
    refused(&[], &wide, "line 2 exceeds 1048576");
    let many =
        (0..1025).fold("time,pid,mem_mb\n".to_owned(), |all, n| all + &format!("1,{n},2\n"));
    refused(&[], &many, "more than 1024 series");
    judge(&["http://user:secret@127.0.0.1:9"], b"").fails(2, "needs --query");
    judge(&[&text(&root())], b"").fails(2, "is a directory");
    // Of a few samples nothing can be said.
    check(&[], "time,mem_mb\n1,2\n2,3\n", &[("mem_mb", "too_short")]);
    let out = words(&judge(&["-"], b"time,mem\n1,2e9\n2,3e9\n").quiet());
    for part in [
        "mem too short",
        "The first 10 min 0 s count as loading (--creep.process-warmup), and a verdict takes 2 min 0 s more",
        "No capacity is known of 1 series",
        "are taken as bytes",
    ] {
        assert!(out.contains(part), "no {part} in {out}");
    }
}

#[test]
fn growth_that_ended_is_told_from_growth_that_goes_on() {
    let mut table = "time,mem_mib,mem_total_mib\n".to_owned();
    for sample in 0..2 * SAMPLES {
        let mib = if sample < SAMPLES { used(sample, true) } else { 2_000 + sample % 5 };
        writeln!(table, "{},{mib},49152", START + 30 * sample).unwrap();
    }
    let answer = check(&[], &table, &[("mem_mib", "ended")]);
    assert!(answer["series"][0]["growth"]["growth_bytes"].as_f64().unwrap() > 1e9);
}

#[test]
fn the_document_loads_nothing_and_runs_no_script() {
    let folder = Folder::new("judge-html");
    let out = text(&folder.path("out.html"));
    let log = smi_log().replace(", 1, ", ", <script>, ");
    judge(&["-", "--html", &out], log.as_bytes()).done();
    let document = fs::read_to_string(&out).unwrap();
    assert!(document.contains("&lt;script&gt;: CREEP") && document.contains("<polyline"));
    for part in ["<script", "http", "href", "src="] {
        let found = document.replace("http-equiv", "").contains(part);
        assert!(!found, "{part} in {document}");
    }
}

/// The metrics of dcgm-exporter for a device that leaks and for one that does not, up to a
/// minute ago.
fn openmetrics() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let began = now - 30 * u64::from(SAMPLES) - 60;
    let mut metrics = String::new();
    for name in ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"] {
        writeln!(metrics, "# TYPE {name} gauge").unwrap();
        for (pod, sample) in
            ["a", "b"].into_iter().flat_map(|pod| (0..SAMPLES).map(move |sample| (pod, sample)))
        {
            let used = used(sample, pod == "b");
            let mib = if name.ends_with("FREE") { 81_920 - used } else { used };
            let time = began + 30 * u64::from(sample);
            writeln!(metrics, "{name}{{pod=\"{pod}\",gpu=\"0\",Hostname=\"n\"}} {mib} {time}")
                .unwrap();
        }
    }
    metrics + "# EOF\n"
}

#[test]
fn series_of_a_real_prometheus_are_judged() {
    let folder = Folder::new("judge-prometheus");
    let metrics = folder.write("metrics", &openmetrics());
    let since = ["--json", "--since", "4h"];
    let query = |query| ["URL", "--query", query];
    let used = query("DCGM_FI_DEV_FB_USED");
    let both = ["--capacity-query", "DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE"];
    let next = ["--and"];
    let work = text(&folder.path("work"));
    let start = ["--work-dir", &work, "--metrics", &metrics, env!("CARGO_BIN_EXE_stepmem")];
    let arguments = [
        &start[..],
        &[&used[..], &since, &both, &["--by", "pod"]].concat(),
        &next,
        &[&used[..], &since, &["--by", "gpu"]].concat(),
        &next,
        &[&query("DCGM_FI_DEV_FB_USED{pod=\"c\"}")[..], &since].concat(),
        &next,
        &[&query("{")[..], &since].concat(),
        &next,
        &[
            &query("DCGM_FI_DEV_FB_USED / 1")[..],
            &since,
            &["--unit", "MiB", "--capacity", "80GiB"],
        ]
        .concat(),
    ]
    .concat();
    let said = run_peer("judged.py", &arguments);
    let of = |idx: usize| {
        let [code, out, err] = [0, 1, 2].map(|part| said[idx][part].clone());
        (code, out.as_str().unwrap().to_owned(), err.as_str().unwrap().to_owned())
    };
    let (code, out, err) = of(0);
    assert_eq!((&code, err.as_str()), (&json!(0), ""));
    let answer: Value = serde_json::from_str(&out).unwrap();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let expected = [
        pair("DCGM_FI_DEV_FB_USED pod=b", "creep"),
        pair("DCGM_FI_DEV_FB_USED pod=a", "no_growth"),
    ];
    assert_eq!(verdicts(&answer), expected);
    assert_eq!(answer["series"][0]["capacity_bytes"], 80.0 * 1_073_741_824.0);
    for (idx, error) in [
        (
            1,
            "series with gpu=0 overlap in time; add to --by what tells them apart (they differ in pod)",
        ),
        (2, "has no value of this query in that time"),
        (3, "parse error"),
    ] {
        let (code, _, err) = of(idx);
        assert!(code == json!(1) && err.contains(error), "{error}: {err}");
    }
    assert_eq!(verdicts(&serde_json::from_str(&of(4).1).unwrap())[0].1, "creep");
}

/// Four hours of a container and a device that fill up, and of others that do not.
const FILLING: &str = r#"
evaluation_interval: 1m
rule_files: [rules.yaml]
tests:
  - interval: 1m
    input_series:
      - {series: 'container_memory_working_set_bytes{namespace="ml",pod="leak",container="train"}', values: '1000000000+10000000x240'}
      - {series: 'container_memory_working_set_bytes{namespace="ml",pod="flat",container="train"}', values: '3000000000+0x240'}
      - {series: 'container_memory_working_set_bytes{namespace="ml",pod="late",container="train"}', values: '1000000000+0x180 1000000000+90000000x30 1000000000+0x30'}
      - {series: 'container_memory_working_set_bytes{namespace="ml",pod="slow",container="train"}', values: '1000000000+100000x240'}
      - {series: 'container_spec_memory_limit_bytes{namespace="ml",pod="leak",container="train"}', values: '4000000000+0x240'}
      - {series: 'container_spec_memory_limit_bytes{namespace="ml",pod="flat",container="train"}', values: '4000000000+0x240'}
      - {series: 'container_spec_memory_limit_bytes{namespace="ml",pod="late",container="train"}', values: '4000000000+0x240'}
      - {series: 'container_spec_memory_limit_bytes{namespace="ml",pod="slow",container="train"}', values: '4000000000+0x240'}
      - {series: 'DCGM_FI_DEV_FB_USED{pod="leak",Hostname="n",gpu="0"}', values: '20000+150x240'}
      - {series: 'DCGM_FI_DEV_FB_FREE{pod="leak",Hostname="n",gpu="0"}', values: '60000-150x240'}
      - {series: 'DCGM_FI_DEV_FB_USED{pod="flat",Hostname="n",gpu="1"}', values: '70000+0x240'}
      - {series: 'DCGM_FI_DEV_FB_FREE{pod="flat",Hostname="n",gpu="1"}', values: '10000+0x240'}
    alert_rule_test:
      - eval_time: 4h
        alertname: ContainerMemoryFillsUp
        exp_alerts:
          - exp_labels: {severity: warning, namespace: ml, pod: leak, container: train}
            exp_annotations: {summary: 'Memory of train in leak fills its limit within 6 hours; ask stepmem judge.'}
      - eval_time: 4h
        alertname: DeviceMemoryFillsUp
        exp_alerts:
          - exp_labels: {severity: warning, pod: leak, Hostname: n, gpu: "0"}
            exp_annotations: {summary: 'Memory of GPU 0 on n fills up within 6 hours; ask stepmem judge.'}
      - {eval_time: 1h, alertname: ContainerMemoryFillsUp, exp_alerts: []}
"#;

#[test]
fn rules_for_plain_containers_fire_for_what_fills_up_and_for_nothing_else() {
    let page = fs::read_to_string(root().join("docs/judge.md")).unwrap();
    let rules = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = Folder::new("judge-rules");
    folder.write("rules.yaml", rules);
    let test = folder.write("test.yaml", FILLING);
    let ended = Command::new("promtool").args(["test", "rules", &test]).output();
    let ended = ended.expect("no promtool: run make tools");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
