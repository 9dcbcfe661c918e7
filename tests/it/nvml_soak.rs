//! A long time of polling with faults at random: what the poller holds does not grow, and nothing is left behind.

use std::process::Command;
use std::{env, fs};

use serde_json::{Value, json};
use stepmem::input::nvml::cycle::GpuPoll;
use stepmem::input::nvml::poller::Poller;
use stepmem::model::device::Attribution;
use stepmem::model::units::Bytes;

use crate::nvml::{Fake, GIB, driver, gpu, gpu_with, instance};

/// Says how many polls are made; `make soak` makes those of an hour at 100 Hz.
const POLLS_VARIABLE: &str = "STEPMEM_SOAK_POLLS";
const POLLS: u64 = 30_000;
/// After how many polls the driver changes.
const CHANGE_EVERY: u64 = 20;
/// What the process may grow by after the first tenth: the slack of an allocator, not something kept for each poll.
const GROWTH_BYTES_MAX: u64 = 512 << 10;

/// A small generator of even noise (`SplitMix64`, Steele, Lea and Flood 2014).
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((bits ^ (bits >> 31)) % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// A machine of three GPUs, one of them in MIG mode, in one of its moods.
fn scenario(noise: &mut Noise) -> Value {
    let pid = 100 + noise.below(1000);
    let compute = match noise.below(5) {
        0 => json!([]),
        1 => json!([{ "pid": pid }]),
        2 => json!([{ "pid": pid, "used": GIB }, { "pid": pid, "used": 2 * GIB }]),
        3 => json!([{ "pid": pid, "used": 0 }]),
        _ => json!([{ "pid": pid, "used": GIB }, { "pid": pid + 1, "used": 3 * GIB }]),
    };
    let busy = gpu_with("GPU-a", &json!({ "compute": compute }));
    let code = [1, 3, 4, 9, 10, 15, 16, 18, 25, 28, 999][noise.below(11)];
    let other = match noise.below(4) {
        0 => gpu_with("GPU-b", &json!({ "code": code })),
        1 => gpu_with("GPU-b", &json!({ "memory": null })),
        2 => {
            let calls = json!({ "nvmlDeviceGetMemoryInfo_v2": { "code": code } });
            gpu_with("GPU-b", &json!({ "calls": calls }))
        }
        _ => gpu("GPU-b"),
    };
    let instances: Vec<Value> = (0..noise.below(4))
        .map(|idx| instance(&format!("MIG-{idx}"), u32::try_from(idx / 2).unwrap(), "1g.10gb"))
        .collect();
    let split = match noise.below(3) {
        0 => gpu("GPU-c"),
        _ => gpu_with("GPU-c", &json!({ "mig": instances })),
    };
    let mut scenario = driver(&json!([busy, other, split]));
    match noise.below(12) {
        0 => scenario["calls"] = json!({ "nvmlInit_v2": { "code": code } }),
        1 => scenario["calls"] = json!({ "nvmlDeviceGetCount_v2": { "code": code } }),
        2 => scenario["devices"] = json!([]),
        3 => scenario["process_stride"] = json!(32),
        4 => scenario["calls"] = json!({ "nvmlDeviceGetUUID": { "delay_ms": 1 } }),
        _ => {}
    }
    scenario
}

/// Checks that nothing is said that the machine does not say.
fn check(poll: &GpuPoll) {
    for sample in &poll.samples {
        if let Some(memory) = sample.memory {
            let total = memory.total.get();
            assert!([80 * GIB, 10 * GIB].contains(&total), "{sample:?}");
            assert!([31 * GIB, 30 * GIB, 4 * GIB].contains(&memory.used.get()), "{sample:?}");
        }
        for process in &sample.processes {
            let used = process.used.map(Bytes::get);
            assert!(used.is_none_or(|used| used <= 3 * GIB), "{sample:?}");
        }
        if sample.attribution == Attribution::Unsupported {
            assert_eq!(sample.processes, [], "{sample:?}");
        }
    }
    let is_named = poll.unavailable.iter().all(|gone| !gone.code.is_empty());
    assert!(is_named, "{poll:?}");
}

/// (resident bytes, threads, open files) of this process.
fn held() -> (u64, usize, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let n_files = fs::read_dir("/proc/self/fd").unwrap().count();
    (1024 * field("VmRSS:"), usize::try_from(field("Threads:")).unwrap(), n_files)
}

/// The soak itself, in a process without other tests.
#[expect(clippy::print_stderr, reason = "the figures are what `make soak` is run for")]
#[test]
#[ignore = "long_polling_with_faults_leaves_nothing_behind runs it in a process of its own"]
fn soak() {
    let n_polls = env::var(POLLS_VARIABLE).map_or(POLLS, |text| text.parse().unwrap());
    let mut noise = Noise(1);
    let fake = Fake::new("soak", &scenario(&mut noise));
    fake.count_no_calls();
    let mut poller: Poller = fake.host();
    let mut settled = None;
    for n in 0..n_polls {
        if n % CHANGE_EVERY == 0 {
            fake.set(&scenario(&mut noise));
        }
        if n % 1013 == 0 {
            poller.release();
        }
        check(&poller.poll());
        if n == n_polls / 10 {
            settled = Some(held());
        }
    }
    let (settled, last) = (settled.unwrap(), held());
    eprintln!("{n_polls} polls: (resident bytes, threads, files) {settled:?}, then {last:?}");
    assert!(last.0 <= settled.0 + GROWTH_BYTES_MAX, "{settled:?} grew to {last:?}");
    assert_eq!((last.1, last.2), (settled.1, settled.2));
}

#[test]
fn long_polling_with_faults_leaves_nothing_behind() {
    let soak = Command::new(env::current_exe().unwrap())
        .args(["--exact", "nvml_soak::soak", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&soak.stderr);
    assert!(soak.status.success(), "{said}");
    assert!(said.contains("polls: "), "it ran: {said}");
}
