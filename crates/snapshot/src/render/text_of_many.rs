//! The pages of `stepmem snapshot diff` and `stepmem snapshot ranks`.

use crate::analyze::births::Births;
use crate::analyze::diff::{DeviceDiff, Diff};
use crate::analyze::leak::LeakVerdict;
use crate::analyze::ranks::{ComparedAt, RANKS_MIN, RankRow, Ranks};
use crate::integer::signed_real;
use crate::render::born;
use crate::render::layout::{line, wrapped};
use crate::render::text::{WIDTH, width_left};
use crate::render::words;
use stepmem_types::format::clean::clean;
use stepmem_types::format::units::{bytes, grouped, many, signed_bytes, whole_bytes};

/// Frames of a stack that are shown.
const FRAMES: usize = 6;
/// Characters of a file's name.
const FILE_CHARS: usize = 36;

/// Shows the growth between two files.
pub fn diff(diff: &Diff, top: usize) -> String {
    let mut page = String::new();
    for device in &diff.devices {
        line(
            &mut page,
            format_args!(
                "device {}: {} active, {} reserved",
                device.device,
                signed_bytes(signed_real(device.growth_bytes)),
                signed_bytes(signed_real(device.reserved_growth_bytes))
            ),
        );
        if let (Some(new), Some(gone)) = (device.new_blocks, device.gone_blocks) {
            line(
                &mut page,
                format_args!("  {} new blocks, {} gone", grouped(new), grouped(gone)),
            );
        }
        if let (Some(n_steps), Some(rate)) =
            (device.steps_between, device.growth_bytes_per_step)
        {
            let (rate, steps) = (signed_bytes(rate), many(n_steps, "step"));
            line(&mut page, format_args!("  {rate} a step, over {steps}"));
        }
        for note in &device.notes {
            page.push_str(&wrapped(&note.text, "  ", WIDTH));
        }
        if let Some(births) = &device.births {
            born(&mut page, births, top);
        }
        if device.is_equal() {
            page.push('\n');
            continue;
        }
        changes(&mut page, device, top);
        line(&mut page, format_args!("\nby category"));
        for (name, growth) in device.categories.named() {
            if *growth != 0 {
                line(
                    &mut page,
                    format_args!("{:>12}  {name}", signed_bytes(signed_real(*growth))),
                );
            }
        }
        page.push('\n');
    }
    if diff.devices.iter().all(DeviceDiff::is_equal) {
        page.truncate(page.trim_end().len());
        page.push('\n');
        return page;
    }
    let is_leak = |device: &DeviceDiff| {
        device.births.as_ref().is_some_and(|births| births.verdict == LeakVerdict::Leak)
    };
    let next = if diff.devices.iter().any(is_leak) {
        "Next: look at the line named under Leak: something keeps what it makes."
    } else {
        "Next: `stepmem snapshot show AFTER` shows whether the line that grew most goes on growing."
    };
    page.push_str(&wrapped(next, "", WIDTH));
    page
}

