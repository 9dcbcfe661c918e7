//! The log on standard error: one line for each event, whatever texts of others it repeats.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::settings::LogSettings;
use stepmem_types::format::clean::{is_raw, plain_json, shortened};
use stepmem_types::ids::Run;

/// The longest event of the log, in bytes.
pub const EVENT_BYTES_MAX: usize = 16 * 1024;
/// Characters of a text of an event in JSON that is longer.
const TEXT_CHARS_MAX: usize = 512;
/// The beginning of a sequence that colors text.
const SEQUENCE: &str = "\u{1b}[";

/// Set where the log is in JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Logs the card of a run: one event in JSON; in text, of which an event is a line, one for each
/// of its lines.
pub fn card(run: &Run, verdict: &str, card: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        tracing::info!(%run, verdict, "summary\n{card}");
        return;
    }
    tracing::info!(%run, verdict, "summary");
    card.lines().for_each(|line| tracing::info!("{line}"));
}

/// Installs the log of the process.
pub fn to_stderr(log: &LogSettings) {
    IS_JSON.store(log.is_json, Ordering::Relaxed);
    let level: LevelFilter = log.level.parse().unwrap_or(LevelFilter::INFO);
    let of_sdk = level.min(LevelFilter::WARN);
    let targets = Targets::new().with_default(level).with_target("opentelemetry_sdk", of_sdk);
    let is_colored = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(CleanLog { is_json: log.is_json })
        .with_ansi(is_colored)
        .with_target(false)
        // By default, tracing reports its own write error on standard error, and then panics.
        .log_internal_errors(false);
    if log.is_json {
        builder.json().finish().with(targets).init();
    } else {
        builder.finish().with(targets).init();
    }
}

/// Writes events to standard error, clean and of bounded length.
#[derive(Clone, Copy)]
struct CleanLog {
    is_json: bool,
}

impl MakeWriter<'_> for CleanLog {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Write for CleanLog {
    /// Takes one event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.trim_end_matches('\n');
        let line = if self.is_json { json_line(line) } else { text_line(line) };
        io::stderr().lock().write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns an event as one line without raw characters, but for the sequences that color it:
/// tracing itself escapes those of texts.
fn text_line(event: &str) -> Cow<'_, str> {
    if event.len() <= EVENT_BYTES_MAX && !event.chars().any(is_raw) {
        return Cow::Borrowed(event);
    }
    let mut line = String::with_capacity(event.len().min(EVENT_BYTES_MAX));
    let mut rest = event;
    while let Some(c) = rest.chars().next() {
        if line.len() >= EVENT_BYTES_MAX {
            line.push('…');
            break;
        }
        let (part, after) = rest.split_at_checked(n_coloring(rest)).unwrap_or_default();
        if !part.is_empty() {
            line.push_str(part);
            rest = after;
            continue;
        }
        if is_raw(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    Cow::Owned(line)
}

/// Returns the length of the sequence that colors text at the beginning; 0 without one.
fn n_coloring(text: &str) -> usize {
    let Some(rest) = text.strip_prefix(SEQUENCE) else { return 0 };
    let is_number = |c: char| c.is_ascii_digit() || c == ';';
    let numbers = rest.len() - rest.trim_start_matches(is_number).len();
    let ends = rest.get(numbers..).is_some_and(|rest| rest.starts_with('m'));
    if ends { SEQUENCE.len() + numbers + 1 } else { 0 }
}

/// Returns an event in JSON without raw characters. The texts of one that is too long are
/// shortened.
fn json_line(event: &str) -> Cow<'_, str> {
    if event.len() <= EVENT_BYTES_MAX {
        return plain_json(event);
    }
    let short = serde_json::from_str(event).map(|mut event: Value| {
        shorten(&mut event);
        event.to_string()
    });
    Cow::Owned(plain_json(&short.unwrap_or_default()).into_owned())
}

/// Shortens the texts of a value.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => *text = shortened(text, TEXT_CHARS_MAX),
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::exporter::log::{EVENT_BYTES_MAX, json_line, text_line};

    #[test]
    fn event_is_one_clean_line_with_its_colors() {
        let event = "\u{1b}[2mnow\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m a\nb\u{9b}2J\u{202e}\u{1b}]0;x\u{7}";
        let expected = "\u{1b}[2mnow\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m a\\nb\\u{9b}2J\\u{202e}\\u{1b}]0;x\\u{7}";
        assert_eq!(text_line(event), expected);
        assert!(text_line(&"x\u{9b}".repeat(1 << 20)).len() <= EVENT_BYTES_MAX + 16);
    }

    #[test]
    fn event_in_json_stays_json() {
        let of = |text: &str| serde_json::json!({ "fields": { "error": text } }).to_string();
        let line = json_line(&of("a\u{9b}b\u{202e}")).into_owned();
        assert!(line.contains("a\\u009bb\\u202e"), "{line}");
        let long = json_line(&of(&"x\u{9b}".repeat(1 << 20))).into_owned();
        assert!(long.len() <= EVENT_BYTES_MAX);
        assert!(serde_json::from_str::<serde_json::Value>(&long).is_ok(), "{long}");
    }
}
