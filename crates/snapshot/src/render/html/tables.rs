//! The verdicts and tables of a device: the same answers as the page for a terminal, and what
//! the pictures show in words.

use crate::analyze::categories;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::leak::LeakVerdict;
use crate::analyze::pinned::Pinned;
use crate::analyze::pools::{PoolSums, Totals};
use crate::analyze::sites::{SiteRow, Sum};
use crate::integer::count;
use crate::render::html::bands::frames;
use crate::render::html::detail::Detail;
use crate::render::html::escape::{escaped, with_code};
use crate::render::html::markup::{add, close, line_with, open, stack};
use crate::render::json::row_answer;
use crate::render::layout::part_of;
use crate::render::words;
use stepmem_types::format::units::{bytes, grouped, whole_bytes};

/// Everything about a device but its pictures' data.
pub(crate) fn device(report: &DeviceReport<'_>, detail: Detail) -> String {
    let mut html = String::new();
    let index = report.scene.device.index;
    add(&mut html, format_args!("<section id=\"device-{index}\">\n<h2>Device {index}</h2>"));
    head(&mut html, report);
    verdicts(&mut html, report, detail);
    if !report.scene.events.is_empty() {
        add(
            &mut html,
            format_args!(
                "<h3>Timeline</h3>\n<div class=\"panel timeline\" data-timeline=\"{index}\">The tables below hold the same figures.</div>"
            ),
        );
        add(
            &mut html,
            format_args!(
                "<h3>Events</h3>\n<div class=\"panel events\" data-events=\"{index}\"><code>stepmem snapshot events</code> lists every allocation and free.</div>"
            ),
        );
    }
    if report.totals.segments > 0 {
        add(
            &mut html,
            format_args!(
                "<h3>Segments</h3>\n<div class=\"panel segments\" data-segments=\"{index}\">The tables below hold the same figures.</div>"
            ),
        );
    }
    holders(&mut html, report, detail);
    steps(&mut html, report, detail);
    unused(&mut html, report, detail);
    private_pools(&mut html, &report.pools, detail);
    notes(&mut html, report);
    html.push_str("</section>\n");
    html
}

fn head(html: &mut String, report: &DeviceReport<'_>) {
    let totals = report.totals;
    add(
        html,
        format_args!(
            "<p>{} active of {} reserved, {} live blocks in {} segments; tensors requested {}. {} events, {}.</p>",
            whole_bytes(totals.active),
            whole_bytes(totals.reserved),
            grouped(totals.live_blocks),
            grouped(totals.segments),
            whole_bytes(totals.requested),
            grouped(count(report.scene.events.len())),
            words::steps(&report.scene),
        ),
    );
}

fn verdicts(html: &mut String, report: &DeviceReport<'_>, detail: Detail) {
    html.push_str("<div class=\"verdicts\">\n");
    leak(html, report, detail);
    for failure in report.oom.iter().take(3) {
        let place = words::failure_place(report, failure);
        add(
            html,
            format_args!(
                "<div class=\"verdict is-bad\"><h3>Out of memory</h3><p>{} requested at event {}, {}.</p><p>{}</p>",
                whole_bytes(failure.requested),
                grouped(failure.event.into()),
                escaped(&place),
                escaped(words::reason(report, failure).words()),
            ),
        );
        for (size, name) in words::device_figures(failure, None) {
            add(html, format_args!("<p>{} {}</p>", whole_bytes(size), escaped(&name)));
        }
        stack(html, &frames(report, failure.stack, detail.frames));
        html.push_str("</div>\n");
    }
    peak(html, report);
    html.push_str("</div>\n");
    add(
        html,
        format_args!(
            "<p class=\"next\">Next: {}</p>",
            with_code(words::advice(report).words())
        ),
    );
}

fn peak(html: &mut String, report: &DeviceReport<'_>) {
    let peak = report.scene.timeline.peak;
    let moment = report.moment(peak.state);
    let event = match moment.event {
        Some(event) => format!("at event {}", grouped(event.into())),
        None => "before the first event".to_owned(),
    };
    let step = moment.step.map_or_else(String::new, |step| format!(", in step {step}"));
    add(
        html,
        format_args!(
            "<div class=\"verdict\"><h3>Peak</h3><p>{} active of {} reserved, {event}{step}.</p>",
            whole_bytes(peak.active),
            whole_bytes(peak.reserved),
        ),
    );
    for row in report.at_peak.iter().take(3) {
        add(
            html,
            format_args!(
                "<p>{} {}: {}</p>",
                part_of(row.sum.bytes, peak.active),
                whole_bytes(row.sum.bytes),
                escaped(&words::name_in(&report.scene, row.site, Some(peak.state))),
            ),
        );
    }
    html.push_str("</div>\n");
}

