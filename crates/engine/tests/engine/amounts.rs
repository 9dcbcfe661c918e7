//! The amounts of memory that decide, each from both sides.

use serde_json::{Value, json};

use stepmem_engine::{DiagnosisKind, Event, Severity};
use stepmem_types::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::Bytes;

use crate::rig::{GIB, Given, MIB, float, record};

const INFO: Option<Severity> = Some(Severity::Info);
const WARNING: Option<Severity> = Some(Severity::Warning);
const CRITICAL: Option<Severity> = Some(Severity::Critical);

/// The severity of a diagnosis after each of some records, by what they differ in.
fn severities(kind: DiagnosisKind, records: &[Value]) -> Vec<Option<Severity>> {
    let mut given = Given::new();
    let severity = |(step, fields): (u32, &Value)| {
        given.push(step.into(), &[record(step.into(), fields)]);
        given.severity(kind)
    };
    (1..).zip(records).map(severity).collect()
}

/// The memory that an allocator held, and the most that was live of it, in MiB.
fn held(reserved: u64, live: u64) -> Value {
    json!({"reserved_bytes": reserved * MIB, "allocated_bytes": live * MIB,
        "peak_allocated_bytes": live * MIB})
}

#[test]
fn fragmentation_is_half_of_what_is_reserved_on_a_device_that_is_not_nearly_empty() {
    let after = |records: &[Value]| severities(DiagnosisKind::Fragmentation, records);
    // 40 GiB of 80 are reserved.
    assert_eq!(after(&[held(40_960, 20_480)]), [INFO]);
    assert_eq!(after(&[held(40_960, 20_481)]), [None]);
    // Half is unused of 30 % of the device, or less.
    assert_eq!(after(&[held(24_576, 12_288)]), [INFO]);
    assert_eq!(after(&[held(24_575, 12_287)]), [None]);
    // A finding that holds is released 2 points below.
    let released = [held(40_960, 20_480), held(40_960, 21_299), held(40_960, 21_300)];
    assert_eq!(after(&released), [INFO, INFO, None]);
}

#[test]
fn memory_outside_the_allocator_is_told_from_15_percent_of_the_device_on() {
    let outside =
        |mib: u64| json!({"reserved_bytes": GIB, "process_used_bytes": GIB + mib * MIB});
    let after = |mib| severities(DiagnosisKind::OutsideAllocator, &vec![outside(mib); 8])[7];
    assert_eq!((after(12_288), after(12_287)), (INFO, None));
    let mut falls = vec![outside(12_288); 8];
    falls.extend(vec![outside(10_650); 24]);
    assert_eq!(severities(DiagnosisKind::OutsideAllocator, &falls)[31], INFO);
    falls.extend(vec![outside(10_640); 24]);
    assert_eq!(severities(DiagnosisKind::OutsideAllocator, &falls)[55], None);
}

/// The severity of the imbalance of rank 3, whose peak is `own` MiB next to three of `others`.
fn imbalance(others: u64, own: u64, n_steps: u32) -> Option<Severity> {
    let mut given = Given::new();
    for step in 1..=n_steps {
        let of = |rank: u64| {
            let peak = MIB * if rank == 3 { own } else { others };
            record(
                step.into(),
                &json!({"rank": rank, "device": format!("GPU-{rank}"),
                "peak_allocated_bytes": peak}),
            )
        };
        given.push(step.into(), &[of(0), of(1), of(2), of(3)]);
    }
    given.severity(DiagnosisKind::Imbalance)
}

#[test]
fn imbalance_is_by_skew_by_pressure_and_from_the_16th_step_on() {
    // 20 % and 30 % above the others, of which each has half of the device.
    assert_eq!(imbalance(40_000, 48_000, 16), WARNING);
    assert_eq!(imbalance(40_000, 47_999, 16), None);
    assert_eq!(imbalance(40_000, 52_000, 16), CRITICAL);
    assert_eq!(imbalance(40_000, 51_999, 16), WARNING);
    assert_eq!(imbalance(40_000, 52_000, 15), None);
    // 30 % and 50 % of the device.
    assert_eq!(imbalance(16_000, 24_576, 16), WARNING);
    assert_eq!(imbalance(16_000, 24_575, 16), None);
    assert_eq!(imbalance(16_000, 40_960, 16), CRITICAL);
    assert_eq!(imbalance(16_000, 40_959, 16), WARNING);
}

/// Live memory that has risen to `mib` MiB at its peak, so that it was not taken at the start.
fn risen(mib: u64) -> [Value; 2] {
    let of = |mib| json!({"allocated_bytes": mib * MIB / 2, "peak_allocated_bytes": mib * MIB});
    [of(1024), of(mib)]
}

