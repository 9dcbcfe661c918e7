//! The number of ranks of a command, as far as it is known before the command starts.

use std::ffi::OsString;
use std::path::Path;

use crate::config::environment;

/// Variables by which launchers report the number of ranks to each of their processes.
const VARIABLES: [&str; 2] = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"];
/// Names of the program and of the module of torchrun.
const TORCHRUN: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];

/// Returns the number of ranks, from the options of torchrun or from the variables of an outer
/// launcher; `None` where it is not known.
pub fn size(command: &[OsString]) -> Option<u64> {
    let words: Vec<&str> =
        command.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let is_torchrun = |word: &&str| {
        let name = Path::new(word).file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| TORCHRUN.contains(&name))
    };
    let at = words.iter().take_while(|word| !is_script(word));
    match at.enumerate().find_map(|(idx, word)| is_torchrun(word).then_some(idx)) {
        Some(idx) => of_torchrun(words.get(idx + 1..).unwrap_or_default()),
        None => VARIABLES.iter().find_map(|name| environment::text(name)?.parse().ok()),
    }
}

fn is_script(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|it| it == "py")
}

/// Returns the number of ranks of torchrun: nodes times processes per node, both 1 unless given
/// as numbers.
fn of_torchrun(words: &[&str]) -> Option<u64> {
    // Options of the program itself follow its name.
    let is_option = |word: &&&str| !is_script(word) && **word != "-m";
    let value = |name: &str| {
        let mut words = words.iter().take_while(is_option);
        while let Some(word) = words.next() {
            let word = word.replace('_', "-");
            if word == name {
                return Some(words.next().copied().unwrap_or_default().to_owned());
            }
            if let Some(value) = word.strip_prefix(name).and_then(|it| it.strip_prefix('=')) {
                return Some(value.to_owned());
            }
        }
        None
    };
    let number = |name: &str| value(name).map_or(Some(1), |value| value.parse::<u64>().ok());
    number("--nnodes")?.checked_mul(number("--nproc-per-node")?)
}

#[cfg(test)]
mod tests {
    use super::of_torchrun;

    #[test]
    fn options_of_torchrun_have_the_number_of_ranks_where_they_are_numbers() {
        let size = |words: &str| of_torchrun(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(size("--nproc-per-node 8 train.py"), Some(8));
        assert_eq!(size("--nnodes=2 --nproc_per_node=4 train.py"), Some(8));
        assert_eq!(size("train.py --nproc-per-node 8"), Some(1));
        assert_eq!(size("--nproc-per-node gpu train.py"), None);
        assert_eq!(size("--nnodes 1:4 --nproc-per-node 8 train.py"), None);
    }
}
