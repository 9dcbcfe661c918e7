//! A signal that creeps: how that is judged, and its evidence.

use crate::diagnosis::high_pressure;
use crate::diagnosis::shared::children_figures::ChildrenFigures;
use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::input::{DiagnosisInput, RELEASE_MARGIN, Subject};
use crate::diagnosis::shared::malloc_figures::MallocFigures;
use crate::diagnosis::shared::plan::Plan;
use crate::diagnosis::shared::pressure;
use crate::diagnosis::shared::run_end::EndsFirst;
use crate::diagnosis::shared::shm_figures::SHM_ADVICE;
use crate::diagnosis::shared::site_words;
use crate::diagnosis::shared::trend_figures::{ContainerFigures, TrendFigures};
use crate::kind::Severity;
use crate::ranks::view::RankView;
use stepmem_detect::{Outlook, Signal, Stage};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{
    bytes, counted, date, duration, grouped, hourly, least_time_left, time_left,
};
use stepmem_types::site::TensorHolder;
use stepmem_types::units::{Count, UnixTime};

/// The signals of MEMORY CREEP and MEMORY RISING: live memory of a rank that pushes, else all
/// that the driver reports.
pub const LIVE_SIGNALS: [Signal; 2] = [Signal::Allocated, Signal::Process];

/// Returns the signals of host memory beside a rank's own figures, in the order in which they are
/// judged. What is in `/dev/shm` may be mapped by the process, and count as its own memory, too:
/// where that grows, only what fills first is judged.
pub(crate) fn host_signals(subject: &Subject<'_, '_>) -> impl Iterator<Item = Signal> {
    let growing = |signal| {
        let outlook = subject.rank()?.outlook(signal)?;
        outlook.is_growing().then(|| outlook.seconds_at_newest.unwrap_or(f64::INFINITY))
    };
    let is_host = subject.rank().is_some_and(|rank| rank.identity.is_host());
    let own = growing(if is_host { Signal::Allocated } else { Signal::Host });
    let fills_first = growing(Signal::Shm).zip(own).map(|(files, own)| files < own);
    let first = fills_first.filter(|is_first| *is_first).map(|_| Signal::Shm);
    let last = fills_first.is_none().then_some(Signal::Shm);
    first.into_iter().chain([Signal::Host, Signal::Children]).chain(last)
}

/// Growth that went on after it had been level is no more than a warning for this long, unless
/// out-of-memory is near. Growth that comes and goes does not page each time.
const RESUMED_SECONDS: f64 = 3600.0;

/// Judges the memory of a container that creeps while that of none of its ranks does.
pub(crate) fn creeping_container(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    let rank = subject.rank()?;
    let container = rank.container.filter(|of| of.is_lead && !of.has_creep)?;
    let outlook = container.creeping()?;
    let run_end = subject.run_end(&outlook);
    let figures = TrendFigures { run_end, ..TrendFigures::of_container(&container, &outlook) };
    let severity =
        if is_soon(input, subject, &outlook) { Severity::Critical } else { Severity::Warning };
    Some((figures.lowered(severity), Box::new(figures)))
}

/// Returns whether the time to OOM is critically short. One that was critical stays so until the
/// time is half as long again as the limit. Nothing is soon of a rank that is silent or has ended,
/// nor in child processes that have.
fn is_soon(input: &DiagnosisInput<'_>, subject: &Subject<'_, '_>, outlook: &Outlook) -> bool {
    let was_critical = subject.active == Some(Severity::Critical);
    let limit =
        input.thresholds.creep_critical_eta_seconds * if was_critical { 1.5 } else { 1.0 };
    let is_over = |rank: &RankView<'_>| rank.is_over() || rank.has_ended(outlook.signal);
    let is_over = subject.rank().is_some_and(is_over);
    !is_over && outlook.seconds_at_newest.is_some_and(|left| left < limit)
}

