//! The queries by which a job is read.

use crate::job::grid::{step, whole};
use crate::job::launches::JobLaunch;
use stepmem_engine::metrics::{Figure, IDENTITY, RECORDED, RecordedFamily, Reduction};

/// The least seconds of a launch that are asked for.
const LAUNCH_SECONDS_MIN: u64 = 60;
/// The seconds that a recorded maximum goes back, which may be before the launch.
const RECORDED_SECONDS: u64 = 300;

/// Returns the query over a [`Grid`](crate::job::grid::Grid) that shows which launches of a run there are.
pub fn launches(run: &str) -> String {
    let run = quoted(run);
    format!("count by (cluster, namespace, launch, attempt) ({IDENTITY}{{run={run}}})")
}

/// Returns the query over a [`Grid`](crate::job::grid::Grid) that shows one of these launches.
pub fn launch(run: &str, launch: &JobLaunch) -> String {
    let text = |value: &Option<String>| quoted(value.as_deref().unwrap_or_default());
    let (cluster, namespace) = (text(&launch.cluster), text(&launch.namespace));
    let (run, name) = (quoted(run), text(&launch.launch));
    let of = format!("run={run},cluster={cluster},namespace={namespace},launch={name}");
    format!("count by (cluster, namespace, launch, attempt) ({IDENTITY}{{{of}}})")
}

/// The queries at the end of a launch, which read all of its latest attempt.
#[derive(Clone, Debug)]
pub struct LaunchQueries {
    /// The time of the queries, as a Unix time.
    pub time: f64,
    /// The queries in `PromQL`, one for each figure.
    pub queries: Vec<(Figure, String)>,
}

impl LaunchQueries {
    /// Asks for the latest attempt of a launch.
    pub fn of(run: &str, launch: &JobLaunch) -> Self {
        let text = |value: &Option<String>| quoted(value.as_deref().unwrap_or_default());
        let (cluster, namespace) = (text(&launch.cluster), text(&launch.namespace));
        let run = quoted(run);
        let of_run = format!("run={run},cluster={cluster},namespace={namespace}");
        let seconds = whole((launch.end - launch.attempt_begin).ceil());
        let range = seconds.max(LAUNCH_SECONDS_MIN);
        let late = seconds.saturating_sub(RECORDED_SECONDS).max(LAUNCH_SECONDS_MIN);
        let grid = format!("{range}s:{}s", step(range));
        let query = |figure: Figure, metric: &str, reduction: Reduction| {
            let series = match figure {
                Figure::Identity => {
                    let name = text(&launch.launch);
                    let attempt = launch.attempt.map(|attempt| attempt.to_string());
                    let attempt = text(&attempt);
                    format!("{metric}{{{of_run},launch={name},attempt={attempt}}}")
                }
                _ => format!("{metric}{{{of_run}}}"),
            };
            match reduction {
                Reduction::Last => format!("last_over_time({series}[{range}s])"),
                Reduction::Highest => format!("max_over_time({series}[{late}s])"),
                Reduction::LastTime => latest(&format!("timestamp({series})"), &grid),
                Reduction::LastBefore => {
                    latest(&format!("(timestamp({series}) - {series})"), &grid)
                }
            }
        };
        let of = |family: &RecordedFamily| {
            (family.figure, query(family.figure, family.metric, family.reduction))
        };
        Self { time: launch.end, queries: RECORDED.iter().map(of).collect() }
    }
}

/// Returns the query for the value now, or for the highest one on a grid of what is gone.
fn latest(of: &str, grid: &str) -> String {
    format!("{of} or max_over_time({of}[{grid}])")
}

/// Returns a text as a string of a query.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use crate::job::grid::{GRID_POINTS_MAX, Grid};
    use crate::job::queries::launches;

    #[test]
    fn a_grid_covers_what_is_asked_for_with_few_enough_points() {
        let now = 1_800_000_000;
        for seconds in [1, 60, 86_400, 172_800, 31_536_000, u64::MAX] {
            let Grid { start, end, step } = Grid::until(now, seconds);
            assert_eq!(end, now);
            assert!(now - start >= seconds.min(now), "{seconds}");
            assert!((end - start) / step <= GRID_POINTS_MAX, "{seconds}");
        }
    }

    #[test]
    fn a_name_cannot_change_its_query() {
        let query = launches("a\"} or up{x=\"\\");
        assert!(query.ends_with(r#"{run="a\"} or up{x=\"\\"})"#), "{query}");
    }
}
