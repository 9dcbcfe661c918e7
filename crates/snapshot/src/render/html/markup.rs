//! Pieces of markup that documents share: lists of frames, tables, bars.

use std::fmt::Arguments;

use crate::render::html::escape::escaped;

/// Adds markup: what is not a literal of ours has been escaped.
pub(crate) fn add(html: &mut String, markup: Arguments<'_>) {
    html.push_str(&markup.to_string());
    html.push('\n');
}

/// A list of frames, innermost first.
pub(crate) fn stack(html: &mut String, frames: &[String]) {
    if frames.is_empty() {
        return;
    }
    html.push_str("<ol class=\"frames\">");
    for frame in frames {
        add(html, format_args!("<li>{}</li>", escaped(frame)));
    }
    html.push_str("</ol>\n");
}

/// Begins a table; all columns but the last are figures.
pub(crate) fn open(html: &mut String, title: &str, heads: &[&str]) {
    let (last, figures) = heads.split_last().unwrap_or((&"", &[]));
    add(html, format_args!("<h3>{title}</h3>\n<div class=\"box\"><table>\n<thead><tr>"));
    for head in figures {
        add(html, format_args!("<th class=\"num\" scope=\"col\">{head}</th>"));
    }
    add(html, format_args!("<th scope=\"col\">{last}</th></tr></thead>\n<tbody>"));
}

/// Ends a table.
pub(crate) fn close(html: &mut String) {
    html.push_str("</tbody></table></div>\n");
}

/// A line, with its frames behind it.
pub(crate) fn line_with(name: &str, frames: &[String]) -> String {
    if frames.is_empty() {
        return escaped(name);
    }
    let mut line = format!("<details><summary>{}</summary>", escaped(name));
    stack(&mut line, frames);
    line.push_str("</details>");
    line
}