/// Judges a signal that creeps. It is critical when its time to OOM is short or live memory is
/// near the capacity, else a warning. It is info once its growth has ended, while its holder is
/// filling up and will fit, and while the run clearly ends before.
pub(crate) fn creeping(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
    signal: Signal,
) -> Option<(Severity, Box<TrendFigures>)> {
    let trend = subject.trend(signal, Stage::Creeping)?;
    let was_critical = subject.active == Some(Severity::Critical);
    let outlook = subject.outlook(signal, Stage::Creeping)?;
    let is_soon = subject.end(signal).is_some_and(|of| is_soon(input, subject, &of));
    let margin = if was_critical { RELEASE_MARGIN } else { 0.0 };
    let is_full = pressure::of_live_memory(subject, signal)
        .is_some_and(|pressure| pressure.ratio >= input.thresholds.pressure_warning - margin);
    let has_resumed = trend
        .resumed()
        .is_some_and(|resumed| trend.seen.time.since(resumed.time) < RESUMED_SECONDS);
    let mut figures = subject.figures(&outlook);
    figures.is_full = figures.is_level()
        && pressure::of_signal(subject, signal)
            .any(|pressure| pressure.ratio >= input.thresholds.pressure_warning);
    let severity = match trend.is_growing() && !figures.ends() {
        false => Severity::Info,
        true if is_soon || (is_full && !has_resumed) => figures.lowered(Severity::Critical),
        true => figures.lowered(Severity::Warning),
    };
    Some((severity, figures))
}

/// The advice for growth that has ended.
const LEVEL_ADVICE: &str = "Nothing, unless it grows again. A buffer that is full and state that is made once look like this.";

/// Returns the advice for growth that has ended where the memory is full.
fn full_advice(signal: Signal) -> &'static str {
    match signal {
        Signal::Reserved => {
            "The card is full: the cache cannot grow further, and the next larger block may not fit. Try \
             PYTORCH_ALLOC_CONF=expandable_segments:True (before PyTorch 2.9: PYTORCH_CUDA_ALLOC_CONF); pad or \
             bucket varying shapes."
        }
        Signal::Shm => SHM_ADVICE,
        Signal::Host | Signal::Children => high_pressure::HOST_FULL_ADVICE,
        Signal::Allocated | Signal::OutsideAllocator | Signal::Process => {
            "The memory is full, so it is level because it cannot grow further. Look at what grew until then, or \
             reduce the memory load: batch or sequence length, activation checkpointing, sharding."
        }
    }
}

/// The advice for growth of a program without steps that has ended where the memory is full.
const SERVER_FULL_ADVICE: &str = "The memory is full, so it is level because it cannot grow further. Look at what grew until then, or reduce the \
                                  memory load: requests at a time, their length, caches.";

/// The advice for growth of a container that none of its ranks explains.
const CONTAINER_ADVICE: &str = "Look at the container's other processes (DataLoader workers, data services), and at files on its tmpfs volumes and in /dev/shm: all of these count \
                                toward its limit.";

/// The advice for growth that the run's end comes before.
const RUN_FIRST_ADVICE: &str = "Let it run: it ends before memory does. If it goes on past that end, it is judged as if it had none.";

/// The advice for a program that takes no steps: a server, or inference over a data set.
pub const CALLS_ADVICE: &str = "Look at what the program keeps from call to call: a cache by request or by length, conversations, adapters that are loaded and never \
                            unloaded, results or metrics that are appended. Give each a bound, or evict what was not used for long.";

/// The advice for a process that has no client.
const PROCESS_ADVICE: &str = "stepmem sees no more of this process than its memory. Start it under `stepmem run`, or import stepmem in it, to see which \
                              part grows; until then look at its caches, and at what it keeps from request to request.";

/// The advice for growth that ends by itself.
const FILLING_ADVICE: &str =
    "Nothing: it fits. If it grows past that end, this becomes a warning at once.";

impl TrendFigures {
    /// States what holds the memory, as far as a search or the allocator shows it.
    fn held(&self) -> Option<Sentence> {
        let malloc = self.malloc.as_ref();
        if let Some(holder) = &self.holder {
            let beside = malloc.and_then(MallocFigures::beside);
            return Some(self.held_by(holder).then_if(", ", beside));
        }
        let of_malloc = malloc.and_then(MallocFigures::statement);
        // A line that is known says more than that no object was found.
        match (self.searched.as_ref().filter(|_| self.site.is_none()), of_malloc) {
            (Some(search), Some(of_malloc)) => {
                Some(site_words::of_search_alone(*search, self.unit).then("; ", of_malloc))
            }
            (Some(search), None) => {
                Some(site_words::of_search(*search, self.is_on_host, self.unit))
            }
            (None, of_malloc) => of_malloc.map(Sentence::from),
        }
    }

