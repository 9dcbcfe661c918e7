//! Answers of Prometheus' query API: which launches there are, then the figures of one, all by the same answer. The texts hold
//! no control character.

use stepmem_engine::metrics::recorded::RECORDED;
use stepmem_report::compare::comparison::OldNew;
use stepmem_report::compare::{from_job, judge};
use stepmem_report::job::answer::{Answer, SERIES_MAX};
use stepmem_report::job::build::Answers;
use stepmem_report::job::grid::Grid;
use stepmem_report::job::launches::{Choice, choose, launches};
use stepmem_report::job::model::Job;
use stepmem_report::job::queries::LaunchQueries;
use stepmem_report::job::text::{self, Shown};
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
    for shown in [text::card(&job, Shown::default()), text::status(&job, 8, Shown::default())] {
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }
    let figures = from_job::figures(&job);
    judge::compare(OldNew { old: &figures, new: &figures });
}
