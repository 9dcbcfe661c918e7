//! Answers of Prometheus to two queries over time, as series, and the verdicts on them.

use stepmem_report::job::Answer;
use stepmem_report::series::{self, Wanted};

use crate::series_tables::{is_plain, judged};

pub fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (first, second) = data.split_at(at);
    let Ok(answer) = Answer::decode(first) else { return };
    let capacities = Answer::decode(second.get(1..).unwrap_or_default()).unwrap_or_default();
    let by =
        Wanted { by: vec!["pod".to_owned()], unit: "MiB".parse().ok(), ..Wanted::default() };
    for wanted in [Wanted::default(), by] {
        match series::decode_answer(("q", answer.clone()), &capacities, &wanted) {
            Ok(decoded) => judged(decoded),
            Err(error) => is_plain(&error.to_string()),
        }
    }
}
