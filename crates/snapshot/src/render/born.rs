//! The verdict of the births between states, in words.

use crate::analyze::births::{Births, BornSite, Doubt, STATES_MIN};
use crate::analyze::leak::LeakVerdict;
use stepmem_types::format::units::{grouped, many};

/// Lines that a sentence names.
const NAMED_MAX: usize = 3;
/// The meaning of a block's birth between two states.
const BIRTHS: &str = "A block was born between two states if the earlier one has none of its address, size and \
                      line: what was freed and allocated again as it was counts as old, and what came and \
                      went between two states is not seen.";

/// States what the births between states tell of a leak; its lines apart.
pub(super) fn texts(births: &Births) -> Vec<String> {
    let states = many(u64::from(births.states), "state");
    let mut texts = match births.doubt {
        Some(doubt) => {
            let different = many(u64::from(births.different_states), "different state");
            vec![format!("Cannot be told: {}", doubted(doubt, &different))]
        }
        None if births.verdict == LeakVerdict::Leak => {
            let n_most = births.sites.iter().map(|site| site.held_blocks).max().unwrap_or(0);
            vec![
                format!(
                    "Of what these lines made between {states}, some of each time is still there."
                ),
                format!(
                    "A queue or cache of more than {} that is not full yet would look the same, and so would cycles that were not collected yet. To tell, take the states further apart, each after `gc.collect()`.",
                    many(n_most, "block")
                ),
                BIRTHS.to_owned(),
            ]
        }
        None => vec![
            format!("{}, as far as {states} show it.", no_birth(&births.possible)),
            BIRTHS.to_owned(),
        ],
    };
    if births.different_states < births.states {
        let n_files = grouped(u64::from(births.states - births.different_states));
        texts.push(format!("{n_files} of the files show the very state of another."));
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