#[test]
fn pressure_is_a_warning_from_92_percent_on_and_critical_from_97() {
    let after = |mib| severities(DiagnosisKind::HighPressure, &risen(mib))[1];
    assert_eq!((after(75_367), after(75_366)), (WARNING, None));
    assert_eq!((after(79_463), after(79_462)), (CRITICAL, WARNING));
}

#[test]
fn memory_that_rose_by_a_twentieth_of_what_is_left_was_not_taken_at_the_start() {
    let after = |rise: u64| {
        let of = |mib: u64| {
            json!({"allocated_bytes": mib * MIB,
            "peak_allocated_bytes": 76_920 * MIB})
        };
        // 5,000 MiB are left.
        severities(DiagnosisKind::HighPressure, &[of(75_000), of(75_000 + rise)])[1]
    };
    assert_eq!((after(249), after(251)), (INFO, WARNING));
}

#[test]
fn memory_that_an_allocator_holds_is_named_from_a_fifth_of_the_device_on() {
    let evidence = |fields: Value| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({"peak_allocated_bytes": GIB}))]);
        given.push(2.0, &[record(2, &fields)]);
        let finding = given.finding(DiagnosisKind::HighPressure).unwrap();
        serde_json::to_value(finding.evidence).unwrap()
    };
    let of = |live: u64, pools: u64| {
        evidence(json!({"reserved_bytes": 77_824 * MIB, "allocated_bytes": live * MIB,
            "peak_allocated_bytes": live * MIB, "private_pools_bytes": pools * MIB}))
    };
    let never_live = |live| of(live, 0)["never_live_ratio"].is_number();
    assert_eq!((never_live(61_440), never_live(61_441)), (true, false));
    let in_pools = |pools| of(70_000, pools)["private_pools_bytes"].is_number();
    assert_eq!((in_pools(16_384), in_pools(16_383)), (true, false));
}

#[test]
fn rank_that_vanishes_where_its_container_was_full_was_likely_killed() {
    let killed = |used: u64| {
        let mut given = Given::new();
        let container = json!({"container": "pod/a", "container_limit_bytes": 100 * MIB,
            "container_used_bytes": used * MIB});
        given.train(1..10, |step| record(step, &container));
        given.tick(60.0);
        given.severity(DiagnosisKind::OutOfMemory)
    };
    assert_eq!((killed(95), killed(94)), (WARNING, None));
}

#[test]
fn kill_in_a_container_is_of_the_rank_that_fell_silent_within_15_seconds_before() {
    let seen = |read_at: f64| {
        let mut given = Given::new();
        let of = |rank: u64, step: u32, kills: u64| {
            record(
                step.into(),
                &json!({"rank": rank, "device": format!("GPU-{rank}"),
                "container": "pod/a", "container_limit_bytes": 100 * MIB,
                "container_used_bytes": 50 * MIB, "container_oom_kills": kills}),
            )
        };
        for step in 1..=10_u32 {
            given.push(step.into(), &[of(0, step, 0), of(1, step, 0)]);
        }
        for step in 11..=30_u32 {
            given.push(step.into(), &[of(0, step, 0)]);
        }
        given.push(read_at, &[of(0, 31, 1)]);
        given.severity(DiagnosisKind::OutOfMemory)
    };
    // Rank 1 pushed at 10 s, and counts as live until 20 s.
    assert_eq!((seen(35.0), seen(35.1)), (CRITICAL, None));
}

/// The severity of a phase that ends with these MiB, one end a minute, in an idle device.
fn phase(ends: &[u64]) -> Option<Severity> {
    let mut given = Given::new();
    for (step, end) in (1_u32..).zip(ends) {
        let fields = json!({"phase": "sleep", "process_used_bytes": end * MIB});
        given.push(60.0 * f64::from(step), &[record(step.into(), &fields)]);
    }
    given.severity(DiagnosisKind::PhaseRising)
}

/// Ends that rise by these MiB, from 4 GiB on.
fn rises(of: &[u64]) -> Option<Severity> {
    let ends = of.iter().scan(4096, |end, rise| {
        *end += rise;
        Some(*end)
    });
    phase(&std::iter::once(4096).chain(ends).collect::<Vec<_>>())
}

