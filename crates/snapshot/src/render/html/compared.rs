//! The documents of `stepmem snapshot diff` and `stepmem snapshot ranks`: verdicts, bars next
//! to their figures, stacks behind their lines. They have no script.

use std::cmp::Reverse;
use std::convert::Infallible;

use crate::analyze::births::Births;
use crate::analyze::diff::{DeviceDiff, Diff, SiteDiff};
use crate::analyze::ranks::{ComparedAt, RankRow, Ranks, StandOut};
use crate::integer::{count, real, signed_real};
use crate::render::born;
use crate::render::compared;
use crate::render::html::bars::{self, BarPiece};
use crate::render::html::detail::Detail;
use crate::render::html::document::{Sheet, fitted, left_out};
use crate::render::html::escape::escaped;
use crate::render::html::markup::{add, close, line_with, open, stack};
use stepmem_types::claims::Claim;
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::{bytes, grouped, signed_bytes, whole_bytes};

/// Lines of a picture with a color of their own.
const BANDS: usize = 10;
/// Characters of a file's path.
const PATH_CHARS: usize = 200;
/// Ranks of a job that a document shows at most.
const RANKS_MAX: usize = 4096;

/// The document of what grew between two files.
pub fn diff(names: [String; 2], diff: &Diff) -> String {
    let [before, after] = names;
    let Ok(document) = fitted::<Infallible>(diff.devices.len(), |detail, n_shown| {
        let shown = diff.devices.get(..n_shown).unwrap_or(&diff.devices);
        let mut body: String = shown.iter().map(|device| device_diff(device, detail)).collect();
        if diff.devices.is_empty() {
            body.push_str("<p>No device of either file has segments or events.</p>\n");
        }
        body.push_str(&left_out(diff.devices.len() - shown.len()));
        let title = format!("{before} → {after}");
        let about = "what grew between two snapshots, line by line";
        Ok(Sheet { title: &title, about, command: "diff", body: &body }.written("", ""))
    });
    document
}

fn device_diff(device: &DeviceDiff, detail: Detail) -> String {
    let mut html = String::new();
    let index = device.device;
    add(&mut html, format_args!("<section id=\"device-{index}\">\n<h2>Device {index}</h2>"));
    let [before, after] = device.totals;
    add(
        &mut html,
        format_args!(
            "<p>Active {} → {}, reserved {} → {}.</p>\n<div class=\"verdicts\">",
            whole_bytes(before.active),
            whole_bytes(after.active),
            whole_bytes(before.reserved),
            whole_bytes(after.reserved),
        ),
    );
    growth_verdict(&mut html, device, detail);
    html.push_str("</div>\n");
    stacks(&mut html, device);
    growth_table(&mut html, device, detail);
    open(&mut html, "By category", &["Growth", "Category"]);
    for (name, growth) in device.categories.named() {
        if *growth != 0 {
            let growth = signed_bytes(signed_real(*growth));
            add(
                &mut html,
                format_args!("<tr><td class=\"num\">{growth}</td><td>{name}</td></tr>"),
            );
        }
    }
    close(&mut html);
    html.push_str("</section>\n");
    html
}

fn growth_verdict(html: &mut String, device: &DeviceDiff, detail: Detail) {
    let growth = signed_bytes(signed_real(device.growth_bytes));
    add(html, format_args!("<div class=\"verdict\"><h3>{growth} active</h3>"));
    if let Some(blocks) = compared::blocks(device) {
        add(html, format_args!("<p>{}.</p>", blocks.words()));
    }
    for note in compared::notes(device) {
        add(html, format_args!("<p>{}</p>", escaped(note.words())));
    }
    html.push_str("</div>\n");
    if let Some(births) = &device.births {
        born(html, births, detail);
    }
    let Some(first) = device.sites.first().filter(|site| site.growth_bytes > 0) else { return };
    let name = escaped(&first.site.name());
    let grown = signed_bytes(signed_real(first.growth_bytes));
    add(html, format_args!("<div class=\"verdict is-bad\"><h3>{grown} at {name}</h3>"));
    stack(html, &first.site.frames(detail.frames));
    html.push_str("</div>\n");
}

/// The lines that leak by the births between states.
fn born(html: &mut String, births: &Births, detail: Detail) {
    let leak = births.bytes_per_state.zip(births.sites.first());
    let (class, title) = match leak {
        Some((rate, found)) => {
            let name = escaped(&found.site.name());
            let (rate, others) = (bytes(rate), born::and_others(births));
            (" is-bad", format!("Leak: {rate} from state to state, at {name}{others}"))
        }
        None => ("", "Leak".to_owned()),
    };
    add(html, format_args!("<div class=\"verdict{class}\"><h3>{title}</h3>"));
    if let Some((_, found)) = leak {
        stack(html, &found.site.frames(detail.frames));
    }
    for text in born::texts(births) {
        add(html, format_args!("<p>{}</p>", escaped(text.words())));
    }
    html.push_str("</div>\n");
}

