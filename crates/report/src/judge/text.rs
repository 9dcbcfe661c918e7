//! Verdicts as text: a table of all series, and the stories of the worst.

use crate::explain;
use crate::judge::json::SourceTold;
use crate::judge::{BY_TIME, Judged, Verdict};
use stepmem_types::format::page::{Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, date, duration, grouped, hourly, many, or_unknown, time_left_cell,
};

/// Stories that are told.
pub const STORIES_MAX: usize = 16;

/// Puts the verdicts, the worst first, into words, for a terminal of so many columns.
pub fn render(sources: &[SourceTold], judged: &[Judged], columns: Option<usize>) -> String {
    let mut page = Page::default().within(columns);
    for source in sources {
        page.paragraph(Indent::hanging(0), &source.words());
    }
    page.blank();
    page.table(&table(judged));
    page.blank();
    for words in unknown(judged) {
        page.paragraph(Indent::hanging(0), &words);
    }
    page.paragraph(Indent::hanging(0), BY_TIME);
    let mut text = page.into_text();
    for judged in told(judged) {
        text.push('\n');
        text += &explain::text::render(&judged.story, columns);
    }
    text
}

/// Returns sentences about what is not known of some series.
fn unknown(judged: &[Judged]) -> impl Iterator<Item = String> {
    let n_of = |is: fn(&Judged) -> bool| {
        let n_series = judged.iter().filter(|of| is(of)).count();
        u64::try_from(n_series).ok().filter(|n_series| *n_series > 0).map(grouped)
    };
    let without_capacity = n_of(|of| of.series.capacity.is_none()).map(|n_series| {
        format!(
            "No capacity is known of {n_series} series: their growth is weighed against 80 GiB, and no time left is known. Give --capacity."
        )
    });
    let guessed = n_of(|of| of.series.is_unit_guessed).map(|n_series| {
        format!("Nothing names the unit of {n_series} series: figures of their size are taken as bytes. Give --unit.")
    });
    let short = judged.iter().find(|of| of.verdict == Verdict::TooShort);
    let short = short.zip(n_of(|of| of.verdict == Verdict::TooShort)).map(|(of, n_series)| {
        let [loading, judging] = of.needs.map(duration);
        format!(
            "Too short: {n_series} series. The first {loading} count as loading (--creep.process-warmup), and a verdict takes {judging} more."
        )
    });
    short.into_iter().chain(without_capacity).chain(guessed)
}

/// Returns the series whose story is told: an only one, and those that grew.
pub(super) fn told(judged: &[Judged]) -> impl Iterator<Item = &Judged> {
    let is_only = judged.len() == 1;
    let grew = move |of: &&Judged| is_only || of.verdict <= Verdict::Rising;
    judged.iter().filter(grew).take(STORIES_MAX)
}

impl SourceTold {
    /// Returns the source in a sentence.
    fn words(&self) -> String {
        let n_series = grouped(u64::try_from(self.series).unwrap_or(u64::MAX));
        let left_out = &self.left_out;
        let mut words = format!("{} ({}): {n_series} series", self.name, self.format);
        for (n, noun, what) in [
            (left_out.rows_without_time, "row", "without a time"),
            (left_out.figures_unreadable, "figure", "of no size"),
            (left_out.points_repeated, "further sample", "of the same time"),
            (left_out.records_damaged, "record", "with damage"),
            (left_out.records_too_long, "record", "too long for scalars"),
        ] {
            if n > 0 {
                words.extend(["; left out: ", &many(n, noun), " ", what]);
            }
        }
        if left_out.is_cut {
            words += "; its end is missing";
        }
        words
    }
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
