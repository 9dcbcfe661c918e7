//! The document: head, style, tables, data, script. Its policy lets exactly this style and this
//! script run, and nothing load.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use crate::analyze::device_report::DeviceReport;
use crate::analyze::pinned::Pinned;
use crate::render::html::blocks::BlockTable;
use crate::render::html::detail::Detail;
use crate::render::html::escape::{data, escaped};
use crate::render::html::picture::DevicePicture;
use crate::render::html::tables;
use crate::render::text::ShownMoment;
use stepmem_types::format::units::grouped;

/// Bytes of a document at most, whatever the snapshot's size.
pub(crate) const BYTES_MAX: usize = 5_000_000;

const STYLE: &str = include_str!("page.css");
/// ES modules, each after those that it imports.
const MODULES: [&str; 11] = [
    include_str!("format.js"),
    include_str!("dom.js"),
    include_str!("colors.js"),
    include_str!("view.js"),
    include_str!("stack.js"),
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("blocks.js"),
    include_str!("events.js"),
    include_str!("segments.js"),
    include_str!("main.js"),
];

/// The subject of a document.
#[derive(Clone, Copy, Debug)]
pub struct DocumentHead<'a> {
    /// The name of the snapshot's file.
    pub name: &'a str,
    /// The file's size and protocol.
    pub about: &'a str,
    /// The moment near which everything is shown.
    pub moment: ShownMoment,
}

/// Writes the document of some devices, and of the host's pinned memory.
///
/// # Errors
/// A picture has no JSON.
pub fn write(
    head: DocumentHead<'_>,
    reports: &[DeviceReport<'_>],
    host: Option<&Pinned<'_>>,
) -> Result<String, serde_json::Error> {
    fitted(reports.len(), |detail, n_shown| {
        let shown = reports.get(..n_shown).unwrap_or(reports);
        assemble(head, (shown, host), (detail, reports.len() - n_shown))
    })
}

/// A document that is not too large: of all parts in less and less detail, then of fewer of
/// them.
///
/// # Errors
/// Those of `assemble`.
pub(crate) fn fitted<E>(
    n_parts: usize,
    assemble: impl Fn(Detail, usize) -> Result<String, E>,
) -> Result<String, E> {
    let mut detail = Detail::of(n_parts);
    let mut n_shown = n_parts;
    loop {
        let document = assemble(detail, n_shown)?;
        if document.len() <= BYTES_MAX || n_shown == 0 {
            return Ok(document);
        }
        match detail.halved() {
            Some(less) => detail = less,
            None => n_shown /= 2,
        }
    }
}

fn assemble(
    head: DocumentHead<'_>,
    (reports, host): (&[DeviceReport<'_>], Option<&Pinned<'_>>),
    (detail, n_left): (Detail, usize),
) -> Result<String, serde_json::Error> {
    let pictures: Vec<DevicePicture> =
        reports.iter().map(|report| DevicePicture::new(report, detail, head.moment)).collect();
    let mut scripts = data_of("data", &data(pictures)?);
    let mut body: String =
        reports.iter().map(|report| tables::device(report, detail)).collect();
    if reports.is_empty() && n_left == 0 {
        body.push_str("<p>No device has segments or events.</p>\n");
    }
    body.push_str(&left_out(n_left));
    body.extend(host.map(|host| tables::pinned(host, detail)));
    let sheet = Sheet { title: head.name, about: head.about, command: "show", body: &body };
    let blocks: Vec<BlockTable> =
        reports.iter().map(|report| BlockTable::new(report, detail)).collect();
    scripts.push_str(&data_of("blocks", &data(blocks)?));
    Ok(sheet.written(&script(), &scripts))
}

/// An element that holds data.
fn data_of(id: &str, json: &str) -> String {
    format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n")
}

/// States that some devices are not shown.
pub(crate) fn left_out(n_devices: usize) -> String {
    if n_devices == 0 {
        return String::new();
    }
    format!(
        "<p>{n_devices} more devices are not in this document; --device N shows one of them.</p>\n"
    )
}

/// A document without its script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sheet<'a> {
    pub title: &'a str,
    /// The text below the title.
    pub about: &'a str,
    /// The command that writes it.
    pub command: &'a str,
    /// Markup.
    pub body: &'a str,
}

impl Sheet<'_> {
    /// The document; one whose script is empty has none. `data`: elements that hold data.
    pub(crate) fn written(&self, script: &str, data: &str) -> String {
        let allowed = if script.is_empty() { "none".to_owned() } else { hash(script) };
        let policy = format!(
            "default-src 'none'; img-src data:; style-src '{}'; script-src '{allowed}'; base-uri 'none'; form-action 'none'",
            hash(STYLE),
        );
        let (title, about) = (escaped(self.title), escaped(self.about));
        let Self { command, body, .. } = *self;
        let size = grouped(u64::try_from(BYTES_MAX).unwrap_or(0));
        let scripts = if script.is_empty() {
            String::new()
        } else {
            format!("{data}<script type=\"module\">{script}</script>\n")
        };
        format!(
            r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title} · stepmem snapshot</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="quiet">{about}</p>
{body}<footer>Written by stepmem snapshot {command}. This file loads nothing and is at most {size} bytes; whatever exceeds that is summed up.</footer>
</main>
{scripts}</body>
</html>
"#
        )
    }
}

/// The modules as one, since a document without a server has nothing to import.
fn script() -> String {
    let mut script = String::new();
    for line in MODULES.iter().flat_map(|module| module.lines()) {
        if !line.starts_with("import ") {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

/// Returns a style or a script as a policy names it.
pub fn hash(source: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, source.as_bytes())))
}