/// The lines that leak by the births between states.
fn born(page: &mut String, births: &Births, top: usize) {
    line(page, format_args!("\nLeak"));
    if let (Some(rate), Some(first)) = (births.bytes_per_state, births.sites.first()) {
        let before = format!("  LEAK  {} from state to state, at ", bytes(rate));
        let name = first.site.name_within(width_left(&before));
        line(page, format_args!("{before}{name}"));
        for frame in first.site.frames(FRAMES).iter().skip(1) {
            let before = format!("{:30}from ", "");
            let frame = words::ending_of(frame, width_left(&before));
            line(page, format_args!("{before}{frame}"));
        }
    }
    for text in born::texts(births) {
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
    for found in births.sites.iter().take(top) {
        let before = format!("  {:>9} a state  ", bytes(found.bytes_per_state));
        let name = found.site.name_within(width_left(&before));
        line(page, format_args!("{before}{name}"));
        let blocks = many(found.site.blocks, "block");
        let gaps = many(u64::from(found.generations), "gap");
        line(page, format_args!("{:20}{blocks} stay, born in {gaps} between states", ""));
    }
}

/// The lines that hold more, and those that hold less.
fn changes(page: &mut String, device: &DeviceDiff, top: usize) {
    let changed: Vec<_> = device.sites.iter().filter(|site| site.growth_bytes != 0).collect();
    let (grown, shrunk): (Vec<_>, Vec<_>) =
        changed.into_iter().partition(|site| site.growth_bytes > 0);
    let a_step = if device.steps_between.is_some() {
        format!("{:>12}", "a step")
    } else {
        String::new()
    };
    line(
        page,
        format_args!("\n{:>12}{a_step}  {:>10}  {:>10}  line", "growth", "before", "after"),
    );
    for site in grown.iter().take(top).chain(shrunk.iter().rev().take(top)) {
        let rate = site.growth_bytes_per_step.map(|rate| format!("{:>12}", signed_bytes(rate)));
        let figures = format!(
            "{:>12}{}  {:>10}  {:>10}  ",
            signed_bytes(signed_real(site.growth_bytes)),
            rate.unwrap_or_default(),
            whole_bytes(site.before_bytes),
            whole_bytes(site.after_bytes),
        );
        line(page, format_args!("{figures}{}", site.site.name_within(width_left(&figures))));
    }
    if grown.is_empty() && shrunk.is_empty() {
        line(page, format_args!("  no line holds more or less"));
    }
    let n_more = grown.len().saturating_sub(top) + shrunk.len().saturating_sub(top);
    more_lines(page, n_more);
}

/// The page of the rank that differs.
pub fn ranks(ranks: &Ranks, top: usize) -> String {
    let mut page = String::new();
    line(
        &mut page,
        format_args!("{:>6}  {:>10}  {:>10}  {:>10}  file", "rank", "peak", "end", "reserved"),
    );
    for row in &ranks.ranks {
        rank(&mut page, row);
    }
    page.push('\n');
    let n_read = ranks.ranks.iter().filter(|row| row.error.is_none()).count();
    if n_read == 2 {
        two_ranks(&mut page, ranks, top);
        return page;
    }
    let Some(worst) = ranks.worst_rank else {
        page.push_str(&wrapped(words::no_odd_rank(n_read >= RANKS_MIN), "", WIDTH));
        return page;
    };
    line(&mut page, format_args!("rank {worst} stands out"));
    for entry in ranks.stand_out.iter().take(top) {
        let when = match entry.at {
            ComparedAt::End => "at the end",
            ComparedAt::Most => "at most",
        };
        let figures = format!(
            "  rank {:>4}  {:>10} {when:10}  (median {})  ",
            entry.rank,
            whole_bytes(entry.bytes),
            bytes(entry.median_bytes),
        );
        let name = entry.site.name_within(width_left(&figures));
        line(&mut page, format_args!("{figures}{name}"));
    }
    page.push_str(&wrapped(
        "Next: `stepmem snapshot show` of that rank's file; `diff` of it against another's compares all lines.",
        "",
        WIDTH,
    ));
    page
}

/// Two ranks side by side, by line and by category.
/// Names the lines that are left out, if any are.
fn more_lines(page: &mut String, n_more: usize) {
    if n_more > 0 {
        let noun = if n_more == 1 { "line" } else { "lines" };
        line(page, format_args!("  and {n_more} more {noun} (--top N shows more)"));
    }
}

fn two_ranks(page: &mut String, ranks: &Ranks, top: usize) {
    if ranks.differences.is_empty() && ranks.category_differences.is_empty() {
        page.push_str(&wrapped(words::SAME_RANKS, "", WIDTH));
        return;
    }
    let mut read = ranks.ranks.iter().filter(|row| row.error.is_none()).map(|row| row.rank);
    let names = [read.next(), read.next()].map(|rank| format!("rank {}", rank.unwrap_or(0)));
    let [first, second] = &names;
    line(page, format_args!("{:>12}  {first:>10}  {second:>10}   line", "difference"));
    for row in ranks.differences.iter().take(top) {
        let when = match row.at {
            ComparedAt::End => "at the end",
            ComparedAt::Most => "at most",
        };
        let [a, b] = row.bytes.map(whole_bytes);
        let by = signed_bytes(signed_real(row.difference_bytes));
        let figures = format!("{by:>12}  {a:>10}  {b:>10}   {when:10}  ");
        line(page, format_args!("{figures}{}", row.site.name_within(width_left(&figures))));
    }
    let n_more = ranks.differences.len().saturating_sub(top);
    more_lines(page, n_more);
    line(page, format_args!("\nby category, at the end"));
    for row in &ranks.category_differences {
        let [a, b] = row.bytes.map(whole_bytes);
        let by = signed_bytes(signed_real(row.difference_bytes));
        line(page, format_args!("{by:>12}  {a:>10}  {b:>10}   {}", row.category));
    }
    if ranks.category_differences.is_empty() {
        line(page, format_args!("  no category holds more or less"));
    }
    page.push('\n');
    page.push_str(&wrapped(words::TWO_RANKS, "", WIDTH));
}

fn rank(page: &mut String, row: &RankRow) {
    let file = words::ending_of(&clean(&row.file), FILE_CHARS);
    if let Some(error) = &row.error {
        let text = wrapped(&format!("{file}: {}", clean(error)), &format!("{:8}", ""), WIDTH);
        line(page, format_args!("{:>6}  {}", row.rank, text.trim()));
        return;
    }
    let shown = |size: Option<u64>| size.map(whole_bytes).unwrap_or_default();
    let (peak, end) = (shown(row.peak_bytes), shown(row.end_bytes));
    let reserved = shown(row.reserved_bytes);
    line(page, format_args!("{:>6}  {peak:>10}  {end:>10}  {reserved:>10}  {file}", row.rank));
}
