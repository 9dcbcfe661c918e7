//! A signal that creeps: how that is judged, and its evidence.

use crate::diagnosis::children_figures::ChildrenFigures;
use crate::diagnosis::figures::{Figures, Score};
use crate::diagnosis::high_pressure;
use crate::diagnosis::input::{DiagnosisInput, RELEASE_MARGIN, Subject};
use crate::diagnosis::malloc_figures::MallocFigures;
use crate::diagnosis::pressure;
use crate::diagnosis::run_end::EndsFirst;
use crate::diagnosis::site_words;
use crate::diagnosis::trend_figures::{ContainerFigures, TrendFigures};
use crate::kind::Severity;
use crate::ranks::view::RankView;
use stepmem_detect::outlook::Outlook;
use stepmem_detect::signal::Signal;
use stepmem_detect::trend::Stage;
use stepmem_types::format::units::{
    bytes, counted, date, duration, grouped, hourly, least_time_left, time_left,
};
use stepmem_types::site::TensorHolder;
use stepmem_types::units::UnixTime;

/// The signals of MEMORY CREEP and MEMORY RISING: live memory of a rank that pushes, else all
/// that the driver reports.
pub const LIVE_SIGNALS: [Signal; 2] = [Signal::Allocated, Signal::Process];

/// Growth that went on after it had been level is no more than a warning for this long, unless
/// out-of-memory is near. Growth that comes and goes does not page each time.
const RESUMED_SECONDS: f64 = 3600.0;

