//! What `stepmem snapshot diff` and `stepmem snapshot ranks` state, for each of their forms.

use crate::analyze::diff::{DeviceDiff, Diff};
use crate::analyze::leak::LeakVerdict;
use crate::analyze::ranks::{RANKS_MIN, RankRow, Ranks};
use crate::integer::{real, signed_real};
use crate::render::born;
use crate::render::words::ending_of;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::clean::clean;
use stepmem_types::format::units::{grouped, many, signed_bytes};

/// Characters of a file's name.
const FILE_CHARS: usize = 36;

/// States what a device holds more or less, and how fast, a line each.
pub(super) fn head(device: &DeviceDiff) -> Vec<Statement> {
    let growth = signed_real(device.growth_bytes);
    let words = format!(
        "device {}: {} active, {} reserved",
        device.device,
        signed_bytes(growth),
        signed_bytes(signed_real(device.reserved_growth_bytes))
    );
    let mut head = vec![Statement::new(Claim::DeviceGrowth, words).of(growth)];
    head.extend(blocks(device));
    head.extend(device.steps_between.zip(device.growth_bytes_per_step).map(
        |(n_steps, rate)| {
            let (shown, steps) = (signed_bytes(rate), many(n_steps, "step"));
            let words = format!("{shown} a step, over {steps}");
            Statement::new(Claim::GrowthPerStep, words).of(rate)
        },
    ));
    head
}

/// States which blocks are new, and which gone.
pub(super) fn blocks(device: &DeviceDiff) -> Option<Statement> {
    let (new, gone) = device.new_blocks.zip(device.gone_blocks)?;
    let new_blocks = many(new, "new block");
    let words = format!("{new_blocks}, {} gone", grouped(gone));
    Some(Statement::new(Claim::BlocksChanged, words).of(real(new)))
}

/// States what the notes of a device say.
pub(super) fn notes(device: &DeviceDiff) -> impl Iterator<Item = Statement> {
    device.notes.iter().map(|note| Statement::new(Claim::DiffNoted, &*note.text))
}

/// States that no line of a device differs, if none does.
pub(super) fn no_line(device: &DeviceDiff) -> Option<Statement> {
    let is_same = device.sites.iter().all(|site| site.growth_bytes == 0);
    is_same.then(|| Statement::new(Claim::NoLineChanged, "no line holds more or less"))
}

/// Returns the advice for a reader, if anything differs.
pub(super) fn diff_advice(diff: &Diff) -> Option<Statement> {
    if diff.devices.iter().all(DeviceDiff::is_equal) {
        return None;
    }
    let is_leak = |device: &DeviceDiff| {
        device.births.as_ref().is_some_and(|births| births.verdict == LeakVerdict::Leak)
    };
    let grows = |device: &DeviceDiff| device.sites.iter().any(|site| site.growth_bytes > 0);
    let words = if diff.devices.iter().any(is_leak) {
        "Next: look at the line named under Leak: something keeps what it makes."
    } else if diff.devices.iter().any(grows) {
        "Next: `stepmem snapshot show AFTER` shows whether the line that grew most goes on growing."
    } else {
        "Next: `stepmem snapshot show AFTER` shows who holds the memory that is left."
    };
    Some(Statement::new(Claim::AdviceDiff, words))
}

/// Returns a comparison of files as its JSON has it, with all that the text states.
pub fn diff_for_json(mut diff: Diff) -> Diff {
    for device in &mut diff.devices {
        device.statements = of_device(device);
    }
    diff.statements = diff_advice(&diff).into_iter().collect();
    diff
}

/// Returns all that is stated of a device, in the order of the text.
fn of_device(device: &DeviceDiff) -> Vec<Statement> {
    let mut told = head(device);
    told.extend(notes(device));
    if let Some(births) = &device.births {
        told.extend(born::leak(births));
        told.extend(born::texts(births).into_iter().flat_map(Sentence::into_statements));
    }
    if !device.is_equal() {
        told.extend(no_line(device));
    }
    told
}

/// Returns the name of the file of a rank, as it is shown.
pub(super) fn file_of(row: &RankRow) -> String {
    ending_of(&clean(&row.file), FILE_CHARS)
}

/// States why the file of a rank has no figures, if it has none.
pub(super) fn unread(row: &RankRow) -> Option<Statement> {
    let words = format!("{}: {}", file_of(row), clean(row.error.as_deref()?));
    Some(Statement::new(Claim::RankUnread, words))
}

/// States which rank stands out, or why none does.
pub(super) fn ranks_verdict(ranks: &Ranks) -> Statement {
    let n_read = n_read(ranks);
    if let Some(worst) = ranks.worst_rank {
        return Statement::new(Claim::RankStandsOut, format!("rank {worst} stands out"));
    }
    if n_read >= RANKS_MIN {
        return Statement::new(Claim::NoOddRank, "No rank stands out in any line.");
    }
    if n_read < 2 {
        let words = "Cannot be told: three readable ranks are needed to say which is odd, two to say what differs.";
        return Statement::new(Claim::OddRankUnknown, words);
    }
    if ranks.differences.is_empty() && ranks.category_differences.is_empty() {
        let words = "The two ranks hold the same: no line and no category differs, at the end or at most.";
        return Statement::new(Claim::RanksHoldTheSame, words);
    }
    let words = "Two ranks show what differs, not which of them is odd: with a third file the odd one is named. \
                 Next: `stepmem snapshot show` of the one that holds more.";
    Statement::new(Claim::TwoRanksDiffer, words)
}

/// States that two ranks that differ do so in no category, if it is so.
pub(super) fn no_category(ranks: &Ranks) -> Option<Statement> {
    let words = "no category holds more or less";
    let is_same = ranks.category_differences.is_empty() && !ranks.differences.is_empty();
    is_same.then(|| Statement::new(Claim::NoCategoryChanged, words))
}

/// Returns the advice for a reader, if a rank stands out.
pub(super) fn ranks_advice(ranks: &Ranks) -> Option<Statement> {
    let words = "Next: `stepmem snapshot show` of that rank's file; `diff` of it against another's compares all lines.";
    ranks.worst_rank.map(|_| Statement::new(Claim::AdviceRanks, words))
}

/// Returns the ranks of a job as their JSON has them, with all that the text states.
pub fn ranks_for_json(mut ranks: Ranks) -> Ranks {
    let unread = ranks.ranks.iter().filter_map(unread);
    let no_category = no_category(&ranks).filter(|_| n_read(&ranks) == 2);
    let verdict = std::iter::once(ranks_verdict(&ranks));
    let statements = unread.chain(no_category).chain(verdict).chain(ranks_advice(&ranks));
    ranks.statements = statements.collect();
    ranks
}

/// Returns the number of files that could be read.
pub(super) fn n_read(ranks: &Ranks) -> usize {
    ranks.ranks.iter().filter(|row| row.error.is_none()).count()
}
