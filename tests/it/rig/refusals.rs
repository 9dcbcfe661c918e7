//! How pushes are refused.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::rig::exporter::Exporter;
use crate::rig::http::Answer;

/// Sends a bad push (of rank 7, if of any) and checks how it is refused, that it is
/// counted by its reason, that nothing of it was taken, and that a good push works after it.
pub fn check_refused(
    exporter: &Exporter,
    (status, result, detail): (u16, &str, &str),
    send: impl FnOnce(&Exporter) -> Answer,
) {
    let refused = format!("stepmem_pushes_total{{result=\"{result}\"}}");
    let accepted = "stepmem_pushes_total{result=\"accepted\"}";
    let steps = r#"stepmem_rank_steps_total{run="default",rank="0",uuid=""}"#;
    let of = |name: &str| exporter.metric(name).unwrap_or_default();
    let before = (of(&refused), of(accepted), of(steps));
    let answer = send(exporter);
    check_problem(&answer, status, detail);
    let next = of(steps) + 1.0;
    let answer = exporter.post(format!(r#"{{"rank":0,"step":{next},"allocated_bytes":1}}"#));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let after = (of(&refused), of(accepted), of(steps));
    assert_eq!(after, (before.0 + 1.0, before.1 + 1.0, before.2 + 1.0), "{detail}");
    let taken = exporter.scrape().into_keys().find(|series| series.contains("rank=\"7\""));
    assert_eq!(taken, None);
}

/// Checks that an answer is problem+json of this status whose detail has this in it.
pub fn check_problem(answer: &Answer, status: u16, detail: &str) {
    assert_eq!(answer.status, status, "{detail}: {}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json", "{detail}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{problem}");
    let said = problem["detail"].as_str().unwrap_or_default();
    assert!(said.contains(detail), "{said:?} does not contain {detail:?}");
}

pub fn send(body: &[u8], headers: &[(&str, &str)], exporter: &Exporter) -> Answer {
    exporter.request("POST", "/v1/steps", headers, body)
}

pub fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