    /// Names the holder of the memory, or the line that allocates it, and how its growth ends.
    fn held_by(&self, holder: &TensorHolder) -> Sentence {
        match &self.filling {
            Some(filling) if filling.withholds() => {
                site_words::of_filling(holder, filling, self.unit)
            }
            filling => {
                let held = site_words::of_holder(
                    holder,
                    self.slope_while_held_bytes_per_step.or(self.slope_bytes_per_step),
                    self.unit,
                );
                let doubt = filling.as_ref();
                held.then_if(", ", doubt.and_then(|of| site_words::of_doubt(of, self.unit)))
            }
        }
    }
}

impl ContainerFigures {
    /// Names the limit that headroom is a part of, and who shares it.
    fn words(&self) -> String {
        let limit = bytes(self.limit_bytes.as_f64());
        let ranks =
            if self.ranks > 1 { format!(" with {} ranks", self.ranks) } else { String::new() };
        format!(" of its container's {limit}{ranks}")
    }
}

impl TrendFigures {
    /// Returns whether the growth has ended.
    pub fn is_level(&self) -> bool {
        self.level_since_time.is_some()
    }

    /// Returns whether the growth ends by itself before memory runs out.
    pub fn ends(&self) -> bool {
        self.filling.is_some_and(|filling| filling.withholds())
    }

    /// Returns whether the run clearly ends before its memory does, and goes on.
    pub fn is_run_first(&self) -> bool {
        !self.is_level() && !self.is_over && self.run_end.is_some_and(|end| end.is_run_first())
    }

    /// Returns the severity of growth that goes on, by the run's own end. Where it is open which
    /// comes first, growth is no more than a warning. Of a run that is over a leak is what it was:
    /// a gate fails on it.
    fn lowered(&self, severity: Severity) -> Severity {
        match self.run_end.filter(|_| !self.is_over).map(|end| end.first) {
            Some(EndsFirst::Run) => Severity::Info,
            Some(EndsFirst::Open) => severity.min(Severity::Warning),
            Some(EndsFirst::Memory) | None => severity,
        }
    }

    fn is_of_container(&self) -> bool {
        self.container.as_ref().is_some_and(|of| of.is_whole)
    }

    /// Returns the advice for growth that is judged by time, of which nothing else is known.
    fn advice_without_steps(&self) -> Option<Statement> {
        let is_by_time = self.unit.is_calls()
            || (self.slope_bytes_per_step.is_none() && self.onset_step.is_none());
        match self.signal {
            Signal::Process => Some(Statement::new(Claim::AdviceProcess, PROCESS_ADVICE)),
            Signal::Allocated | Signal::Host if is_by_time => {
                Some(Statement::new(Claim::AdviceCalls, CALLS_ADVICE))
            }
            _ => None,
        }
    }

    /// Names what grows.
    fn what(&self) -> String {
        let what = match self.signal {
            Signal::Children => {
                let of = self.children.as_ref();
                return of.map_or_else(|| ChildrenFigures::default().what(), |of| of.what());
            }
            Signal::Shm => "what is in /dev/shm grows",
            Signal::Host if self.is_of_container() => "the memory of its container grows",
            Signal::Host => "host memory grows",
            Signal::Allocated if self.is_on_host => "host memory grows",
            Signal::Allocated => "live memory grows",
            Signal::Reserved => "reserved memory grows without live memory",
            Signal::OutsideAllocator => "memory outside the allocator grows",
            Signal::Process => "memory of the process grows",
        };
        what.to_owned()
    }

