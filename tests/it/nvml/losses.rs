//! Devices that are lost and come back, and drivers that fail.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use stepmem::input::nvml::cycle::GpuPoll;
use stepmem::input::nvml::poller::{FAILURES_MAX, Poller};

use crate::rig::nvml::{FakeNvml, Gpu, Namespace, Order, driver, gpu, instance};
use crate::rig::poll::{sampled, unavailable};

/// Devices of a poll, and what did not answer.
type Polled = (&'static [&'static str], &'static [(Option<&'static str>, &'static str)]);

fn check(poll: &GpuPoll, (expected, gone): Polled, name: &str) {
    assert_eq!((&*sampled(poll), &*unavailable(poll)), (expected, gone), "{name}");
}

#[test]
fn device_that_goes_is_reported_until_it_is_back_and_hides_no_other() {
    let [a, b, c] = ["GPU-a", "GPU-b", "GPU-c"].map(gpu);
    let mig = [instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")];
    let split = [a.clone().mig(mig), b.clone()];
    let lost = |gpu: &Gpu| gpu.clone().code(15);
    let without_b: Polled = (&["GPU-a", "GPU-c"], &[(Some("GPU-b"), "gpu_is_lost")]);
    let without_mig: Polled =
        (&["GPU-b"], &[(Some("MIG-x"), "gpu_is_lost"), (Some("MIG-y"), "gpu_is_lost")]);
    let fewer: Polled = (&["GPU-b"], &[(Some("GPU-a"), "gpu_not_found")]);
    let three = [a.clone(), b.clone(), c.clone()];
    for (name, before, after, expected) in [
        ("lost", driver(three), driver([a.clone(), lost(&b), c]), without_b),
        ("mig-lost", driver(split), driver([lost(&a), b.clone()]), without_mig),
        ("fewer", driver([a.clone(), b.clone()]), driver([b]), fewer),
    ] {
        let fake = FakeNvml::new(name, &before);
        let mut poller = fake.host();
        let whole = poller.poll();
        assert_eq!(whole.samples.len(), expected.0.len() + expected.1.len(), "{name}");
        fake.set(&after);
        for _ in 0..3 {
            check(&poller.poll(), expected, name);
        }
        fake.set(&before);
        let again = poller.poll();
        assert_eq!((sampled(&again), unavailable(&again)), (sampled(&whole), vec![]), "{name}");
    }
}

#[test]
fn first_poll_names_the_device_that_does_not_answer_if_its_name_was_read() {
    let [a, b] = ["GPU-a", "GPU-b"].map(gpu);
    let late = a.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Code(15));
    let other = b.clone().call("nvmlDeviceGetHandleByIndex_v2", Order::Code(4));
    let without_a: Polled = (&["GPU-b"], &[(Some("GPU-a"), "gpu_is_lost")]);
    let table: [(_, _, Polled); 4] = [
        ("lost-late", driver([late, b.clone()]), without_a),
        (
            "nameless",
            driver([a.clone(), b.code(15)]),
            (&["GPU-a"], &[(Some("index-1"), "gpu_is_lost")]),
        ),
        // Others may have GPUs here: only where they have all of them is that a failure.
        ("others", driver([a, other.clone()]), (&["GPU-a"], &[])),
        ("all-others", driver([other]), (&[], &[(Some("index-0"), "no_permission")])),
    ];
    for (name, driver, expected) in table {
        check(&FakeNvml::new(name, &driver).host().poll(), expected, name);
    }
}

#[test]
fn gpu_that_fell_off_the_bus_keeps_its_code_when_it_is_no_longer_counted() {
    let fake = FakeNvml::new("fell", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    poller.poll();
    fake.set(&driver([gpu("GPU-a")]));
    for _ in 0..3 {
        assert_eq!(unavailable(&poller.poll()), [(Some("GPU-b"), "gpu_is_lost")]);
    }
}

#[test]
fn zero_devices_after_some_is_a_failure() {
    let fake = FakeNvml::new("zero", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([]));
    let poll = poller.poll();
    assert_eq!(unavailable(&poll), [(None, "gpu_not_found")]);
    assert_eq!(poll.unavailable[0].message, "nvml counts 0 devices, 1 before");
    fake.set(&driver([gpu("GPU-a")]));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
}

#[test]
fn zero_devices_from_the_start_are_not_a_failure() {
    let fake = FakeNvml::new("empty", &driver([]));
    assert_eq!(fake.host().poll(), GpuPoll::default());
}

#[test]
fn missing_library_is_named() {
    let fake = FakeNvml::new("no-library", &driver([]));
    let mut config = fake.config(Namespace::Host, &[]);
    config.library = Some(fake.missing_library());
    let poll = Poller::new(config).poll();
    assert_eq!(unavailable(&poll), [(None, "library_missing")]);
    assert!(poll.unavailable[0].message.contains("absent.so"));
}

#[test]
fn library_that_is_not_nvml_is_named() {
    let fake = FakeNvml::new("not-nvml", &driver([])).without("nvmlInit_v2");
    assert_eq!(unavailable(&fake.host().poll()), [(None, "symbol_missing")]);
}

#[test]
fn library_without_shutdown_does_not_panic() {
    let fake = FakeNvml::new("no-shutdown", &driver([gpu("GPU-a")])).without("nvmlShutdown");
    let mut poller = fake.host();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    poller.release();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    drop(poller);
}

#[test]
fn driver_that_refuses_to_initialize_is_asked_again_by_every_poll() {
    let fake = FakeNvml::new("init", &driver([]).call("nvmlInit_v2", Order::Code(9)));
    let mut poller = fake.host();
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    fake.set(&driver([gpu("GPU-a")]));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 3);
}

