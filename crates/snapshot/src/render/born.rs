//! The verdict of the births between states, in words.

use crate::analyze::births::{Births, BornSite, Doubt};
use crate::analyze::leak::LeakVerdict;
use crate::analyze::leak_limits::STATES_MIN;
use crate::integer::{count, real};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, grouped, many};

/// Lines that a sentence names.
const NAMED_MAX: usize = 3;
/// The meaning of a block's birth between two states.
const BIRTHS: &str = "A block was born between two states if the earlier one has none of its address, size and \
                      line: what was freed and allocated again as it was counts as old, and what came and \
                      went between two states is not seen.";

/// States the leak and the line that makes most of it, if births between states show one.
pub(super) fn leak(births: &Births) -> Option<Statement> {
    let (rate, first) = births.bytes_per_state.zip(births.sites.first())?;
    let (rate_words, name) = (bytes(rate), first.site.name());
    let words =
        format!("LEAK  {rate_words} from state to state, at {name}{}", and_others(births));
    Some(Statement::new(Claim::BornLeak, words).of(rate))
}

/// Names the lines that leak next to the first, if there are any.
pub(super) fn and_others(births: &Births) -> String {
    match births.sites.len().saturating_sub(1) {
        0 => String::new(),
        n_others => format!(" and {}", many(count(n_others), "more line")),
    }
}

/// States what the births between states tell of a leak; its lines apart.
pub(super) fn texts(births: &Births) -> Vec<Sentence> {
    let states = many(u64::from(births.states), "state");
    let mut texts = match births.doubt {
        Some(doubt) => {
            let different = many(u64::from(births.different_states), "different state");
            let words = format!("Cannot be told: {}", doubted(doubt, &different));
            vec![Statement::new(Claim::BornUnknown, words).into()]
        }
        None if births.verdict == LeakVerdict::Leak => {
            let n_most = births.sites.iter().map(|site| site.held_blocks).max().unwrap_or(0);
            let stays = format!(
                "Of what these lines made between {states}, some of each time is still there."
            );
            let may_fill = format!(
                "A queue or cache of more than {} that is not full yet would look the same, and so would cycles that were not collected yet. To tell, take the states further apart, each after `gc.collect()`.",
                many(n_most, "block")
            );
            vec![
                Statement::new(Claim::BornStays, stays).into(),
                Statement::new(Claim::BornMayFill, may_fill).of(real(n_most)).into(),
                Sentence::default().end(BIRTHS),
            ]
        }
        None => {
            let claim =
                if births.possible.is_empty() { Claim::BornNone } else { Claim::BornMay };
            let words = format!("{}, as far as {states} show it.", no_birth(&births.possible));
            vec![Statement::new(claim, words).into(), Sentence::default().end(BIRTHS)]
        }
    };
    if births.different_states < births.states {
        let n_files = u64::from(births.states - births.different_states);
        let words =
            format!("{} of the files show the very state of another.", grouped(n_files));
        texts.push(Statement::new(Claim::SameStates, words).of(real(n_files)).into());
    }
    texts
}

fn no_birth(possible: &[BornSite]) -> String {
    let names: Vec<String> =
        possible.iter().take(NAMED_MAX).map(|found| found.site.name()).collect();
    if names.is_empty() {
        return "No line goes on growing".to_owned();
    }
    format!(
        "It is not known yet whether {} will go on growing; no other line does",
        names.join(", ")
    )
}

fn doubted(doubt: Doubt, different: &str) -> String {
    match doubt {
        Doubt::FewStates => format!(
            "{different}, and a verdict needs {STATES_MIN} of one process, each at the end of a step."
        ),
        Doubt::OtherProcess => {
            "the files are not of one process. They are of different ranks, their \
                                traces differ, or two that follow each other share no block."
                .to_owned()
        }
        Doubt::NotInOrder => {
            "the files are not in the order of their times. Give the oldest first.".to_owned()
        }
        Doubt::NoStacks => {
            "what grows has no stack. Start the recording before it is allocated.".to_owned()
        }
    }
}
