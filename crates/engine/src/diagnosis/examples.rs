//! Parts of evidence for tests. Every field has a value.

use crate::diagnosis::shared::filling::{Filling, FillingDoubt};
use crate::diagnosis::shared::malloc_figures::MallocFigures;
use crate::diagnosis::shared::run_end::{EndsFirst, RunEndFigures};
use stepmem_types::site::{
    CodeKind, CodeLine, EmptySearch, Fill, LineOutcome, LineSearch, Removal, RemovalOutcome,
    SiteText, TensorHolder,
};
use stepmem_types::units::{Bytes, Count};

pub(super) fn bytes(n: u64) -> Bytes {
    Bytes::new(n).unwrap()
}

pub(super) fn count(n: u64) -> Count {
    Count::new(n).unwrap()
}

pub(super) fn text(text: &str) -> SiteText {
    SiteText::new(text).unwrap()
}

pub(super) fn line() -> CodeLine {
    let (file, function) = (Some(text("/app/train.py")), Some(text("step")));
    CodeLine { kind: CodeKind::Python, file, line: Some(42), function }
}

/// A search for holders that named none.
pub(super) fn empty_search() -> EmptySearch {
    EmptySearch {
        step: Some(count(700)),
        is_complete: true,
        saw_growth: Some(true),
        objects_read: Some(count(4_810)),
        objects_met: Some(count(5_363)),
        lines: Some(search()),
    }
}

pub(super) fn search() -> LineSearch {
    LineSearch {
        outcome: LineOutcome::Spread,
        steps: Some(count(8)),
        pause_seconds: Some(0.5),
        slowdown_ratio: Some(1.25),
        malloc_used_bytes_per_step: Some(1024.5),
        malloc_free_bytes_per_step: Some(-0.5),
    }
}

pub(super) fn holder() -> TensorHolder {
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
        keeps_more: Some(true),
        added_per_step: Some(0.5),
        removal: Some(Removal { outcome: RemovalOutcome::Emptied, at: line() }),
    }
}

pub(super) fn malloc() -> MallocFigures {
    MallocFigures {
        step: count(880),
        used_bytes: bytes(2 << 30),
        free_bytes: bytes(1 << 30),
        threads_bytes: Some(bytes(1 << 20)),
        grown_bytes: Some(1e9),
        between_bytes: Some(1e8),
        used_growth_bytes: Some(-5e6),
        free_growth_bytes: Some(9e7),
    }
}

pub(super) fn filling() -> Filling {
    Filling {
        full_in_steps: 100.0,
        full_bytes: 2e9,
        remaining_bytes: 1e8,
        left_bytes: Some(-5e6),
        doubt: Some(FillingDoubt::DoesNotFit),
    }
}

pub(super) fn run_end() -> RunEndFigures {
    RunEndFigures {
        first: EndsFirst::Open,
        step: Some(count(10_000)),
        in_steps: Some(4500.0),
        in_seconds: Some(2250.0),
        spare_steps: Some(-12.5),
        spare_seconds: Some(-6.25),
        restarts: Some(1.0),
    }
}