fn leak(html: &mut String, report: &DeviceReport<'_>, detail: Detail) {
    let leak = &report.leak;
    if leak.verdict != LeakVerdict::Leak {
        let is_good = leak.verdict == LeakVerdict::None && leak.possible.is_empty();
        let tone = if is_good { " is-good" } else { "" };
        let text = escaped(words::no_leak(report).words());
        add(
            html,
            format_args!("<div class=\"verdict{tone}\"><h3>Leak</h3><p>{text}</p></div>"),
        );
        return;
    }
    let blamed = words::blamed(report);
    let rate = bytes(leak.rate.unwrap_or(0.0));
    let name = escaped(&blamed.name);
    add(
        html,
        format_args!("<div class=\"verdict is-bad\"><h3>Leak: {rate} a step, at {name}</h3>"),
    );
    let outer = frames(report, blamed.origin, detail.frames);
    stack(html, outer.get(blamed.skipped.saturating_sub(1)..).unwrap_or(&[]));
    for text in [words::explained(report), words::unfilled(report)].into_iter().flatten() {
        add(html, format_args!("<p>{}</p>", escaped(text.words())));
    }
    for suspect in leak.suspects.iter().take(5) {
        add(
            html,
            format_args!(
                "<p>{} a step: {}; {} of {} allocations stay.</p>",
                bytes(suspect.rise.rate),
                escaped(&words::name_of(&report.scene, suspect.row.site)),
                grouped(suspect.n_survivors),
                grouped(suspect.n_allocations),
            ),
        );
    }
    html.push_str("</div>\n");
}

fn holders(html: &mut String, report: &DeviceReport<'_>, detail: Detail) {
    let peak = report.scene.timeline.peak.state;
    let mut table = |title, rows, state| {
        table_of(html, report, &HolderTable { title, rows, state, detail });
    };
    table("Who holds the memory at the end", &report.at_end, None);
    if !report.scene.events.is_empty() {
        table("Who held the memory at the peak", &report.at_peak, Some(peak));
    }
    for failure in report.oom.iter().take(1) {
        table("Who held the memory when it ran out", &failure.rows, Some(failure.event));
    }
    let at_peak = categories::sums(&report.scene, &report.categories, Some(peak));
    open(html, "By category", &["At the end", "At the peak", "Category"]);
    for ((name, end), (_, peak)) in
        report.categories_at_end.named().into_iter().zip(at_peak.named())
    {
        if *end > 0 || *peak > 0 {
            add(
                html,
                format_args!(
                    "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{name}</td></tr>",
                    whole_bytes(*end),
                    whole_bytes(*peak),
                ),
            );
        }
    }
    close(html);
}

/// The lines that hold the memory at a moment.
struct HolderTable<'a> {
    title: &'a str,
    rows: &'a [SiteRow],
    /// The state that it is of; `None` for the end.
    state: Option<u32>,
    detail: Detail,
}

fn table_of(html: &mut String, report: &DeviceReport<'_>, table: &HolderTable<'_>) {
    let HolderTable { title, rows, state, detail } = table;
    let total: u64 = rows.iter().map(|row| row.sum.bytes).sum();
    let title = format!("{title} ({})", whole_bytes(total));
    open(html, &title, &["Share", "Bytes", "Tensors", "Blocks", "Line"]);
    for row in rows.iter().take(detail.rows) {
        let frames = frames(report, row.origin, detail.frames);
        let line = line_with(&words::name_in(&report.scene, row.site, *state), &frames);
        sum(html, (row.sum, total), &line);
    }
    others(html, (rows, total), *detail);
    close(html);
}

/// The row of the lines that have none.
fn others(html: &mut String, (rows, total): (&[SiteRow], u64), detail: Detail) {
    let mut others = Sum::default();
    rows.iter().skip(detail.rows).for_each(|row| others.join(row.sum));
    if others.blocks > 0 {
        let name = format!("{} others", grouped(count(rows.len() - detail.rows)));
        sum(html, (others, total), &name);
    }
}

fn sum(html: &mut String, (sum, total): (Sum, u64), line: &str) {
    add(
        html,
        format_args!(
            "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{line}</td></tr>",
            part_of(sum.bytes, total),
            whole_bytes(sum.bytes),
            whole_bytes(sum.requested),
            grouped(sum.blocks),
        ),
    );
}

