//! Verdicts as one HTML document, which loads nothing and runs no script.

use crate::judge::Judged;
use crate::judge::json::SourceTold;
use crate::judge::text;
use crate::series::model::Series;

/// Points of a chart.
pub const CHART_POINTS_MAX: usize = 1_024;
/// Width and height of a chart.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 160.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}\
pre{overflow-x:auto;font:13px/1.4 ui-monospace,monospace}svg{width:100%;height:auto;background:#f6f6f6}\
polyline{fill:none;stroke:#0b5cad;stroke-width:1.5}line{stroke:#b3261e;stroke-dasharray:4 3}\
@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}svg{background:#222}polyline{stroke:#7fb8ff}}";

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
        format!("<h2>{name}: {}</h2>\n{}\n", of.verdict.words(), chart(&of.series, &name))
    });
    let charts: String = charts.collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>stepmem judge</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>stepmem judge</h1>\n{charts}<pre tabindex=\"0\">{}</pre>\n</body>\n</html>\n",
        lines.join("\n")
    )
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
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">{}<polyline points=\"{}\"/></svg>",
        limit.unwrap_or_default(),
        line.join(" ")
    )
}
