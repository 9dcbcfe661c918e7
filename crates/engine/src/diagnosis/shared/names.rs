//! The diagnoses by title, signal and place, and their documentation. Nothing is judged here.

use crate::diagnosis::Evidence;
use crate::diagnosis::shared::figures::Score;
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::{About, DiagnosisKind, Place};
use stepmem_detect::{Signal, Stage};
use stepmem_types::claims::{Sentence, Statement};

impl DiagnosisKind {
    /// Returns the diagnosis that a person names, by its title or its label in any case.
    pub fn named(name: &str) -> Option<Self> {
        let plain = |name: &str| name.trim().to_ascii_uppercase().replace(['_', '-'], " ");
        let is_it = |kind: &Self| {
            let about = kind.about();
            [kind.label(), about.title].iter().any(|known| plain(known) == plain(name))
        };
        Self::ALL.iter().copied().find(is_it)
    }

    /// Returns the diagnosis that judges the growth of a signal of a rank at a stage, if one does.
    pub fn of_growth(signal: Signal, stage: Stage) -> Option<Self> {
        let judges = |kind: &Self| {
            let about = kind.about();
            (about.signal, about.stage) == (Some(signal), Some(stage))
        };
        Self::ALL.iter().copied().find(judges)
    }

    /// Returns the diagnosis that says the same of the subject's own memory: itself, unless it
    /// is about the host's next to a device.
    #[must_use]
    pub fn of_own(self) -> Self {
        match self.about().place {
            Place::Own => self,
            Place::Host { own } => own,
        }
    }

    /// Returns whether it is about the host's memory next to a device.
    pub fn is_of_host(self) -> bool {
        matches!(self.about().place, Place::Host { .. })
    }

    /// Returns every label with its title, the worst first, with commas between.
    pub fn names() -> String {
        let name = |kind: &Self| format!("{} ({})", kind.label(), kind.about().title);
        Self::ALL.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

impl Evidence {
    /// Returns the evidence in one sentence without a full stop.
    pub fn sentence(&self) -> Sentence {
        self.figures().sentence()
    }

    /// Returns the measure of the finding in a summary.
    pub fn score(&self) -> Score {
        self.figures().score()
    }

    /// Returns the signal that grows, if the finding is about one.
    pub fn signal(&self) -> Option<Signal> {
        Some(self.growth()?.signal)
    }

    /// Returns the growth that the finding is about, if it is about one.
    pub fn growth(&self) -> Option<&TrendFigures> {
        self.figures().growth()
    }

    /// Returns whether it names the code or the object behind the memory.
    pub(crate) fn names_cause(&self) -> bool {
        self.figures().names_cause()
    }

    /// Returns whether it is about growth that has ended.
    pub fn is_level(&self) -> bool {
        self.growth().is_some_and(TrendFigures::is_level)
    }

    /// Returns whether it is about growth that ends by itself before memory runs out.
    pub fn ends(&self) -> bool {
        self.growth().is_some_and(TrendFigures::ends)
    }

    /// Returns whether it is about growth that the run's own end clearly comes before.
    pub fn is_run_first(&self) -> bool {
        self.growth().is_some_and(TrendFigures::is_run_first)
    }

    /// Returns the first thing to check, where the figures know that better than their
    /// diagnosis.
    pub fn advice(&self) -> Option<Statement> {
        self.figures().advice()
    }
}

/// Returns the diagnoses as a page of documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Diagnoses\n\nGenerated from `crates/engine/src/diagnosis/`, the worst first. While a diagnosis \
         holds, `/api/v1/status` and\nthe page show it, and the metric `diagnosis` has a series with its label as `kind`.\n",
    );
    for kind in DiagnosisKind::ALL {
        let (label, About { title, help, advice, .. }) = (kind.label(), kind.about());
        let part = format!("\n## {title}\n\n`{label}`. {help}\n\n{advice}\n");
        page.push_str(&part);
    }
    page
}