#[test]
fn phase_rises_after_three_ends_that_chance_does_not_make() {
    assert_eq!((rises(&[40; 3]), rises(&[40; 2])), (INFO, None));
    // 32 MiB in all.
    assert_eq!((rises(&[11, 11, 10]), rises(&[10, 11, 10])), (INFO, None));
    // The largest rise is half as large again as the least, or more.
    assert_eq!((rises(&[60, 40, 60]), rises(&[61, 40, 60])), (INFO, None));
    // The newest is half of their mean: a cache fills with less.
    assert_eq!((rises(&[40, 40, 27]), rises(&[40, 40, 16])), (INFO, None));
    // Rises that are uneven, but each larger than all swings before them.
    assert_eq!(phase(&[4096, 4126, 4100, 4131, 4220, 4260]), INFO);
    assert_eq!(phase(&[4096, 4136, 4100, 4131, 4220, 4260]), None);
}

#[test]
fn phase_that_rises_is_a_warning_from_five_rises_and_256_mib_on() {
    assert_eq!((rises(&[100; 5]), rises(&[100; 4])), (WARNING, INFO));
    assert_eq!((rises(&[52, 51, 51, 51, 51]), rises(&[51; 5])), (WARNING, INFO));
}

#[test]
fn phase_that_rises_is_critical_once_a_quarter_of_what_is_left_was_taken() {
    let after = |rise: u64| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({"peak_allocated_bytes": 76 * GIB}))]);
        for end in 0..6_u32 {
            let bytes = (4096 + u64::from(end) * rise) * MIB;
            let fields = json!({"phase": "sleep", "process_used_bytes": bytes});
            given.push(60.0 * f64::from(end + 1), &[record(1, &fields)]);
        }
        given.severity(DiagnosisKind::PhaseRising)
    };
    // 4 GiB are left.
    assert_eq!((after(205), after(204)), (CRITICAL, WARNING));
}

#[test]
fn phase_is_over_when_half_of_its_growth_is_given_back_or_five_ends_bring_no_high() {
    let after = |ends: &[u64]| phase(&[&[4096, 4196, 4296, 4396], ends].concat());
    assert_eq!((after(&[4246]), after(&[4245])), (INFO, None));
    assert_eq!((after(&[4396; 4]), after(&[4396; 5])), (INFO, None));
}

/// A reading of the device, of which so many MiB are used.
fn read(used: u64, processes: Vec<ProcessMemory>) -> Event {
    let bytes = |mib: u64| Bytes::new(mib * MIB).unwrap();
    let memory = DeviceMemory {
        total: bytes(81_920),
        used: bytes(used),
        free: Some(bytes(81_920 - used)),
        reserved: None,
    };
    Event::Reading(Box::new(GpuSample {
        device: GpuUuid::new("GPU-0").unwrap(),
        info: DeviceInfo::default(),
        memory: Some(memory),
        processes,
        attribution: Attribution::Host,
        machine_total: None,
    }))
}

#[test]
fn unmanaged_process_that_falls_below_a_quarter_begins_again() {
    let is_known = |mib: u64| {
        let mut given = Given::new();
        let mut holds = |reading: u32, mib: u64| {
            let process = ProcessMemory {
                pid: 7,
                used: Bytes::new(mib * MIB).ok(),
                own_pid: None,
                name: None,
                container: None,
                is_gone: false,
            };
            given.at(10.0 * f64::from(reading), &read(mib, vec![process])).unwrap();
        };
        // It is level for a minute, and then for a window of 12.
        (1..=30).for_each(|reading| holds(reading, 40_000));
        holds(31, mib);
        given.status().processes[0].creep.is_some()
    };
    assert_eq!((is_known(10_000), is_known(9_999)), (true, false));
}

#[test]
fn device_in_use_is_under_pressure_by_its_own_reading() {
    let device = |used: u64| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({"peak_allocated_bytes": GIB}))]);
        given.at(2.0, &read(used, Vec::new())).unwrap();
        given.tick(2.0);
        given.severity(DiagnosisKind::HighPressure)
    };
    assert_eq!((device(75_367), device(75_366)), (WARNING, None));
}

/// The severity of growth outside the allocator by 4 MiB a second, which fills the device so many
/// seconds later.
fn outside(seconds_left: u64) -> Option<Severity> {
    const READINGS: u64 = 100;
    let mut given = Given::new();
    for step in 1..=READINGS {
        let used = 31 * GIB + step * 40 * MIB;
        let total = 31 * GIB + (READINGS * 40 + seconds_left * 4) * MIB;
        let fields = json!({"reserved_bytes": 30 * GIB, "process_used_bytes": used,
            "free_bytes": total - used, "total_bytes": total});
        given.push(10.0 * float(step), &[record(step, &fields)]);
    }
    given.severity(DiagnosisKind::OutsideAllocator)
}

#[test]
fn growth_outside_the_allocator_is_told_where_it_fills_the_device_within_an_hour() {
    assert_eq!((outside(3_590), outside(3_610)), (INFO, None));
}
