//! The pages of `stepmem snapshot diff` and `stepmem snapshot ranks`.

use crate::analyze::diff::{DeviceDiff, Diff};
use crate::analyze::ranks::{ComparedAt, RANKS_MIN, RankRow, Ranks};
use crate::integer::signed_real;
use crate::render::layout::{line, wrapped};
use crate::render::text::WIDTH;
use crate::render::words;
use stepmem_types::format::clean::{clean, shortened};
use stepmem_types::format::units::{bytes, grouped, signed_bytes, whole_bytes};

/// Characters of a file's name.
const FILE_CHARS: usize = 60;

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
        for note in &device.notes {
            page.push_str(&wrapped(&note.text, "  ", WIDTH));
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
    page.push_str(&wrapped(
        "Next: `stepmem snapshot show AFTER` shows whether the line that grew most goes on growing.",
        "",
        WIDTH,
    ));
    page
}

/// The lines that hold more, and those that hold less.
fn changes(page: &mut String, device: &DeviceDiff, top: usize) {
    let changed: Vec<_> = device.sites.iter().filter(|site| site.growth_bytes != 0).collect();
    let (grown, shrunk): (Vec<_>, Vec<_>) =
        changed.into_iter().partition(|site| site.growth_bytes > 0);
    line(page, format_args!("\n{:>12}  {:>10}  {:>10}   line", "growth", "before", "after"));
    for site in grown.iter().take(top).chain(shrunk.iter().rev().take(top)) {
        line(
            page,
            format_args!(
                "{:>12}  {:>10}  {:>10}   {}",
                signed_bytes(signed_real(site.growth_bytes)),
                whole_bytes(site.before_bytes),
                whole_bytes(site.after_bytes),
                site.site.name()
            ),
        );
    }
    if grown.is_empty() && shrunk.is_empty() {
        line(page, format_args!("  no line holds more or less"));
    }
    let n_more = grown.len().saturating_sub(top) + shrunk.len().saturating_sub(top);
    if n_more > 0 {
        line(page, format_args!("  and {n_more} more lines (--top N shows them)"));
    }
}

/// Which rank differs.
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
        line(
            &mut page,
            format_args!(
                "  rank {:>4}  {:>10} {when:10}  (median {})  {}",
                entry.rank,
                whole_bytes(entry.bytes),
                bytes(entry.median_bytes),
                entry.site.name()
            ),
        );
    }
    page.push_str(&wrapped(
        "Next: `stepmem snapshot show` of that rank's file; `diff` of it against another's compares all lines.",
        "",
        WIDTH,
    ));
    page
}

/// Two ranks side by side, by line and by category.
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
        line(page, format_args!("{by:>12}  {a:>10}  {b:>10}   {when:10}  {}", row.site.name()));
    }
    let n_more = ranks.differences.len().saturating_sub(top);
    if n_more > 0 {
        line(page, format_args!("  and {n_more} more lines (--top N shows them)"));
    }
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
    let file = shortened(&row.file, FILE_CHARS);
    if let Some(error) = &row.error {
        line(page, format_args!("{:>6}  {file}: {}", row.rank, clean(error)));
        return;
    }
    let shown = |size: Option<u64>| size.map(whole_bytes).unwrap_or_default();
    let (peak, end) = (shown(row.peak_bytes), shown(row.end_bytes));
    let reserved = shown(row.reserved_bytes);
    line(page, format_args!("{:>6}  {peak:>10}  {end:>10}  {reserved:>10}  {file}", row.rank));
}
