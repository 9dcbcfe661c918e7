//! Everything that goes wrong with NVML, one after the other, while a scraper asks ten times a second: no scrape waits,
//! none shows a value that the machine does not have, and states and counters say what was.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::rig::device_metrics::{attributed, attribution, errors, used};
use crate::rig::exporter::Exporter;
use crate::rig::nvml::{
    Driver, FakeNvml, Gpu, Order, ProcessRow, driver, gpu, hidden, instance, process,
};
use crate::rig::series::Metrics;
use crate::rig::units::{GIB, gib};
use crate::rig::wait::{await_true, keep_pace};

const SCRAPE_EVERY: Duration = Duration::from_millis(100);
/// Scrapes while the driver hangs, which goes on until the test ends it.
const SCRAPES_OF_HANG: usize = 300;

/// The machine in order: two GPUs, and one in MIG mode with these instances. `compute`: the processes on GPU-a.
fn machine(compute: &[ProcessRow], instances: &[Gpu]) -> Driver {
    let busy = gpu("GPU-a").compute(compute);
    driver([busy, gpu("GPU-b"), gpu("GPU-c").mig(instances.to_vec())])
}

/// Two processes that exist here, by whatever namespace the tests run in.
fn compute() -> [ProcessRow; 2] {
    [process(process::id(), 7 * GIB), process(1, 5 * GIB)]
}

fn healthy() -> Driver {
    machine(&compute(), &[instance("MIG-x", 1, "1g.10gb")])
}

/// Every figure about memory is one that the machine has at some time of this test, in GiB.
fn check_values(metrics: &Metrics) {
    let allowed: [(&str, &[f64]); 6] = [
        ("stepmem_device_memory_total_bytes", &[80.0, 10.0]),
        ("stepmem_device_memory_used_bytes", &[30.0, 4.0]),
        ("stepmem_device_memory_free_bytes", &[49.0, 6.0]),
        ("stepmem_device_memory_unattributed_bytes", &[18.0, 23.0, 3.0]),
        ("stepmem_process_memory_used_bytes", &[7.0, 5.0, 1.0]),
        ("stepmem_process_memory_other_bytes", &[1.0]),
    ];
    for (series, value) in metrics {
        let name = series.split('{').next().unwrap();
        let is_memory = ["stepmem_device_memory_", "stepmem_process_memory_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if is_memory {
            let (_, values) = allowed.iter().find(|(of, _)| *of == name).expect(series);
            assert!(values.contains(&(value / gib(1.0))), "{series} {value}");
        }
        assert!(value.is_finite() && *value < 9e18, "{series} {value}");
    }
}

fn scrape_until(exporter: &Exporter, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        let began = Instant::now();
        check_values(&exporter.scrape());
        keep_pace(began, SCRAPE_EVERY);
    }
}

fn state_is(metrics: &Metrics, state: &str) -> bool {
    attribution(metrics, "GPU-a") == Some(state)
}

/// Memory of the processes of GPU-a in GiB, ascending.
fn processes(metrics: &Metrics) -> Vec<f64> {
    let of_a = "stepmem_process_memory_used_bytes{uuid=\"GPU-a\"";
    let mut used: Vec<f64> = metrics
        .iter()
        .filter(|(series, _)| series.starts_with(of_a))
        .map(|(_, value)| value / gib(1.0))
        .collect();
    used.sort_by(f64::total_cmp);
    used
}

fn is_healthy(metrics: &Metrics) -> bool {
    ["GPU-a", "GPU-b", "MIG-x"].iter().all(|uuid| used(metrics, uuid).is_some())
        && processes(metrics) == [5.0, 7.0]
        && metrics.get("stepmem_nvml_up") == Some(&1.0)
}

fn mend(exporter: &Exporter, fake: &FakeNvml) {
    fake.set(&healthy());
    exporter.await_metrics("health", is_healthy);
}