/// Both files as one bar each, of the lines that hold most in either.
fn stacks(html: &mut String, device: &DeviceDiff) {
    let mut lines: Vec<&SiteDiff> = device.sites.iter().collect();
    lines.sort_by_key(|line| Reverse(line.before_bytes.max(line.after_bytes)));
    lines.truncate(BANDS);
    let [before, after] = device.totals;
    let whole = real(before.active.max(after.active));
    let of = |name: &str, total: u64, held: &dyn Fn(&SiteDiff) -> u64| {
        let mut pieces = Vec::new();
        let mut from = 0;
        for (band, line) in lines.iter().enumerate() {
            let to = from + held(line);
            let label = format!("{} {}", whole_bytes(to - from), line.site.name());
            let class = format!("band-{band}");
            pieces.push(BarPiece { from: real(from), to: real(to), class, label });
            from = to;
        }
        let label = format!("{} others", whole_bytes(total.saturating_sub(from)));
        let class = "is-rest".to_owned();
        pieces.push(BarPiece { from: real(from), to: real(total), class, label });
        format!(
            "<span>{name}</span>{}<span class=\"num\">{}</span>\n",
            bars::bar(&pieces, whole),
            whole_bytes(total)
        )
    };
    html.push_str("<h3>Before and after</h3>\n<div class=\"panel stacks\">\n");
    html.push_str(&of("before", before.active, &|line| line.before_bytes));
    html.push_str(&of("after", after.active, &|line| line.after_bytes));
    html.push_str("<ul class=\"key\">");
    for (band, line) in lines.iter().enumerate() {
        let name = escaped(&line.site.name());
        add(html, format_args!("<li>{}{name}</li>", swatch(&format!("band-{band}"))));
    }
    add(html, format_args!("<li>{}others</li></ul>\n</div>", swatch("is-rest")));
}

fn swatch(class: &str) -> String {
    format!(
        "<span class=\"swatch\"><svg width=\"11\" height=\"11\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"11\" height=\"11\" rx=\"2\"></rect></svg></span>"
    )
}

fn growth_table(html: &mut String, device: &DeviceDiff, detail: Detail) {
    let (grown, shrunk): (Vec<_>, Vec<_>) = device
        .sites
        .iter()
        .filter(|line| line.growth_bytes != 0)
        .partition(|line| line.growth_bytes > 0);
    let most =
        device.sites.iter().map(|line| line.growth_bytes.unsigned_abs()).max().unwrap_or(0);
    let total = signed_bytes(signed_real(device.growth_bytes));
    let heads = ["Growth", "Before", "After", "Blocks", "", "Line"];
    open_pictured(html, &format!("What grew and what shrank ({total})"), &heads);
    let shown = grown.iter().take(detail.rows).chain(shrunk.iter().rev().take(detail.rows));
    let mut rest = device.growth_bytes;
    for line in shown {
        rest -= line.growth_bytes;
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{:+}</td><td class=\"pictured\">{}</td><td>{}</td></tr>",
                signed_bytes(signed_real(line.growth_bytes)),
                whole_bytes(line.before_bytes),
                whole_bytes(line.after_bytes),
                line.growth_blocks,
                bars::growth(signed_real(line.growth_bytes), real(most)),
                line_with(&line.site.name(), &line.site.frames(detail.frames)),
            ),
        );
    }
    let n_others =
        grown.len().saturating_sub(detail.rows) + shrunk.len().saturating_sub(detail.rows);
    if n_others > 0 {
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td></td><td></td><td></td><td></td><td>{} others</td></tr>",
                signed_bytes(signed_real(rest)),
                grouped(count(n_others)),
            ),
        );
    }
    if grown.is_empty() && shrunk.is_empty() {
        html.push_str("<tr><td colspan=\"6\">No line holds more or less.</td></tr>\n");
    }
    close(html);
}

/// A table whose last column but one has pictures.
fn open_pictured(html: &mut String, title: &str, heads: &[&str]) {
    let mut table = String::new();
    open(&mut table, title, heads);
    html.push_str(
        &table
            .replace("<table>", "<table class=\"bars\">")
            .replace("<th class=\"num\" scope=\"col\"></th>", "<td class=\"pictured\"></td>"),
    );
}

/// The document of the ranks of a job.
pub fn ranks(ranks: &Ranks) -> String {
    let n_parts = ranks.ranks.len().min(RANKS_MAX);
    let Ok(document) = fitted::<Infallible>(1, |detail, n_shown| {
        let n_rows = if n_shown == 0 { 0 } else { n_parts * detail.rows / Detail::FULL.rows };
        let mut body = String::from("<div class=\"verdicts\">\n");
        rank_verdict(&mut body, ranks, detail);
        body.push_str("</div>\n");
        stand_out_table(&mut body, ranks, detail);
        rank_table(&mut body, ranks, n_rows.max(1));
        let title = format!("{} ranks", grouped(count(ranks.ranks.len())));
        let about = "which rank of a job differs, and in which line";
        Ok(Sheet { title: &title, about, command: "ranks", body: &body }.written("", ""))
    });
    document
}