fn steps(html: &mut String, report: &DeviceReport<'_>, detail: Detail) {
    let n_stages = report.step_reports.len();
    if n_stages == 0 {
        return;
    }
    let skipped = n_stages.saturating_sub(detail.rows);
    let title = if skipped > 0 {
        format!("Steps: the last {} of {}", n_stages - skipped, grouped(count(n_stages)))
    } else {
        "Steps".to_owned()
    };
    open(html, &title, &["Step", "Peak", "At its end", "Allocated", "Phase of the peak"]);
    for step_report in report.step_reports.iter().skip(skipped) {
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td></tr>",
                step_report.step,
                whole_bytes(step_report.peak_bytes),
                whole_bytes(step_report.end_bytes),
                whole_bytes(step_report.allocated_bytes),
                words::phase(step_report.peak_phase),
            ),
        );
    }
    close(html);
}

fn unused(html: &mut String, report: &DeviceReport<'_>, detail: Detail) {
    open(html, "Fragmentation, at the end", &["Bytes", "What they are"]);
    for (figure, meaning) in words::unused(report) {
        let figure = whole_bytes(figure);
        add(html, format_args!("<tr><td class=\"num\">{figure}</td><td>{meaning}</td></tr>"));
    }
    close(html);
    let pinners: Vec<_> =
        report.fragmentation.pinners.iter().filter(|(_, share)| *share > 0).collect();
    if pinners.is_empty() {
        return;
    }
    open(html, "What strands them", &["Stranded", "Blocks", "Their bytes", "Line"]);
    for (row, share) in pinners.into_iter().take(detail.rows.min(12)) {
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td></tr>",
                whole_bytes(*share),
                grouped(row.sum.blocks),
                whole_bytes(row.sum.bytes),
                escaped(&words::name_in(&report.scene, row.site, None)),
            ),
        );
    }
    close(html);
}

/// The pools whose memory nothing else can use.
fn private_pools(html: &mut String, pools: &[PoolSums], detail: Detail) {
    let private: Vec<&PoolSums> = pools.iter().filter(|pool| pool.is_private()).collect();
    if private.is_empty() {
        return;
    }
    open(html, "Private pools", &["Reserved", "Active", "Segments", "Pool"]);
    let row = |html: &mut String, totals: Totals, name: &str| {
        add(
            html,
            format_args!(
                "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{name}</td></tr>",
                whole_bytes(totals.reserved),
                whole_bytes(totals.active),
                grouped(totals.segments),
            ),
        );
    };
    for pool in private.iter().take(detail.rows) {
        row(html, pool.totals, &words::pool(pool));
    }
    let mut others = Totals::default();
    private.iter().skip(detail.rows).for_each(|pool| others.join(pool.totals));
    if others.segments > 0 {
        let n_others = grouped(count(private.len() - detail.rows));
        row(html, others, &format!("{n_others} others"));
    }
    close(html);
    let texts = [Some(words::PRIVATE_POOLS.to_owned()), words::pools_of_graphs(pools)];
    for text in texts.into_iter().flatten() {
        add(html, format_args!("<p>{text}</p>"));
    }
}

/// Everything about the host's pinned memory.
pub(crate) fn pinned(host: &Pinned<'_>, detail: Detail) -> String {
    let mut html =
        String::from("<section id=\"pinned\">\n<h2>Pinned memory of the host</h2>\n");
    for text in words::pinned(host) {
        add(&mut html, format_args!("<p>{text}.</p>"));
    }
    let total = host.totals.active;
    if !host.rows.is_empty() {
        let title = format!("Who holds it at the end ({})", whole_bytes(total));
        open(&mut html, &title, &["Share", "Bytes", "Tensors", "Blocks", "Line"]);
        for row in host.rows.iter().take(detail.rows) {
            let site = row_answer(host.snapshot, host.sites, row);
            let line = line_with(&site.name(), &site.frames(detail.frames));
            sum(&mut html, (row.sum, total), &line);
        }
        others(&mut html, (&host.rows, total), detail);
        close(&mut html);
    }
    private_pools(&mut html, &host.pools, detail);
    html.push_str("</section>\n");
    html
}

fn notes(html: &mut String, report: &DeviceReport<'_>) {
    html.push_str("<h3>Notes</h3>\n<ul class=\"notes\">\n");
    for note in &report.notes {
        add(html, format_args!("<li>{}</li>", escaped(words::note(note).words())));
    }
    html.push_str("</ul>\n");
}
