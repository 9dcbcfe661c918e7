//! The pages of `stepmem snapshot diff` and `stepmem snapshot ranks`.

use crate::analyze::births::Births;
use crate::analyze::diff::{DeviceDiff, Diff};
use crate::analyze::ranks::{ComparedAt, RankRow, Ranks};
use crate::integer::signed_real;
use crate::render::born;
use crate::render::compared;
use crate::render::layout::{line, wrapped};
use crate::render::text::{WIDTH, width_left};
use crate::render::words;
use stepmem_types::claims::Claim;
use stepmem_types::format::units::{bytes, many, signed_bytes, whole_bytes};

/// Frames of a stack that are shown.
const FRAMES: usize = 6;

/// Shows the growth between two files.
pub fn diff(diff: &Diff, top: usize) -> String {
    let mut page = String::new();
    for device in &diff.devices {
        for (place, told) in compared::head(device).iter().enumerate() {
            let indent = if place == 0 { "" } else { "  " };
            line(&mut page, format_args!("{indent}{}", told.words()));
        }
        for note in compared::notes(device) {
            page.push_str(&wrapped(note.words(), "  ", WIDTH));
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
    if let Some(advice) = compared::diff_advice(diff) {
        page.push_str(&wrapped(advice.words(), "", WIDTH));
    } else {
        page.truncate(page.trim_end().len());
        page.push('\n');
    }
    page
}

/// The lines that leak by the births between states.
fn born(page: &mut String, births: &Births, top: usize) {
    line(page, format_args!("\nLeak"));
    if let (Some(rate), Some(first)) = (births.bytes_per_state, births.sites.first()) {
        let before = format!("  LEAK  {} from state to state, at ", bytes(rate));
        let others = born::and_others(births);
        let width = width_left(&before).saturating_sub(others.chars().count());
        line(page, format_args!("{before}{}{others}", first.site.name_within(width)));
        for frame in first.site.frames(FRAMES).iter().skip(1) {
            let before = format!("{:30}from ", "");
            let frame = words::ending_of(frame, width_left(&before));
            line(page, format_args!("{before}{frame}"));
        }
    }
    for text in born::texts(births) {
        page.push_str(&wrapped(text.words(), "  ", WIDTH));
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
    if let Some(told) = compared::no_line(device) {
        line(page, format_args!("  {}", told.words()));
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
    if compared::n_read(ranks) == 2 {
        two_ranks(&mut page, ranks, top);
        return page;
    }
    let verdict = compared::ranks_verdict(ranks);
    page.push_str(&wrapped(verdict.words(), "", WIDTH));
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
    if let Some(advice) = compared::ranks_advice(ranks) {
        page.push_str(&wrapped(advice.words(), "", WIDTH));
    }
    page
}

/// Names the lines that are left out, if any are.
fn more_lines(page: &mut String, n_more: usize) {
    if n_more > 0 {
        let noun = if n_more == 1 { "line" } else { "lines" };
        line(page, format_args!("  and {n_more} more {noun} (--top N shows more)"));
    }
}

/// Two ranks side by side, by line and by category.
fn two_ranks(page: &mut String, ranks: &Ranks, top: usize) {
    let verdict = compared::ranks_verdict(ranks);
    if verdict.claim() == Claim::RanksHoldTheSame {
        page.push_str(&wrapped(verdict.words(), "", WIDTH));
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
    if let Some(told) = compared::no_category(ranks) {
        line(page, format_args!("  {}", told.words()));
    }
    page.push('\n');
    page.push_str(&wrapped(verdict.words(), "", WIDTH));
}

fn rank(page: &mut String, row: &RankRow) {
    let file = compared::file_of(row);
    if let Some(unread) = compared::unread(row) {
        let text = wrapped(unread.words(), &format!("{:8}", ""), WIDTH);
        line(page, format_args!("{:>6}  {}", row.rank, text.trim()));
        return;
    }
    let shown = |size: Option<u64>| size.map(whole_bytes).unwrap_or_default();
    let (peak, end) = (shown(row.peak_bytes), shown(row.end_bytes));
    let reserved = shown(row.reserved_bytes);
    line(page, format_args!("{:>6}  {peak:>10}  {end:>10}  {reserved:>10}  {file}", row.rank));
}
