//! Names of environment variables that are nearly ours: nothing reads them, so their author does not learn of a slip.

use crate::config::keys::FILE_VARIABLE;
use crate::config::table::{SETTINGS, Setting};

const PREFIX: &str = "STEPMEM_";

/// Variables that others than the settings read: the client, and what `run` passes to it.
const OTHERS: [&str; 23] = [
    FILE_VARIABLE,
    "STEPMEM_PUSH_URL",
    "STEPMEM_PUSH_CA_FILE",
    "STEPMEM_PUSH_CERT_FILE",
    "STEPMEM_PUSH_KEY_FILE",
    "STEPMEM_PUSH_USER",
    "STEPMEM_PUSH_PASSWORD_FILE",
    "STEPMEM_RUN",
    "STEPMEM_RANK",
    "STEPMEM_ATTEMPT",
    "STEPMEM_PEAKS",
    "STEPMEM_EVERY_STEP",
    "STEPMEM_RESET_PEAK",
    "STEPMEM_CAPACITY",
    "STEPMEM_DISABLED",
    "STEPMEM_TRACES",
    "STEPMEM_WEB_URL",
    "STEPMEM_SNAPSHOT_DIRECTORY",
    "STEPMEM_SNAPSHOT_ON_OOM",
    "STEPMEM_KUBERNETES_JOB",
    "STEPMEM_KUBERNETES_JOBSET",
    "STEPMEM_KUBERNETES_PYTORCHJOB",
    "STEPMEM_KUBERNETES_RAYJOB",
];

/// Letters that may be wrong, missing, too many or in another order.
const SLIPS_MAX: usize = 2;

/// Returns a sentence for each name that is not a variable of ours, but nearly one. Kubernetes sets further names, such as
/// `STEPMEM_SERVICE_HOST` for a service called stepmem; they are left alone.
pub(super) fn sentences<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let of_settings = SETTINGS.iter().map(Setting::variable);
    let known: Vec<String> = of_settings.chain(OTHERS.map(str::to_owned)).collect();
    let mut sentences: Vec<String> = names
        .into_iter()
        .filter(|name| !known.iter().any(|known| known == name))
        .filter_map(|name| Some((name, nearest(name, &known)?)))
        .map(|(name, known)| format!("{name}: no such variable; {known} is one"))
        .collect();
    sentences.sort();
    sentences
}

/// Returns the variable that a name was meant to be.
fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let is_close = |distance: usize| distance <= SLIPS_MAX && name.len() > PREFIX.len();
    let upper = name.to_ascii_uppercase();
    let distances = known.iter().map(|known| (strsim::osa_distance(&upper, known), known));
    let (distance, known) = distances.min()?;
    is_close(distance).then_some(known.as_str())
}

#[cfg(test)]
mod tests {
    use crate::config::misspelt::sentences;

    #[test]
    fn slip_is_named_with_what_was_meant() {
        let check = |name: &str, meant: Option<&str>| {
            let expected =
                meant.map(|meant| format!("{name}: no such variable; {meant} is one"));
            assert_eq!(sentences([name]), Vec::from_iter(expected));
        };
        check("STEPMEM_PUSH_ADRESS", None);
        check("STEPMEM_PUSH_ULR", Some("STEPMEM_PUSH_URL"));
        check("STEPMEM_LOGLEVEL", Some("STEPMEM_LOG_LEVEL"));
        check("STEPMEM_log_level", Some("STEPMEM_LOG_LEVEL"));
        check("STEPMEM_RANK_TLL", Some("STEPMEM_RANK_TTL"));
        check("STEPMEN_RUN", Some("STEPMEM_RUN"));
    }

    #[test]
    fn names_that_are_ours_or_of_others_are_left_alone() {
        for name in [
            "STEPMEM_PUSH_URL",
            "STEPMEM_LOG_LEVEL",
            "STEPMEM_CONFIG_FILE",
            "STEPMEM_SERVICE_HOST",
            "STEPMEM_PORT_9477_TCP_ADDR",
            "STEPMEM",
            "HOME",
        ] {
            assert!(sentences([name]).is_empty(), "{name}");
        }
    }
}
