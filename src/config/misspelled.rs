//! Names of environment variables that resemble stepmem's: nothing reads them, so their author
//! does not notice a misspelling.

use crate::config::keys::FILE_VARIABLE;
use crate::config::table::{SETTINGS, Setting, variable_of};

const PREFIX: &str = "STEPMEM_";

/// Variables that are read by other readers than the settings: the client, and those that `run`
/// passes to it.
const OTHERS: [&str; 27] = [
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
    "STEPMEM_HOLDERS",
    "STEPMEM_TRACEMALLOC",
    "STEPMEM_PUSH_SOCKET_UID",
    "STEPMEM_KUBERNETES_UID",
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

/// Maximum number of letters that are wrong, missing, too many or in another order.
const SLIPS_MAX: usize = 2;

/// Number of words that a name needs at least to be recognized by them: one alone may be of a
/// service in Kubernetes.
const WORDS_MIN: usize = 2;
/// Number of letters from which one letter of a word may be wrong.
const LONG_WORD: usize = 6;

/// Returns a sentence for each unread name that begins with the prefix of stepmem's, or nearly
/// equals one of them. Names that Kubernetes sets for a service called stepmem are ignored.
pub(super) fn sentences<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let of_settings = SETTINGS.iter().map(Setting::variable);
    let known: Vec<String> = of_settings.chain(OTHERS.map(str::to_owned)).collect();
    let mut sentences: Vec<String> = names
        .into_iter()
        .filter(|name| !known.iter().any(|known| known == name))
        .filter_map(|name| match nearest(name, &known) {
            Some(known) => {
                Some(format!("{name}: no setting has this name; did you mean {known}?"))
            }
            None => is_ours(name).then(|| format!("{name}: no setting has this name")),
        })
        .collect();
    sentences.sort();
    sentences
}

/// Returns the setting that a key of the file was meant to be.
pub(super) fn meant(key: &str) -> Option<&'static str> {
    let variables: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let meant = nearest(&variable_of(key), &variables)?;
    SETTINGS.iter().find(|setting| setting.variable() == meant).map(|setting| setting.key)
}

/// Returns whether a name begins with stepmem's prefix and is none that Kubernetes sets.
/// Kubernetes sets `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT`, `NAME_PORT`, `NAME_PORT_9477_TCP`,
/// and names that begin with one of these.
fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let words: Vec<&str> = rest.split('_').collect();
    let is_of_service = words.windows(2).any(|pair| match pair {
        ["SERVICE", "HOST" | "PORT"] => true,
        ["PORT", number] => number.parse::<u16>().is_ok(),
        _ => false,
    });
    !is_of_service && words.last() != Some(&"PORT")
}

/// Returns the variable that a name was meant to be: one of nearly the same letters, else the
/// shortest one that has all of its words.
fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let is_close = |distance: usize| distance <= SLIPS_MAX && name.len() > PREFIX.len();
    let upper = name.to_ascii_uppercase();
    // A pod has hundreds of variables. Each slip changes the length by one letter at most.
    let n_letters = upper.chars().count();
    let alike = known.iter().filter(|known| known.len().abs_diff(n_letters) <= SLIPS_MAX);
    let distances = alike.map(|known| (strsim::osa_distance(&upper, known), known));
    let closest = distances.min().filter(|(distance, _)| is_close(*distance));
    if let Some((_, closest)) = closest {
        return Some(closest.as_str());
    }
    let words = upper.strip_prefix(PREFIX)?.split('_').collect::<Vec<_>>();
    if words.len() < WORDS_MIN {
        return None;
    }
    let has_all = |known: &&String| words.iter().all(|word| has_word(known, word));
    known.iter().filter(has_all).min_by_key(|known| known.len()).map(String::as_str)
}

/// Returns whether a variable contains a word, or nearly: one letter of a long word may be
/// wrong.
fn has_word(known: &str, word: &str) -> bool {
    let slips_max = usize::from(word.len() >= LONG_WORD);
    known.split('_').skip(1).any(|of| strsim::osa_distance(of, word) <= slips_max)
}

#[cfg(test)]
mod tests {
    use crate::config::misspelled::sentences;

    #[test]
    fn slip_is_named_with_what_was_meant() {
        let check = |name: &str, meant: Option<&str>| {
            let meant =
                meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            assert_eq!(sentences([name]), [format!("{name}: no setting has this name{meant}")]);
        };
        check("STEPMEM_PUSH_ADRESS", Some("STEPMEM_PUSH_LISTEN_ADDRESS"));
        check("STEPMEM_LISTEN_ADDRESS", Some("STEPMEM_WEB_LISTEN_ADDRESS"));
        check("STEPMEM_SNAPSHOT_DIR", None);
        check("STEPMEM_TOKEN_FILE", Some("STEPMEM_PUSH_TOKEN_FILE"));
        check("STEPMEM_PUSH_ULR", Some("STEPMEM_PUSH_URL"));
        check("STEPMEM_LOGLEVEL", Some("STEPMEM_LOG_LEVEL"));
        check("STEPMEM_log_level", Some("STEPMEM_LOG_LEVEL"));
        check("STEPMEM_RANK_TLL", Some("STEPMEM_RANK_TTL"));
        check("STEPMEN_RUN", Some("STEPMEM_RUN"));
        check("STEPMEM_ANYTHING", None);
        check("STEPMEM_IMPORT_LIMIT", None);
    }

    #[test]
    fn names_that_are_ours_or_of_others_are_left_alone() {
        for name in [
            "STEPMEM_PUSH_URL",
            "STEPMEM_LOG_LEVEL",
            "STEPMEM_CONFIG_FILE",
            "STEPMEM_SERVICE_HOST",
            "STEPMEM_PORT_9477_TCP_ADDR",
            "STEPMEM_SERVICE_PORT_PUSH",
            "STEPMEM_PUSH_SERVICE_HOST",
            "STEPMEM_WEB_PORT",
            "STEPMEM_PORT",
            "STEPMEM_PORT_9478_UDP",
            "STEPMEM_PUSH_PORT_9478_TCP_PROTO",
            "STEPMEM_SERVICE_PORT",
            "STEPMEM",
            "HOME",
        ] {
            assert!(sentences([name]).is_empty(), "{name}");
        }
    }
}