    /// States how fast memory grows, and by how much it has grown.
    fn rate_sentence(&self, what: &str) -> Sentence {
        let grew = what.replacen("grows", "grew", 1);
        let what = if self.is_over { grew.as_str() } else { what };
        let growth = Statement::new(Claim::Growth, bytes(self.growth_bytes));
        let growth = growth.of(self.growth_bytes);
        let fast = || Statement::new(Claim::Accelerates, format!("{what} faster and faster"));
        let since = |step: Count| {
            let words = format!("since {} {}", self.unit.noun(), grouped(step.get()));
            Statement::new(Claim::Since, words).of(step.as_f64())
        };
        let (rate, joint) = match (self.slope_bytes_per_step, self.slope_bytes_per_second) {
            (Some(_), _) if self.onset_step.is_some() && self.is_accelerating => (fast(), ": "),
            (Some(slope), _) if self.onset_step.is_some() => {
                let words = format!("{what} by {}{}", self.unit.rate(slope), self.hourly());
                let rate = Statement::new(Claim::RatePerStep, words).of(slope);
                let (lower, upper) =
                    (self.slope_lower_bytes_per_step, self.slope_upper_bytes_per_step);
                (rate.between(lower, upper), ", ")
            }
            (None, Some(_)) if self.is_accelerating => (fast(), ": "),
            (None, Some(slope)) => {
                let words = format!("{what} by {}/h", bytes(3600.0 * slope));
                let rate = Statement::new(Claim::RatePerHour, words).of(slope);
                let (lower, upper) =
                    (self.slope_lower_bytes_per_second, self.slope_upper_bytes_per_second);
                (rate.between(lower, upper), ", ")
            }
            _ => {
                let grows = Statement::new(Claim::Grows, what);
                return Sentence::from(grows).then(", ", growth).end(" so far");
            }
        };
        let told = Sentence::from(rate).then(joint, growth);
        if let Some(step) = self.onset_step.filter(|_| self.slope_bytes_per_step.is_some()) {
            return told.then(" ", since(step));
        }
        let grown_in = self.slope_bytes_per_second.map(|slope| {
            let seconds = self.growth_bytes / slope;
            Statement::new(Claim::GrownIn, format!("in {}", duration(seconds))).of(seconds)
        });
        told.then_if(" ", grown_in)
    }

    /// Returns the rate by time beside that by calls, which come as they like.
    fn hourly(&self) -> String {
        let by_time = self.slope_bytes_per_second.filter(|_| self.unit.is_calls());
        by_time.map_or_else(String::new, |slope| format!(" ({})", hourly(slope)))
    }

    /// States until when growth that has ended lasted.
    fn level_sentence(&self, what: &str) -> Sentence {
        let (claim, until, since) = match (self.level_since_step, self.level_since_time) {
            (Some(step), _) => {
                let step_words = format!("{} {}", self.unit.noun(), grouped(step.get()));
                (Claim::LevelSince, step_words, step.as_f64())
            }
            (None, time) => {
                let time = time.map_or(0.0, UnixTime::get);
                (Claim::LevelSinceTime, date(time), time)
            }
        };
        let words =
            format!("{} {}", what.replacen("grows", "grew", 1), bytes(self.growth_bytes));
        let growth = Statement::new(Claim::Growth, words).of(self.growth_bytes);
        let level = Statement::new(claim, format!("until {until}; level since")).of(since);
        let full = match (self.is_full, self.is_on_host) {
            (true, true) => Some("the memory is full"),
            (true, false) => Some("the card is full"),
            (false, _) => None,
        };
        let full = full.map(|words| Statement::new(Claim::Full, words));
        Sentence::from(growth).then(" ", level).then_if(": ", full)
    }

    /// States what is left of memory that goes on growing.
    fn left_statement(&self, headroom: f64, is_likely: bool) -> Sentence {
        let of = self.container.as_ref().map_or_else(String::new, |of| of.words());
        let limit = self.container.as_ref().map(|of| {
            let words = of.words().trim_start().to_owned();
            Statement::new(Claim::ContainerLimit, words).of(of.limit_bytes.as_f64())
        });
        let left = if headroom == 0.0 {
            Statement::new(Claim::NothingLeft, format!("nothing{of} is left"))
        } else {
            let likely = if is_likely { "likely " } else { "" };
            Statement::new(Claim::Left, format!("{likely}{}{of} left", bytes(headroom)))
        };
        Sentence::from(left.of(headroom)).with(limit)
    }

