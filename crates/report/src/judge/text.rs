//! Verdicts as text: a table of all series, and the stories of the worst.

use crate::explain;
use crate::judge::source::{SourceTold, real};
use crate::judge::{BY_TIME, Judged, Verdict};
use stepmem_types::claims::{Claim, Statement, Telling};
use stepmem_types::format::page::{Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, date, duration, grouped, hourly, or_unknown, time_left_cell,
};

/// Stories that are told.
pub(crate) const STORIES_MAX: usize = 16;

/// Puts the verdicts, the worst first, into words, for a terminal of so many columns.
pub fn render(sources: &[SourceTold], judged: &[Judged], columns: Option<usize>) -> String {
    let mut text = tell(sources, judged, columns).into_text();
    for judged in told(judged) {
        text.push('\n');
        text += &explain::text::render(&judged.story, columns);
    }
    text
}

/// Tells the verdicts, and what is not known, without the stories.
pub(super) fn tell(
    sources: &[SourceTold],
    judged: &[Judged],
    columns: Option<usize>,
) -> Telling {
    let mut page = Telling::on(Page::default().within(columns));
    for source in sources {
        page.say(Indent::hanging(0), source.statement());
    }
    page.blank();
    page.table(&table(judged));
    page.blank();
    for unknown in unknown(judged) {
        page.say(Indent::hanging(0), unknown);
    }
    page.say(Indent::hanging(0), Statement::new(Claim::ByTime, BY_TIME));
    page
}

/// States what is not known of some series.
fn unknown(judged: &[Judged]) -> impl Iterator<Item = Statement> {
    let n_of = |is: fn(&Judged) -> bool| {
        let n_series = judged.iter().filter(|of| is(of)).count();
        u64::try_from(n_series).ok().filter(|n_series| *n_series > 0)
    };
    let stated =
        |claim, n_series: u64, words: String| Statement::new(claim, words).of(real(n_series));
    let without_capacity = n_of(|of| of.series.capacity.is_none()).map(|n_series| {
        let words = format!(
            "No capacity is known of {} series: their growth is weighed against 80 GiB, and no time left is known. Give --capacity.",
            grouped(n_series)
        );
        stated(Claim::SeriesNoCapacity, n_series, words)
    });
    let guessed = n_of(|of| of.series.is_unit_guessed).map(|n_series| {
        let words = format!(
            "Nothing names the unit of {} series: figures of their size are taken as bytes. Give --unit.",
            grouped(n_series)
        );
        stated(Claim::UnitGuessed, n_series, words)
    });
    let short = judged.iter().find(|of| of.verdict == Verdict::TooShort);
    let short = short.zip(n_of(|of| of.verdict == Verdict::TooShort)).map(|(of, n_series)| {
        let [loading, judging] = of.needs.map(duration);
        let words = format!(
            "Too short: {} series. The first {loading} count as loading (--creep.process-warmup), and a verdict takes {judging} more.",
            grouped(n_series)
        );
        stated(Claim::SeriesTooShort, n_series, words)
    });
    short.into_iter().chain(without_capacity).chain(guessed)
}

/// Returns the series whose story is told: an only one, and those that grew.
pub(super) fn told(judged: &[Judged]) -> impl Iterator<Item = &Judged> {
    let is_only = judged.len() == 1;
    let grew = move |of: &&Judged| is_only || of.verdict <= Verdict::Rising;
    judged.iter().filter(grew).take(STORIES_MAX)
}

fn table(judged: &[Judged]) -> Table {
    let mut table = Table::new([
        Column::left(2, "series").shortenable(),
        Column::left(2, "verdict"),
        Column::right(2, "grows by"),
        Column::left(2, "95% interval").droppable(3),
        Column::left(2, "since").droppable(2),
        Column::right(2, "time left"),
        Column::right(2, "capacity").droppable(4),
        Column::right(2, "samples").droppable(1),
        Column::right(2, "each").droppable(0),
    ]);
    for of in judged {
        let growth = of.growth.as_ref();
        let left = growth.filter(|_| of.verdict != Verdict::Ended).and_then(|growth| {
            time_left_cell(growth.oom_eta_seconds, growth.oom_eta_lower_seconds)
        });
        table.row([
            of.series.name(),
            of.verdict.words().to_owned(),
            or_unknown(growth.and_then(|growth| growth.slope_bytes_per_second).map(hourly)),
            or_unknown(of.interval()),
            or_unknown(growth.map(|growth| date(growth.onset_time.get()))),
            or_unknown(left),
            or_unknown(of.series.capacity.map(bytes)),
            grouped(u64::try_from(of.series.points.len()).unwrap_or(u64::MAX)),
            or_unknown(of.series.interval_seconds().map(duration)),
        ]);
    }
    table
}

impl Judged {
    /// Returns the interval of the rate of its growth.
    pub(super) fn interval(&self) -> Option<String> {
        let growth = self.growth.as_ref()?;
        let ends = growth.slope_lower_bytes_per_second.zip(growth.slope_upper_bytes_per_second);
        ends.map(|(lower, upper)| format!("{} to {}", bytes(3600.0 * lower), hourly(upper)))
    }
}
