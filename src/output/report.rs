//! The page as one document of a run, which needs no exporter and no network.

use stepmem_snapshot::html::{escaped, hash};

use crate::output::page;

/// The contents of a report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    pub run: &'a str,
    /// The card of the run's summary.
    pub card: &'a str,
    /// A sentence about the file, below the card.
    pub about: &'a str,
    /// Status and past as JSON for a `script` element.
    pub recorded: &'a str,
}

impl Report<'_> {
    /// Writes the document. Its policy lets its own style and scripts run, and nothing load.
    pub fn document(&self) -> String {
        let Self { run, card, about, recorded } = *self;
        let policy = format!(
            "default-src 'none'; img-src data:; style-src '{}'; script-src '{}' '{}'; base-uri 'none'; form-action 'none'",
            hash(page::STYLE),
            hash(page::CHARTS),
            hash(page::SCRIPT),
        );
        let head = format!(
            "<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">",
        );
        let card = format!(
            "<section id=\"card\" aria-labelledby=\"card-head\">\n\
             <div class=\"head\"><h2 id=\"card-head\">Summary</h2></div>\n\
             <pre class=\"card\" tabindex=\"0\">{}</pre>\n<p class=\"note\">{}</p>\n</section>\n",
            escaped_lines(card),
            escaped(about),
        );
        let data =
            format!("<script type=\"application/json\" id=\"recorded\">{recorded}</script>");
        let changes = [
            ("<meta charset=\"utf-8\">", head),
            ("<title>stepmem</title>", format!("<title>{} · stepmem</title>", escaped(run))),
            (STYLE_LINK, format!("<style>{}</style>", page::STYLE)),
            (CHARTS_LINK, format!("<script>{}</script>", page::CHARTS)),
            (SCRIPT_LINK, format!("<script type=\"module\">{}</script>", page::SCRIPT)),
            ("<body>", "<body class=\"is-report\">".to_owned()),
            ("href=\"./\"", "href=\"#\"".to_owned()),
            ("<section id=\"findings\"", format!("{card}<section id=\"findings\"")),
            ("</body>", format!("{data}\n</body>")),
        ];
        let mut document = String::new();
        let mut rest = page::INDEX;
        for (place, replacement) in changes {
            let (before, after) = rest.split_once(place).unwrap_or((rest, ""));
            document.extend([before, &replacement]);
            rest = after;
        }
        document + rest
    }
}

const STYLE_LINK: &str = "<link rel=\"stylesheet\" href=\"page/style.css\">";
const CHARTS_LINK: &str = "<script src=\"page/uplot.js\" defer></script>";
const SCRIPT_LINK: &str = "<script type=\"module\" src=\"page/main.js\"></script>";

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}
