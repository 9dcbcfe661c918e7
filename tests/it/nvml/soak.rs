//! A long time of polling with faults at random: what the poller holds does not grow, and nothing is left behind.

use std::process::Command;
use std::{env, fs};

use stepmem::input::nvml::cycle::GpuPoll;
use stepmem::input::nvml::poller::Poller;
use stepmem_types::device::Attribution;
use stepmem_types::units::Bytes;

use crate::rig::noise::Noise;
use crate::rig::nvml::{Driver, FakeNvml, Gpu, Order, driver, gpu, hidden, instance, process};
use crate::rig::units::GIB;

/// Says how many polls are made; `make soak` makes those of an hour at 100 Hz.
const POLLS_VARIABLE: &str = "STEPMEM_SOAK_POLLS";
const POLLS: u64 = 30_000;
/// The number of polls after which the driver changes.
const CHANGE_EVERY: u64 = 20;
/// Growth allowed after the first tenth of the polls: slack of the allocator, too little to keep anything for each poll.
const GROWTH_BYTES_MAX: u64 = 512 << 10;

/// A machine of three GPUs, one of them in MIG mode, in one of its moods.
fn scenario(noise: &mut Noise) -> Driver {
    let pid = 100 + u32::try_from(noise.below(1000)).unwrap();
    let compute = match noise.below(5) {
        0 => vec![],
        1 => vec![hidden(pid)],
        2 => vec![process(pid, GIB), process(pid, 2 * GIB)],
        3 => vec![process(pid, 0)],
        _ => vec![process(pid, GIB), process(pid + 1, 3 * GIB)],
    };
    let busy = gpu("GPU-a").compute(&compute);
    let code = [1, 3, 4, 9, 10, 15, 16, 18, 25, 28, 999][noise.below(11)];
    let other = match noise.below(4) {
        0 => gpu("GPU-b").code(code),
        1 => gpu("GPU-b").without("memory"),
        2 => gpu("GPU-b").call("nvmlDeviceGetMemoryInfo_v2", Order::Code(code)),
        _ => gpu("GPU-b"),
    };
    let instances: Vec<Gpu> = (0..noise.below(4))
        .map(|idx| instance(&format!("MIG-{idx}"), u32::try_from(idx / 2).unwrap(), "1g.10gb"))
        .collect();
    let split = match noise.below(3) {
        0 => gpu("GPU-c"),
        _ => gpu("GPU-c").mig(instances),
    };
    let usual = driver([busy, other, split]);
    match noise.below(12) {
        0 => usual.call("nvmlInit_v2", Order::Code(code)),
        1 => usual.call("nvmlDeviceGetCount_v2", Order::Code(code)),
        2 => driver([]),
        3 => usual.process_stride(32),
        4 => usual.call("nvmlDeviceGetUUID", Order::Delay(1)),
        _ => usual,
    }
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
#[ignore = "long_polling_with_faults_leaks_nothing runs it in a process of its own"]
fn soak() {
    let n_polls = env::var(POLLS_VARIABLE).map_or(POLLS, |text| text.parse().unwrap());
    let mut noise = Noise(1);
    let fake = FakeNvml::new("soak", &scenario(&mut noise));
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
fn long_polling_with_faults_leaks_nothing() {
    let soak = Command::new(env::current_exe().unwrap())
        .args(["--exact", "nvml::soak::soak", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&soak.stderr);
    assert!(soak.status.success(), "{said}");
    assert!(said.contains("polls: "), "it ran: {said}");
}