/// A GPU dies, a call hangs, the driver is updated: brings each about, waits until it shows, and mends it.
fn driver_faults(exporter: &Exporter, fake: &FakeNvml) {
    let mend = || mend(exporter, fake);
    fake.set(&healthy().replace(1, gpu("GPU-b").code(15)));
    exporter.await_metrics("the loss", |metrics| {
        used(metrics, "GPU-b").is_none() && errors(metrics, "gpu_is_lost") >= 2.0
    });
    let metrics = exporter.scrape();
    assert!(
        used(&metrics, "GPU-a").is_some() && used(&metrics, "MIG-x").is_some(),
        "{metrics:#?}"
    );
    assert_eq!(metrics["stepmem_nvml_up"], 1.0);
    mend();

    let timeouts = errors(&exporter.scrape(), "timeout");
    fake.set(&healthy().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang));
    exporter.await_metrics("the hang", |metrics| {
        metrics["stepmem_nvml_up"] == 0.0 && used(metrics, "GPU-a").is_none()
    });
    for _ in 0..SCRAPES_OF_HANG {
        let metrics = exporter.scrape();
        assert!(used(&metrics, "GPU-a").is_none(), "{metrics:#?}");
        assert_eq!(errors(&metrics, "timeout"), timeouts + 1.0, "nothing queues behind it");
        keep_pace(Instant::now(), SCRAPE_EVERY);
    }
    mend();

    fake.set(&healthy().call("nvmlDeviceGetCount_v2", Order::Code(18)));
    exporter.await_metrics("the mismatch", |metrics| {
        errors(metrics, "lib_rm_version_mismatch") >= 1.0 && metrics["stepmem_nvml_up"] == 0.0
    });
    assert!(used(&exporter.scrape(), "GPU-a").is_none());
    await_true("the log line", || exporter.logged("WARN", "restart the container") == 1);
    mend();
}

/// Lists that say little or nonsense, and an instance that comes and goes.
fn list_faults(exporter: &Exporter, fake: &FakeNvml) {
    let mend = || mend(exporter, fake);
    let one = instance("MIG-x", 1, "1g.10gb");
    let unknown = [hidden(process::id()), hidden(1)];
    fake.set(&machine(&unknown, std::slice::from_ref(&one)));
    exporter.await_metrics("hidden memory", |metrics| state_is(metrics, "memory_hidden"));
    let metrics = exporter.scrape();
    assert_eq!(processes(&metrics), [0.0; 0]);
    assert_eq!(attributed(&metrics, "GPU-a"), None);
    mend();

    let unknown = [process(process::id(), 7 * GIB), hidden(1)];
    fake.set(&machine(&unknown, std::slice::from_ref(&one)));
    exporter.await_metrics("2^64-1", |metrics| processes(metrics) == [7.0]);
    assert_eq!(attributed(&exporter.scrape(), "GPU-a"), Some(gib(7.0)));
    mend();

    let repeated = [process(process::id(), 5 * GIB), process(process::id(), 7 * GIB)];
    fake.set(&machine(&repeated, std::slice::from_ref(&one)));
    exporter.await_metrics("the repeated process", |metrics| processes(metrics) == [7.0]);
    mend();

    fake.set(&healthy().process_stride(32));
    exporter.await_metrics("rows of 32 bytes", |metrics| state_is(metrics, "unsupported"));
    let metrics = exporter.scrape();
    assert_eq!(processes(&metrics), [0.0; 0]);
    assert!(used(&metrics, "GPU-a").is_some());
    mend();

    let two = [one, instance("MIG-y", 2, "1g.10gb")];
    fake.set(&machine(&compute(), &two));
    exporter.await_metrics("another instance", |metrics| used(metrics, "MIG-y").is_some());
    assert_eq!(errors(&exporter.scrape(), "not_found"), 0.0);
    fake.set(&healthy());
    exporter.await_metrics("its end", |metrics| {
        used(metrics, "MIG-y").is_none() && errors(metrics, "not_found") == 1.0
    });
    mend();
}

#[test]
fn scrapes_are_answered_and_true_while_everything_fails() {
    let fake = FakeNvml::new("it-storm", &healthy());
    let exporter = fake.serve(&["--nvml.timeout", "500ms"]);
    exporter.await_metrics("health", is_healthy);
    let n_threads = exporter.metric("process_threads");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scraper = scope.spawn(|| scrape_until(&exporter, &is_over));
        driver_faults(&exporter, &fake);
        list_faults(&exporter, &fake);
        is_over.store(true, Ordering::SeqCst);
        scraper.join().unwrap();
    });
    exporter.await_metrics("no thread left", |metrics| {
        metrics.get("process_threads").copied() == n_threads
    });
    // Each fault was logged once: the loss, the hang, the mismatch and the instance that went.
    assert_eq!(exporter.logged("WARN", "NVML: "), 4, "{:#?}", exporter.log());
}