#[test]
fn version_mismatch_reports_that_a_restart_is_needed() {
    let fake = FakeNvml::new("mismatch", &driver([]).call("nvmlInit_v2", Order::Code(18)));
    let poll = fake.host().poll();
    assert_eq!(unavailable(&poll), [(None, "lib_rm_version_mismatch")]);
    assert!(poll.unavailable[0].message.contains("restart the container"));
}

#[test]
fn code_that_the_wrapper_does_not_know_has_its_name() {
    for (code, name) in [
        (25, "argument_version_mismatch"),
        (26, "deprecated"),
        (27, "not_ready"),
        (28, "gpu_not_found"),
        (29, "invalid_state"),
    ] {
        let failing = driver([]).call("nvmlDeviceGetCount_v2", Order::Code(code));
        let fake = FakeNvml::new(&format!("code-{code}"), &failing);
        let poll = fake.host().poll();
        assert_eq!(unavailable(&poll), [(None, name)]);
        let reason = name.replace('_', " ");
        assert_eq!(poll.unavailable[0].message, format!("nvmlDeviceGetCount_v2: {reason}"));
    }
}

#[test]
fn nvml_is_reinitialized_after_the_codes_that_ask_for_it() {
    for (code, n_inits) in
        [(1, 2), (9, 2), (15, 2), (16, 2), (28, 2), (999, 2), (4, 1), (10, 1), (18, 1)]
    {
        let healthy = driver([gpu("GPU-a")]);
        let failing = healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Code(code));
        let fake = FakeNvml::new(&format!("anew-{code}"), &failing);
        let mut poller = fake.host();
        assert_eq!(poller.poll().unavailable.len(), 1, "{code}");
        assert_eq!(fake.n_calls("nvmlShutdown"), n_inits - 1, "{code}");
        fake.set(&healthy);
        assert_eq!(sampled(&poller.poll()), ["GPU-a"], "{code}");
        assert_eq!(fake.n_calls("nvmlInit_v2"), n_inits, "{code}");
    }
}

#[test]
fn nvml_is_initialized_once_for_many_polls() {
    let fake = FakeNvml::new("once", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    for _ in 0..20 {
        assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    }
    assert_eq!(fake.n_calls("nvmlInit_v2"), 1);
    drop(poller);
    assert_eq!(fake.n_calls("nvmlShutdown"), 1);
}

#[test]
fn restarts_for_one_lost_gpu_become_rare_while_others_answer() {
    let lost = gpu("GPU-b").code(15);
    let fake = FakeNvml::new("rare", &driver([gpu("GPU-a"), lost]));
    let mut poller = fake.host();
    for _ in 0..40 {
        assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    }
    // At polls 1, 2, 4, 7, 12, 21 and 38: between two restarts lie 1, 2, 4, 8, 16 polls of waiting.
    assert_eq!(fake.n_calls("nvmlInit_v2"), 7);
}

#[test]
fn released_nvml_is_initialized_by_the_next_poll() {
    let fake = FakeNvml::new("release", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    poller.poll();
    poller.release();
    assert_eq!(fake.n_calls("nvmlShutdown"), 1);
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 2);
}

#[test]
fn hanging_call_holds_the_poll_until_the_driver_answers() {
    let healthy = driver([gpu("GPU-a")]);
    let hanging = healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang);
    let fake = FakeNvml::new("hang", &hanging);
    let mut poller = fake.host();
    let (sender, polls) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(poller.poll()).unwrap());
    let early = polls.recv_timeout(Duration::from_millis(200));
    assert_eq!(early, Err(RecvTimeoutError::Timeout));
    fake.set(&healthy);
    assert_eq!(sampled(&polls.recv().unwrap()), ["GPU-a"]);
    thread.join().unwrap();
}

#[test]
fn device_that_keeps_failing_is_closed_and_backed_off_but_still_reported() {
    for (code, label) in [(15, "gpu_is_lost"), (10, "timeout")] {
        let lost = gpu("GPU-b").code(code);
        let fake =
            FakeNvml::new(&format!("rest-{code}"), &driver([gpu("GPU-a"), gpu("GPU-b")]));
        let mut poller = fake.host();
        poller.poll();
        fake.set(&driver([gpu("GPU-a"), lost]));
        for _ in 0..FAILURES_MAX {
            poller.poll();
        }
        let asked = || fake.n_calls("nvmlDeviceGetHandleByIndex_v2");
        let mut n_left_alone = 0;
        for _ in 0..100 {
            let (before, n_inits) = (asked(), fake.n_calls("nvmlInit_v2"));
            let poll = poller.poll();
            assert_eq!(sampled(&poll), ["GPU-a"]);
            assert_eq!(unavailable(&poll), [(Some("GPU-b"), label)]);
            n_left_alone += usize::from(asked() == before + 1);
            // A poll that touches the lost device closes it again: the next one reinitializes NVML.
            let has_closed =
                fake.n_calls("nvmlShutdown") == n_inits.max(fake.n_calls("nvmlInit_v2"));
            assert_eq!(has_closed, asked() == before + 2, "{code}");
        }
        assert!(n_left_alone > 90, "left alone in {n_left_alone} of 100 polls");
        fake.set(&driver([gpu("GPU-a"), gpu("GPU-b")]));
        let is_back = (0..=64).any(|_| sampled(&poller.poll()) == ["GPU-a", "GPU-b"]);
        assert!(is_back);
        assert_eq!(poller.poll().unavailable, []);
    }
}
