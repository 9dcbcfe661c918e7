//! Verdicts as one HTML document, which loads nothing and runs no script.

use crate::judge::source::SourceTold;
use crate::judge::text;
use crate::judge::{Judged, Verdict};
use crate::series::Series;
use stepmem_types::format::units::{bytes, date, duration, hourly, many, time_left_cell};

/// Points of a chart.
pub(crate) const CHART_POINTS_MAX: usize = 1_024;
/// Width and height of a chart.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 160.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1,h2{overflow-wrap:anywhere}pre{overflow-x:auto;font:13px/1.4 ui-monospace,monospace}svg{width:100%;height:auto;background:#f6f6f6}\
polyline{fill:none;stroke:#0b5cad;stroke-width:1.5}line{stroke:#b3261e;stroke-dasharray:4 3}\
figure{margin:0}figcaption,.times{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1.5rem;font-size:13px}\
figcaption{justify-content:flex-start}i{display:inline-block;width:1.2em;vertical-align:middle;border-top:2px solid #0b5cad}i.limit{border-top:2px dashed #b3261e}\
@media(prefers-color-scheme:dark){i{border-color:#7fb8ff}body{color:#eee;background:#161616}svg{background:#222}polyline{stroke:#7fb8ff}}";

/// Returns the document; `escaped` writes text for an element.
pub fn document(
    sources: &[SourceTold],
    judged: &[Judged],
    escaped: impl Fn(&str) -> String,
) -> String {
    let text = text::render(sources, judged, None);
    let lines: Vec<String> = text.lines().map(&escaped).collect();
    let charts = text::told(judged).map(|of| {
        let name = escaped(&of.series.name());
        let figures = escaped(&figures(of));
        format!(
            "<h2>{name}: {}</h2>\n<p>{figures}</p>\n{}\n",
            of.verdict.words(),
            chart(&of.series, &name)
        )
    });
    let charts: String = charts.collect();
    let names: Vec<&str> = sources.iter().map(|source| &*source.name).collect();
    let title = escaped(&format!("{} · stepmem judge", names.join(", ")));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n{charts}<pre tabindex=\"0\">{}</pre>\n</body>\n</html>\n",
        lines.join("\n")
    )
}

/// Returns the figures of a verdict in a sentence.
fn figures(of: &Judged) -> String {
    let growth = of.growth.as_ref();
    let rate = growth.and_then(|growth| growth.slope_bytes_per_second);
    let interval =
        of.interval().map_or_else(String::new, |ends| format!(" (95% interval {ends})"));
    let since = growth.map(|growth| format!("since {}", date(growth.onset_time.get())));
    let left = growth.filter(|_| of.verdict != Verdict::Ended).and_then(|growth| {
        time_left_cell(growth.oom_eta_seconds, growth.oom_eta_lower_seconds)
    });
    let n_samples = u64::try_from(of.series.points.len()).unwrap_or(u64::MAX);
    let parts = [
        rate.map(|rate| format!("grows by {}{interval}", hourly(rate))),
        since,
        left.map(|left| format!("time left {left}")),
        Some(many(n_samples, "sample")),
        of.series.interval_seconds().map(|each| format!("one each {}", duration(each))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Draws a series from 0 to its capacity, or to its greatest value; the largest of the points
/// that share a place.
fn chart(series: &Series, name: &str) -> String {
    let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
        return String::new();
    };
    let greatest = series.points.iter().map(|point| point.bytes).fold(1.0, f64::max);
    let top = series.capacity.unwrap_or(0.0).max(greatest) * 1.02;
    let length = (last.time - first.time).max(1.0);
    let n_each = series.points.len().div_ceil(CHART_POINTS_MAX).max(1);
    let line: Vec<String> = series
        .points
        .chunks(n_each)
        .filter_map(|part| part.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes)))
        .map(|point| {
            let x = WIDTH * (point.time - first.time) / length;
            format!("{x:.1},{:.1}", HEIGHT * (1.0 - point.bytes / top))
        })
        .collect();
    let limit = series.capacity.map(|capacity| {
        let y = HEIGHT * (1.0 - capacity / top);
        format!("<line x1=\"0\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>")
    });
    let of_limit = series.capacity.map_or_else(String::new, |capacity| {
        format!("<span><i class=\"limit\"></i> capacity {}</span>", bytes(capacity))
    });
    let (top, from, to) = (bytes(top), date(first.time), date(last.time));
    format!(
        "<figure><figcaption><span><i></i> memory, 0 to {top}</span>{of_limit}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">{}<polyline points=\"{}\"/></svg>\n\
         <div class=\"times\"><span>{from} UTC</span><span>{to} UTC</span></div></figure>",
        limit.unwrap_or_default(),
        line.join(" ")
    )
}
