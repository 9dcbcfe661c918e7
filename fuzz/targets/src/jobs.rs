//! Answers of Prometheus' query API: which launches there are, then the figures of one, all by the same answer. The texts hold
//! no control character.

use stepmem_engine::metrics::RECORDED;
use stepmem_report::compare::{self, OldNew};
use stepmem_report::job::{
    self, Answer, Answers, Choice, Grid, Job, LaunchQueries, SERIES_MAX, Shown, choose,
    launches,
};
use stepmem_types::ids::Run;

pub fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (first, second) = data.split_at(at);
    let Ok(found) = Answer::decode(first) else { return };
    assert!(found.series.len() <= SERIES_MAX);
    let all = launches(&found.series, Grid::until(2_000, 2_000));
    let Ok(chosen) = choose(all, &Choice::Latest) else { return };
    let queries = LaunchQueries::of("r", &chosen.launch).queries;
    let Ok(answer) = Answer::decode(second.get(1..).unwrap_or_default()) else { return };
    assert_eq!(queries.len(), RECORDED.len());
    let mut answers = Answers::default();
    for (figure, _) in queries {
        answers.add(figure, answer.clone());
    }
    let job = Job::of(Run::new("r").expect("a name"), chosen, &answers);
    serde_json::to_vec(&job).expect("a job is JSON");
    for shown in [job::card(&job, Shown::default()), job::status(&job, 8, Shown::default())] {
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }
    let figures = compare::of_job(&job);
    compare::compare(OldNew { old: &figures, new: &figures });
}
