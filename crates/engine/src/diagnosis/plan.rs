//! The verdict on the plan of a run whose memory grows: what is best done with it.

use crate::diagnosis::run_end::{EndsFirst, RunEndFigures};
use crate::diagnosis::trend_figures::TrendFigures;
use stepmem_types::claims::Claim;
use stepmem_types::claims::Sentence;
use stepmem_types::claims::Statement;
use stepmem_types::format::units::{counted, duration};

/// A run that needs more restarts is not worth them.
const RESTARTS_MAX: f64 = 20.0;

/// What is best done with a run whose end is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    /// It ends before its memory does.
    LetRun,
    /// Restarts from a checkpoint get it to its end.
    Restart {
        restarts: f64,
        /// Seconds that each adds, where that is known.
        buys_seconds: Option<f64>,
    },
    /// No number of restarts does that is worth it.
    Stop,
}

impl Plan {
    /// Returns the verdict on growth that goes on; `None` where it is open which end comes first,
    /// or what a restart gains is not known.
    pub fn of(growth: &TrendFigures) -> Option<Self> {
        let goes_on = !growth.is_over && !growth.is_level() && !growth.ends();
        let RunEndFigures { first, restarts, .. } = growth.run_end.filter(|_| goes_on)?;
        match (first, restarts) {
            (EndsFirst::Run, _) => Some(Self::LetRun),
            (EndsFirst::Memory, Some(restarts)) if restarts <= RESTARTS_MAX => {
                Some(Self::Restart { restarts, buys_seconds: buys_seconds(growth) })
            }
            (EndsFirst::Memory, Some(_)) => Some(Self::Stop),
            (EndsFirst::Memory, None) | (EndsFirst::Open, _) => None,
        }
    }

    /// States the verdict.
    pub fn sentence(self) -> Sentence {
        match self {
            Self::LetRun => Statement::new(Claim::LetRun, "let it run").into(),
            Self::Restart { restarts, buys_seconds } => {
                let (words, whose) = if restarts > 1.0 {
                    let n = counted(restarts, "restart");
                    (format!("it takes {n} from a checkpoint"), "each")
                } else {
                    ("one restart from a checkpoint is enough".to_owned(), "it")
                };
                let buys = buys_seconds.map(|seconds| {
                    let words = format!("{whose} buys {}", duration(seconds));
                    Statement::new(Claim::RestartBuys, words).of(seconds)
                });
                let takes = Statement::new(Claim::Restarts, words).of(restarts);
                Sentence::from(takes).then_if(", ", buys)
            }
            Self::Stop => {
                Statement::new(Claim::StopRun, "stop it, no restart gets it there").into()
            }
        }
    }
}

/// Returns the time that memory lasts from where its growth began; `None` next to other growth in
/// its container.
fn buys_seconds(growth: &TrendFigures) -> Option<f64> {
    let room = growth.headroom_bytes.filter(|_| growth.container.is_none())?;
    let pace = growth.slope_bytes_per_second.filter(|pace| *pace > 0.0)?;
    Some((room + growth.growth_bytes) / pace)
}