    /// States when memory runs out, as far as that is known.
    fn end_sentence(&self) -> Option<Sentence> {
        let is_known = self.oom_eta_seconds.or(self.oom_eta_steps).is_some();
        let ((seconds, steps), claims) = if is_known {
            ((self.oom_eta_seconds, self.oom_eta_steps), (Claim::TimeLeft, Claim::StepsLeft))
        } else {
            (
                (self.oom_eta_lower_seconds, self.oom_eta_lower_steps),
                (Claim::LeastTimeLeft, Claim::LeastStepsLeft),
            )
        };
        let of_steps = |words: String, steps: f64| {
            let left = Statement::new(claims.1, words).of(steps);
            left.between(self.oom_eta_lower_steps, self.oom_eta_upper_steps)
        };
        match (seconds, steps) {
            (Some(seconds), steps) => {
                let left = if is_known { time_left(seconds) } else { least_time_left(seconds) };
                let left = Statement::new(claims.0, format!("out of memory in {left}"));
                let (lower, upper) = (self.oom_eta_lower_seconds, self.oom_eta_upper_seconds);
                let left = Sentence::from(left.of(seconds).between(lower, upper));
                // A lower bound of less than a second is of no use, in steps neither.
                Some(match steps.filter(|_| is_known || seconds >= 1.0) {
                    Some(n) => {
                        left.then(" (", of_steps(counted(n, self.unit.noun()), n)).end(")")
                    }
                    None => left,
                })
            }
            (None, Some(steps)) => {
                let about = if is_known { "about" } else { "at least" };
                let words = counted(steps, self.unit.noun());
                let words = format!("out of memory in {about} {words}");
                let unknown = format!("how long a {} takes is not known yet", self.unit.noun());
                let unknown = Statement::new(Claim::PaceUnknown, unknown);
                Some(Sentence::from(of_steps(words, steps)).then("; ", unknown))
            }
            (None, None) => None,
        }
    }

    /// Adds how growth that goes on ends.
    fn with_end(&self, told: Sentence) -> Sentence {
        let stalled = self.stalled_seconds.map(|seconds| {
            let what =
                if self.onset_step.is_some() { self.unit.as_label() } else { "readings" };
            let words = format!("no {what} for {}", duration(seconds));
            Statement::new(Claim::Stalled, words).of(seconds)
        });
        if self.headroom_bytes == Some(0.0) {
            return told.then("; ", self.left_statement(0.0, false)).then_if("; ", stalled);
        }
        let is_known = self.oom_eta_seconds.or(self.oom_eta_steps).is_some();
        let has_least = self.oom_eta_lower_seconds.or(self.oom_eta_lower_steps).is_some();
        let left = self.headroom_bytes;
        let left = left.map(|left| self.left_statement(left, !is_known && has_least));
        told.then_if("; ", left)
            .then_if(", ", self.end_sentence())
            .then_if("; ", stalled)
            .then_if("; ", self.run_end.map(|end| end.statement()))
            .then_if(": ", Plan::of(self).map(Plan::sentence))
    }
}

impl Figures for TrendFigures {
    fn sentence(&self) -> Sentence {
        let what = &self.what();
        if self.is_level() {
            return self.level_sentence(what);
        }
        let children = self.children.as_ref().and_then(|of| of.held(self.is_over));
        let kept = self.kept_blocks.map(|kept| kept.statement(self.unit, self.is_over));
        let told = self
            .rate_sentence(what)
            .then_if("; ", children)
            .then_if("; ", self.shm.map(|of| of.held(self.is_over)))
            .then_if("; ", kept)
            .then_if("; ", self.site.as_deref().map(|site| site_words::of(site, self.unit)))
            .then_if("; ", self.held());
        if self.ends() || self.is_over {
            let end = self.run_end.filter(|_| self.is_over);
            return told.then_if("; ", end.and_then(|end| end.statement_after()));
        }
        self.with_end(told)
    }

    fn score(&self) -> Score {
        Score { metric: self.signal.as_label(), value: self.growth_bytes }
    }

    fn growth(&self) -> Option<&TrendFigures> {
        Some(self)
    }

