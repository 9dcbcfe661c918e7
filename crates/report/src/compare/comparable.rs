//! The check that two runs can be compared at all: the same number of ranks, the same kind of
//! device and capacity, the same workload. An unknown counts as the same.

use std::collections::BTreeSet;

use crate::compare::changes::Runs;
use crate::compare::comparison::OldNew;
use crate::compare::figures::RunSetup;
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{bytes, many};

/// Capacities that differ by at most this share are the same. Drivers reserve a little more or
/// less of one kind of device, kernels of one kind of machine.
const CAPACITY_RATIO_MAX: f64 = 0.05;

/// Returns the reasons that the runs cannot be compared, a sentence each; none where they can.
pub(crate) fn differences(runs: Runs<'_>) -> Vec<Statement> {
    let setups = runs.map(|run| &run.setup);
    let all =
        [world_size(setups), devices(setups).or_else(|| capacity(setups)), workload(setups)];
    all.into_iter().flatten().map(|of| Statement::new(Claim::NotComparable, of)).collect()
}

fn world_size(setups: OldNew<&RunSetup>) -> Option<String> {
    let OldNew { old, new } = setups.map(|setup| setup.world_size).known()?;
    let (has, had) = (many(new, "rank"), many(old, "rank"));
    (old != new).then(|| format!("the old run has {had}, the new one {has}"))
}

/// Compares what the ranks run on: models where both runs know them, else whether it is a GPU
/// or the host.
fn devices(setups: OldNew<&RunSetup>) -> Option<String> {
    let is_known = |of: fn(&RunSetup) -> &BTreeSet<String>| {
        let sets = setups.map(of);
        (!sets.old.is_empty() && !sets.new.is_empty()).then_some(sets)
    };
    let kinds = is_known(|setup| &setup.device_kinds).filter(|sets| sets.old != sets.new);
    let models = || is_known(|setup| &setup.device_models).filter(|sets| sets.old != sets.new);
    let OldNew { old, new } = kinds.or_else(models)?;
    let named = |names: &BTreeSet<String>| {
        names.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
    };
    Some(format!("the old run is on {}, the new one on {}", named(old), named(new)))
}

fn capacity(setups: OldNew<&RunSetup>) -> Option<String> {
    let differs = |of: fn(&RunSetup) -> Option<f64>| {
        let both = setups.map(of).known()?;
        let OldNew { old, new } = both;
        ((new - old).abs() > CAPACITY_RATIO_MAX * old.max(new)).then_some(both)
    };
    let OldNew { old, new } =
        differs(|setup| setup.capacity_max).or_else(|| differs(|setup| setup.capacity_min))?;
    let (old, new) = (bytes(old), bytes(new));
    Some(format!("a rank of the old run has a capacity of {old}, one of the new run {new}"))
}

fn workload(setups: OldNew<&RunSetup>) -> Option<String> {
    let OldNew { old, new } = setups.map(|setup| setup.workload.as_deref()).known()?;
    (old != new).then(|| format!("the old run's workload is {old}, the new one's {new}"))
}
