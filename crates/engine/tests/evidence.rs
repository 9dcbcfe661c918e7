//! The evidence of every diagnosis, with a value in every field, from the status to JSON and back.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use stepmem_detect::signal::Signal;
use stepmem_engine::diagnosis::Evidence;
use stepmem_engine::diagnosis::filling::{Filling, FillingDoubt};
use stepmem_engine::diagnosis::fragmentation::UnusedEvidence;
use stepmem_engine::diagnosis::gpu_lost::GpuLostEvidence;
use stepmem_engine::diagnosis::growth_or::GrowthOr;
use stepmem_engine::diagnosis::high_pressure::{PressureEvidence, TooLarge};
use stepmem_engine::diagnosis::imbalance::ImbalanceEvidence;
use stepmem_engine::diagnosis::kept_blocks::{KeptBlocks, KeptState};
use stepmem_engine::diagnosis::out_of_memory::{LikelyKill, OutOfMemoryEvidence, OwnLimit};
use stepmem_engine::diagnosis::outside_allocator::LargeEvidence;
use stepmem_engine::diagnosis::trend_figures::{ContainerFigures, TrendFigures};
use stepmem_engine::kind::{DiagnosisKind, Severity};
use stepmem_engine::output::status::FindingStatus;
use stepmem_engine::ranks::basis::Basis;
use stepmem_engine::ranks::limits::LimitOrigin;
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{Rank, RankId, Run, SubjectId};
use stepmem_types::site::{
    CodeFrame, CodeKind, CodeLine, EmptySearch, Fill, LeakSite, LineBytes, LineOutcome,
    LineSearch, OomSite, SiteText, SiteVerdict, TensorHolder,
};
use stepmem_types::units::{Bytes, Count, UnixTime};

fn bytes(n: u64) -> Bytes {
    Bytes::new(n).unwrap()
}

fn count(n: u64) -> Count {
    Count::new(n).unwrap()
}

fn text(text: &str) -> SiteText {
    SiteText::new(text).unwrap()
}

fn line() -> CodeLine {
    let (file, function) = (Some(text("/app/train.py")), Some(text("step")));
    CodeLine { kind: CodeKind::Python, file, line: Some(42), function }
}

fn search() -> LineSearch {
    LineSearch {
        outcome: LineOutcome::Spread,
        steps: Some(count(8)),
        pause_seconds: Some(0.5),
        slowdown_ratio: Some(1.25),
        malloc_used_bytes_per_step: Some(1024.5),
        malloc_free_bytes_per_step: Some(-0.5),
    }
}

fn holder() -> TensorHolder {
    TensorHolder {
        name: text("`losses` in `train.py`"),
        kind: text("list"),
        at: Some(line()),
        tensors: count(12),
        bytes: bytes(1 << 30),
        tensors_per_step: 1.0,
        bytes_per_step: 1_048_576.5,
        step: Some(count(900)),
        since_step: Some(count(800)),
        fill: Some(Fill {
            items: count(900),
            items_max: count(1000),
            items_per_step: 1.0,
            is_own: true,
        }),
        lines: Some(search()),
    }
}

fn filling() -> Filling {
    Filling {
        full_in_steps: 100.0,
        full_bytes: 2e9,
        remaining_bytes: 1e8,
        left_bytes: Some(-5e6),
        doubt: Some(FillingDoubt::DoesNotFit),
    }
}

fn growth(signal: Signal) -> Box<TrendFigures> {
    let frame = CodeFrame { file: text("train.py"), line: 42, function: text("step") };
    Box::new(TrendFigures {
        signal,
        is_on_host: true,
        is_over: true,
        is_accelerating: true,
        stalled_seconds: Some(35.5),
        slope_bytes_per_step: Some(0.1),
        slope_lower_bytes_per_step: Some(0.05),
        slope_upper_bytes_per_step: Some(0.15),
        slope_bytes_per_second: Some(1.1),
        slope_lower_bytes_per_second: Some(1.05),
        slope_upper_bytes_per_second: Some(1.15),
        growth_bytes: 123_456_789.5,
        onset_step: Some(count(17)),
        onset_time: UnixTime::new(1_764_897_183.25).unwrap(),
        level_since_step: Some(count(99)),
        level_since_time: Some(UnixTime::new(1_764_897_283.5).unwrap()),
        is_full: true,
        headroom_bytes: Some(3e9),
        oom_eta_steps: Some(1000.0),
        oom_eta_lower_steps: Some(900.0),
        oom_eta_upper_steps: Some(1100.0),
        oom_eta_seconds: Some(2000.0),
        oom_eta_lower_seconds: Some(1900.0),
        oom_eta_upper_seconds: Some(2100.0),
        container: Some(Box::new(ContainerFigures {
            limit_bytes: bytes(64 << 30),
            used_bytes: Some(bytes(44 << 30)),
            ranks: 2,
            is_whole: true,
        })),
        confidence_ratio: 0.999,
        site: Some(Box::new(LeakSite {
            verdict: SiteVerdict::Leak,
            at: Some(line()),
            share_ratio: Some(0.9),
            bytes_per_step: Some(7.5),
            steps: 20,
            stack: vec![frame],
        })),
        holder: Some(Box::new(holder())),
        slope_while_held_bytes_per_step: Some(0.2),
        filling: Some(filling()),
        kept_blocks: Some(KeptBlocks {
            state: KeptState::Fades,
            blocks_per_step: Some(62.5),
            blocks_per_second: Some(31.25),
            bytes_per_block: Some(4096.0),
            since_step: Some(count(23)),
            since_time: Some(UnixTime::new(1_764_897_183.25).unwrap()),
            certain_step: Some(count(47)),
        }),
        searched: Some(EmptySearch {
            step: Some(count(700)),
            is_complete: true,
            lines: Some(search()),
        }),
    })
}