fn rank_verdict(html: &mut String, ranks: &Ranks, detail: Detail) {
    let n_broken = ranks.ranks.iter().filter(|row| row.error.is_some()).count();
    if let Some(first) = ranks.stand_out.first() {
        add(
            html,
            format_args!(
                "<div class=\"verdict is-bad\"><h3>Rank {} stands out</h3><p>{} {}, where the median is {}: {}.</p>",
                first.rank,
                whole_bytes(first.bytes),
                when(first.at),
                bytes(first.median_bytes),
                escaped(&first.site.name()),
            ),
        );
        stack(html, &first.site.frames(detail.frames));
        html.push_str("</div>\n");
    } else {
        let verdict = compared::ranks_verdict(ranks);
        let (text, is_known) = (verdict.words(), verdict.claim() == Claim::NoOddRank);
        let tone = if is_known { " is-good" } else { "" };
        add(
            html,
            format_args!("<div class=\"verdict{tone}\"><h3>Ranks</h3><p>{text}</p></div>"),
        );
    }
    if n_broken > 0 {
        let n_broken = grouped(count(n_broken));
        add(
            html,
            format_args!(
                "<div class=\"verdict\"><h3>Files</h3><p>{n_broken} could not be read; their rows give the reason.</p></div>"
            ),
        );
    }
}

fn when(at: ComparedAt) -> &'static str {
    match at {
        ComparedAt::End => "at the end",
        ComparedAt::Most => "at most",
    }
}

fn stand_out_table(html: &mut String, ranks: &Ranks, detail: Detail) {
    if ranks.stand_out.is_empty() {
        return;
    }
    let most = ranks.stand_out.iter().map(|entry| entry.bytes).max().unwrap_or(0);
    let heads = ["Rank", "Tensors", "Median", "When", "", "Line"];
    open_pictured(html, "Lines in which a rank holds more than the others", &heads);
    for entry in ranks.stand_out.iter().take(detail.rows) {
        stand_out_row(html, entry, (most, detail));
    }
    let n_others = ranks.stand_out.len().saturating_sub(detail.rows);
    if n_others > 0 {
        let n_others = grouped(count(n_others));
        add(html, format_args!("<tr><td colspan=\"6\">{n_others} others</td></tr>"));
    }
    close(html);
}

fn stand_out_row(html: &mut String, entry: &StandOut, (most, detail): (u64, Detail)) {
    let pieces = [part("is-odd", real(entry.bytes)), part("is-usual", entry.median_bytes)];
    add(
        html,
        format_args!(
            "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"pictured\">{}</td><td>{}</td></tr>",
            entry.rank,
            whole_bytes(entry.bytes),
            bytes(entry.median_bytes),
            when(entry.at),
            bars::bar(&pieces, real(most)),
            line_with(&entry.site.name(), &entry.site.frames(detail.frames)),
        ),
    );
}

fn rank_table(html: &mut String, ranks: &Ranks, n_rows: usize) {
    let sizes = ranks.ranks.iter().flat_map(|row| [row.peak_bytes, row.reserved_bytes]);
    let most = sizes.flatten().max().unwrap_or(0);
    let heads = ["Rank", "Peak", "At the end", "Reserved", "", "File"];
    open_pictured(html, "Every rank: at the end, at its peak, reserved", &heads);
    for row in ranks.ranks.iter().take(n_rows) {
        rank_row(html, row, (most, ranks.worst_rank == Some(row.rank)));
    }
    let n_others = ranks.ranks.len().saturating_sub(n_rows);
    if n_others > 0 {
        let n_others = grouped(count(n_others));
        add(html, format_args!("<tr><td colspan=\"6\">{n_others} others</td></tr>"));
    }
    close(html);
}

fn rank_row(html: &mut String, row: &RankRow, (most, is_worst): (u64, bool)) {
    let file = escaped(&shortened(&row.file, PATH_CHARS));
    if let Some(error) = &row.error {
        let error = escaped(&shortened(error, PATH_CHARS));
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td colspan=\"4\">{error}</td><td>{file}</td></tr>",
                row.rank
            ),
        );
        return;
    }
    let [end, peak, reserved] =
        [row.end_bytes, row.peak_bytes, row.reserved_bytes].map(Option::unwrap_or_default);
    let end_class = if is_worst { "is-odd" } else { "is-usual" };
    let pieces = [("is-reserved", reserved), ("is-peak", peak), (end_class, end)]
        .map(|(class, size)| part(class, real(size)));
    let class = if is_worst { " class=\"is-worst\"" } else { "" };
    add(
        html,
        format_args!(
            "<tr{class}><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"pictured\">{}</td><td>{file}</td></tr>",
            row.rank,
            whole_bytes(peak),
            whole_bytes(end),
            whole_bytes(reserved),
            bars::bar(&pieces, real(most)),
        ),
    );
}

/// The part of a bar from its beginning.
fn part(class: &str, to: f64) -> BarPiece {
    BarPiece { to, class: class.to_owned(), ..BarPiece::default() }
}