    fn advice(&self) -> Option<Statement> {
        let fixed = if self.is_of_container() {
            Some((Claim::AdviceContainer, CONTAINER_ADVICE))
        } else if self.is_level() && self.is_full {
            let is_server = self.signal == Signal::Allocated && self.unit.is_calls();
            let advice = if is_server { SERVER_FULL_ADVICE } else { full_advice(self.signal) };
            Some((Claim::AdviceFull, advice))
        } else if self.is_level() {
            Some((Claim::AdviceLevel, LEVEL_ADVICE))
        } else if self.ends() {
            Some((Claim::AdviceFits, FILLING_ADVICE))
        } else if self.is_run_first() {
            Some((Claim::AdviceRunFirst, RUN_FIRST_ADVICE))
        } else {
            let children = self.children.as_ref();
            let of_children = children.map(|of| (Claim::AdviceChildren, of.advice()));
            of_children.or(self.shm.map(|_| (Claim::AdviceShm, SHM_ADVICE)))
        };
        if let Some((claim, words)) = fixed {
            return Some(Statement::new(claim, words));
        }
        let seen = site_words::Seen {
            site: self.site.as_deref(),
            holder: self.holder.as_deref(),
            steps_per_event: self.steps_per_event,
            unit: self.unit,
        };
        let freed =
            || self.malloc.as_ref().filter(|of| of.is_freed()).map(MallocFigures::advice);
        let searched = || {
            let search = self.searched.as_ref()?;
            site_words::without_tensors(search, self.is_on_host)
        };
        let known = seen.advice().or_else(freed).or_else(searched);
        known.or_else(|| self.advice_without_steps())
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        use crate::diagnosis::examples::{
            bytes, count, empty_search, filling, holder, line, malloc, run_end, text,
        };
        use crate::diagnosis::shared::kept_blocks::{KeptBlocks, KeptState};
        use crate::diagnosis::shared::shm_figures::ShmFigures;
        use crate::diagnosis::shared::trend_figures::ContainerFigures;
        use stepmem_types::site::{CodeFrame, LeakSite, SiteVerdict};
        use stepmem_types::step::StepUnit;
        use stepmem_types::units::UnixTime;
        let frame = CodeFrame { file: text("train.py"), line: 42, function: text("step") };
        vec![Self {
            signal: Signal::Allocated,
            is_on_host: true,
            is_over: true,
            is_accelerating: true,
            stalled_seconds: Some(35.5),
            slope_bytes_per_step: Some(0.1),
            slope_lower_bytes_per_step: Some(0.05),
            slope_upper_bytes_per_step: Some(0.15),
            slope_bytes_per_second: Some(1.1),
            slope_lower_bytes_per_second: Some(1.05),
            slope_upper_bytes_per_second: Some(1.15),
            growth_bytes: 123_456_789.5,
            onset_step: Some(count(17)),
            onset_time: UnixTime::new(1_764_897_183.25).unwrap(),
            level_since_step: Some(count(99)),
            level_since_time: Some(UnixTime::new(1_764_897_283.5).unwrap()),
            is_full: true,
            headroom_bytes: Some(3e9),
            oom_eta_steps: Some(1000.0),
            oom_eta_lower_steps: Some(900.0),
            oom_eta_upper_steps: Some(1100.0),
            oom_eta_seconds: Some(2000.0),
            oom_eta_lower_seconds: Some(1900.0),
            oom_eta_upper_seconds: Some(2100.0),
            container: Some(Box::new(ContainerFigures {
                limit_bytes: bytes(64 << 30),
                used_bytes: Some(bytes(44 << 30)),
                ranks: 2,
                is_whole: true,
            })),
            confidence_ratio: 0.999,
            site: Some(Box::new(LeakSite {
                verdict: SiteVerdict::Leak,
                at: Some(line()),
                share_ratio: Some(0.9),
                bytes_per_step: Some(7.5),
                steps: 20,
                stack: vec![frame],
            })),
            holder: Some(Box::new(holder())),
            slope_while_held_bytes_per_step: Some(0.2),
            filling: Some(filling()),
            run_end: Some(run_end()),
            kept_blocks: Some(KeptBlocks {
                state: KeptState::Fades,
                blocks_per_step: Some(62.5),
                blocks_per_second: Some(31.25),
                bytes_per_block: Some(4096.0),
                since_step: Some(count(23)),
                since_time: Some(UnixTime::new(1_764_897_183.25).unwrap()),
                certain_step: Some(count(47)),
            }),
            searched: Some(empty_search()),
            malloc: Some(malloc()),
            children: Some(Box::new(ChildrenFigures::example())),
            shm: Some(ShmFigures::example()),
            steps_per_event: Some(30.5),
            unit: StepUnit::Calls,
        }]
    }
}