fn pressure() -> PressureEvidence {
    PressureEvidence {
        pressure_ratio: 0.95,
        is_on_host: true,
        is_unified: true,
        is_of_container: true,
        basis: Basis::Host,
        capacity_bytes: 80 << 30,
        capacity_set_by: Some(LimitOrigin::Program),
        never_live_ratio: Some(0.25),
        too_large: Some(Box::new(TooLarge { holder: holder(), filling: filling() })),
    }
}

fn out_of_memory() -> OutOfMemoryEvidence {
    OutOfMemoryEvidence {
        ooms: 2,
        is_fatal: true,
        oom_step: Some(400),
        is_kill: true,
        likely_kill: Some(LikelyKill {
            container_used_ratio: Some(0.97),
            container_kills: Some(1),
        }),
        is_last: true,
        ending: Some(EndOutcome::Failed),
        requested_bytes: Some(bytes(1 << 30)),
        limit: Some(OwnLimit { origin: LimitOrigin::Program, bytes: bytes(11 << 30) }),
        headroom_bytes: Some(-5.0),
        growth_bytes: Some(7.5),
        site: Some(Box::new(OomSite {
            at: line(),
            requested_bytes: bytes(1 << 30),
            held: vec![LineBytes { at: line(), bytes: bytes(3 << 30) }],
        })),
    }
}

/// Every form of the evidence of a diagnosis. A new diagnosis needs an arm.
fn evidence(kind: DiagnosisKind) -> Vec<Evidence> {
    let capacity_bytes = 80 << 30;
    match kind {
        DiagnosisKind::GpuLost => {
            vec![Evidence::GpuLost(GpuLostEvidence { code: "gpu_is_lost".into() })]
        }
        DiagnosisKind::OutOfMemory => vec![Evidence::OutOfMemory(out_of_memory())],
        DiagnosisKind::CreepConfirmed => {
            vec![Evidence::CreepConfirmed(growth(Signal::Allocated))]
        }
        DiagnosisKind::HostCreep => vec![Evidence::HostCreep(growth(Signal::Host))],
        DiagnosisKind::HighPressure => vec![Evidence::HighPressure(pressure())],
        DiagnosisKind::HostPressure => vec![Evidence::HostPressure(pressure())],
        DiagnosisKind::Imbalance => vec![Evidence::Imbalance(ImbalanceEvidence {
            imbalance_ratio: 0.5,
            median_bytes: 1e9,
            pressure_ratio: 0.7,
            peak_basis: Basis::HighWater,
        })],
        DiagnosisKind::Fragmentation => vec![
            Evidence::Fragmentation(GrowthOr::Growth(growth(Signal::Reserved))),
            Evidence::Fragmentation(GrowthOr::Amount(UnusedEvidence {
                peak_fragmentation_ratio: 0.6,
                peak_reserved_bytes: 40 << 30,
                capacity_bytes,
            })),
        ],
        DiagnosisKind::OutsideAllocator => vec![
            Evidence::OutsideAllocator(GrowthOr::Growth(growth(Signal::OutsideAllocator))),
            Evidence::OutsideAllocator(GrowthOr::Amount(LargeEvidence {
                outside_bytes: 2e10,
                outside_ratio: 0.25,
                capacity_bytes,
                is_estimated: true,
            })),
        ],
        DiagnosisKind::CreepEarly => vec![Evidence::CreepEarly(growth(Signal::Process))],
        DiagnosisKind::HostRising => vec![Evidence::HostRising(growth(Signal::Host))],
    }
}

#[test]
fn finding_of_every_diagnosis_reads_back_as_it_was() {
    let subject =
        SubjectId::Rank(RankId { run: Run::new("job").unwrap(), rank: Rank::new(3).unwrap() });
    for kind in DiagnosisKind::ALL {
        for evidence in evidence(*kind) {
            let finding = FindingStatus {
                kind: *kind,
                title: kind.about().title.into(),
                subject: subject.clone(),
                severity: Severity::Warning,
                since: 1_764_897_183.25,
                sentence: evidence.sentence(),
                advice: kind.about().advice.into(),
                evidence,
            };
            let json = serde_json::to_string(&finding).unwrap();
            assert_eq!(
                serde_json::from_str::<FindingStatus>(&json).unwrap(),
                finding,
                "{json}"
            );
        }
    }
}

#[test]
fn evidence_of_another_diagnosis_is_refused() {
    for kind in DiagnosisKind::ALL {
        for evidence in evidence(*kind) {
            let json = serde_json::to_value(&evidence).unwrap();
            for other in DiagnosisKind::ALL {
                let read = Evidence::decode(*other, &json);
                let same = read.as_ref().is_ok_and(|read| *read == evidence);
                assert_eq!(same, other == kind, "{kind} as {other}: {read:?}");
            }
        }
    }
}