/// Judges the memory of a container that creeps while that of none of its ranks does.
pub fn creeping_container(
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
pub fn creeping(
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
    let ends = figures.ends();
    let severity = match trend.is_growing() && !ends {
        false => Severity::Info,
        true if is_soon || (is_full && !has_resumed) => figures.lowered(Severity::Critical),
        true => figures.lowered(Severity::Warning),
    };
    Some((severity, if ends { Box::new(figures.without_eta()) } else { figures }))
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
const CALLS_ADVICE: &str = "Look at what the program keeps from call to call: a cache by request or by length, conversations, adapters that are loaded and never \
                            unloaded, results or metrics that are appended. Give each a bound, or evict what was not used for long.";

/// The advice for a process that has no client.
const PROCESS_ADVICE: &str = "stepmem sees no more of this process than its memory. Start it under `stepmem run`, or import stepmem in it, to see which \
                              part grows; until then look at its caches, and at what it keeps from request to request.";

/// The advice for growth that ends by itself.
const FILLING_ADVICE: &str =
    "Nothing: it fits. If it grows past that end, this becomes a warning at once.";

impl TrendFigures {
    /// States what holds the memory, as far as a search or the allocator shows it.
    fn held_words(&self) -> Option<String> {
        let malloc = self.malloc.as_ref();
        if let Some(holder) = &self.holder {
            let beside = malloc.and_then(MallocFigures::beside);
            let beside = beside.map_or_else(String::new, |beside| format!(", {beside}"));
            return Some(format!("{}{beside}", self.held_by(holder)));
        }
        let words = malloc.and_then(MallocFigures::words);
        // A line that is known says more than that no object was found.
        match (self.searched.as_ref().filter(|_| self.site.is_none()), words) {
            (Some(search), Some(words)) => {
                Some(format!("{}; {words}", site_words::of_search_alone(*search, self.unit)))
            }
            (Some(search), None) => {
                Some(site_words::of_search(*search, self.is_on_host, self.unit))
            }
            (None, words) => words,
        }
    }

    /// Names the holder of the memory, or the line that allocates it, and how its growth ends.
    fn held_by(&self, holder: &TensorHolder) -> String {
        match &self.filling {
            Some(filling) if filling.withholds() => {
                format!("held by {}", site_words::of_filling(holder, filling, self.unit))
            }
            filling => {
                let held = site_words::of_holder(
                    holder,
                    self.slope_while_held_bytes_per_step.or(self.slope_bytes_per_step),
                    self.unit,
                );
                filling
                    .as_ref()
                    .and_then(|filling| site_words::of_doubt(filling, self.unit))
                    .map_or_else(|| held.clone(), |doubt| format!("{held}, {doubt}"))
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
    fn advice_without_steps(&self) -> Option<&'static str> {
        let is_by_time = !self.unit.is_steps()
            || (self.slope_bytes_per_step.is_none() && self.onset_step.is_none());
        match self.signal {
            Signal::Process => Some(PROCESS_ADVICE),
            Signal::Allocated | Signal::Host if is_by_time => Some(CALLS_ADVICE),
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
    fn rate_sentence(&self, what: &str, growth: &str) -> String {
        let grew = what.replacen("grows", "grew", 1);
        let what = if self.is_over { grew.as_str() } else { what };
        let noun = self.unit.noun();
        match (self.slope_bytes_per_step, self.onset_step, self.slope_bytes_per_second) {
            (Some(_), Some(step), _) if self.is_accelerating => {
                format!("{what} faster and faster: {growth} since {noun} {}", step.get())
            }
            (Some(slope), Some(step), _) => {
                format!(
                    "{what} by {}{}, {growth} since {noun} {}",
                    self.unit.rate(slope),
                    self.hourly(),
                    step.get()
                )
            }
            (None, _, Some(slope)) => {
                let since = duration(self.growth_bytes / slope);
                if self.is_accelerating {
                    format!("{what} faster and faster: {growth} in {since}")
                } else {
                    format!("{what} by {}/h, {growth} in {since}", bytes(3600.0 * slope))
                }
            }
            _ => format!("{what}, {growth} so far"),
        }
    }

    /// Returns the rate by time beside that by calls, which come as they like.
    fn hourly(&self) -> String {
        let by_time = self.slope_bytes_per_second.filter(|_| !self.unit.is_steps());
        by_time.map_or_else(String::new, |slope| format!(" ({})", hourly(slope)))
    }

    /// States until when growth that has ended lasted.
    fn level_sentence(&self, what: &str, growth: &str) -> String {
        let until = self.level_since_step.map_or_else(
            || date(self.level_since_time.map_or(0.0, UnixTime::get)),
            |step| format!("{} {}", self.unit.noun(), grouped(step.get())),
        );
        let what = what.replacen("grows", "grew", 1);
        let full = match (self.is_full, self.is_on_host) {
            (true, true) => ": the memory is full",
            (true, false) => ": the card is full",
            (false, _) => "",
        };
        format!("{what} {growth} until {until}; level since{full}")
    }
}

impl Figures for TrendFigures {
    fn sentence(&self) -> String {
        let what = &self.what();
        let growth = bytes(self.growth_bytes);
        if self.is_level() {
            return self.level_sentence(what, &growth);
        }
        let mut text = self.rate_sentence(what, &growth);
        if let Some(held) = self.children.as_ref().and_then(|of| of.held_words(self.is_over)) {
            text = format!("{text}; {held}");
        }
        if let Some(kept) = self.kept_blocks.filter(|_| !self.is_over) {
            text = format!("{text}; {}", kept.words(self.unit));
        }
        if let Some(site) = &self.site {
            text = format!("{text}; {}", site_words::of(site, self.unit));
        }
        if let Some(held) = self.held_words() {
            text = format!("{text}; {held}");
        }
        if self.ends() || self.is_over {
            let after = self.run_end.filter(|_| self.is_over).and_then(|end| end.words_after());
            return after.map_or_else(|| text.clone(), |after| format!("{text}; {after}"));
        }
        let of = self.container.as_ref().map_or_else(String::new, |of| of.words());
        let stalled = self.stalled_seconds.map_or_else(String::new, |seconds| {
            let what =
                if self.onset_step.is_some() { self.unit.as_label() } else { "readings" };
            format!("; no {what} for {}", duration(seconds))
        });
        if self.headroom_bytes == Some(0.0) {
            return format!("{text}; nothing{of} is left{stalled}");
        }
        let run_end = self.run_end.map_or_else(String::new, |end| format!("; {}", end.words()));
        let is_known = self.oom_eta_seconds.or(self.oom_eta_steps).is_some();
        let (seconds, steps) = if is_known {
            (self.oom_eta_seconds, self.oom_eta_steps)
        } else {
            (self.oom_eta_lower_seconds, self.oom_eta_lower_steps)
        };
        if let Some(headroom) = self.headroom_bytes {
            let has_least_only = !is_known && seconds.or(steps).is_some();
            let likely = if has_least_only { "likely " } else { "" };
            text = format!("{text}; {likely}{}{of} left", bytes(headroom));
        }
        let eta = match (seconds, steps) {
            (Some(seconds), steps) => {
                let left = if is_known { time_left(seconds) } else { least_time_left(seconds) };
                // A lower bound of less than a second is of no use, in steps neither.
                let steps = steps.filter(|_| is_known || seconds >= 1.0);
                let steps = steps.map_or_else(String::new, |n| {
                    format!(" ({})", counted(n, self.unit.noun()))
                });
                format!(", out of memory in {left}{steps}")
            }
            (None, Some(steps)) => {
                let about = if is_known { "about" } else { "at least" };
                let (noun, steps) = (self.unit.noun(), counted(steps, self.unit.noun()));
                format!(
                    ", out of memory in {about} {steps}; how long a {noun} takes is not known yet"
                )
            }
            (None, None) => String::new(),
        };
        text + &eta + &stalled + &run_end
    }

    fn score(&self) -> Score {
        Score { metric: self.signal.as_label(), value: self.growth_bytes }
    }

    fn growth(&self) -> Option<&TrendFigures> {
        Some(self)
    }

    fn advice(&self) -> Option<String> {
        if self.is_of_container() {
            return Some(CONTAINER_ADVICE.to_owned());
        }
        if self.is_level() {
            let advice = match (self.is_full, self.signal) {
                (false, _) => LEVEL_ADVICE,
                (true, Signal::Allocated) if !self.unit.is_steps() => SERVER_FULL_ADVICE,
                (true, signal) => full_advice(signal),
            };
            return Some(advice.to_owned());
        }
        if self.ends() {
            return Some(FILLING_ADVICE.to_owned());
        }
        if self.is_run_first() {
            return Some(RUN_FIRST_ADVICE.to_owned());
        }
        if let Some(children) = &self.children {
            return Some(children.advice().to_owned());
        }
        let seen = site_words::Seen {
            site: self.site.as_deref(),
            holder: self.holder.as_deref(),
            steps_per_event: self.steps_per_event,
            unit: self.unit,
        };
        let freed =
            || self.malloc.as_ref().filter(|of| of.is_freed()).map(|of| of.advice().to_owned());
        let searched = || {
            let search = self.searched.as_ref()?;
            Some(site_words::without_tensors(search, self.is_on_host))
        };
        let known = seen.advice().or_else(freed).or_else(searched);
        known.or_else(|| self.advice_without_steps().map(str::to_owned))
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        use crate::diagnosis::examples::{
            bytes, count, empty_search, filling, holder, line, malloc, run_end, text,
        };
        use crate::diagnosis::kept_blocks::{KeptBlocks, KeptState};
        use crate::diagnosis::trend_figures::ContainerFigures;
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
            steps_per_event: Some(30.5),
            unit: StepUnit::Calls,
        }]
    }
}
