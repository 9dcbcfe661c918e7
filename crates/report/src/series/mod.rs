//! Series of memory over time that others have written: tables (CSV, JSON lines, logs of
//! `nvidia-smi`), event files of TensorBoard, answers of Prometheus. Bytes go in, series in
//! bytes and Unix times come out; nothing is judged here.

mod error;
mod figure;
mod gather;
mod json_lines;
mod matrix;
mod model;
mod names;
mod packed;
mod scale;
mod table;
mod tensorboard;
mod time;
mod words;

use crate::series::gather::Gather;
use crate::series::model::ROW_BYTES_MAX;

use crate::series::error::SeriesError;
pub use figure::Unit;
pub use matrix::series as decode_answer;
pub use model::{Decoded, POINTS_MAX, SERIES_MAX, Wanted};
pub(crate) use model::{Format, LeftOut, Point, Series};

/// Decodes a file, whose format its first bytes show.
///
/// # Errors
/// It has no series that are wanted, or exceeds a bound.
pub fn decode(bytes: &[u8], wanted: &Wanted) -> Result<Decoded, SeriesError> {
    let mut gather = Gather::new(wanted);
    let format = if tensorboard::is_one(bytes) {
        tensorboard::read(bytes, &mut gather)?;
        Format::TensorBoard
    } else {
        let text = table::text(bytes);
        let mut lines = (1..).zip(text.lines());
        if let Some((line, _)) = lines.find(|(_, line)| line.len() > ROW_BYTES_MAX) {
            return Err(SeriesError::LongLine(line));
        }
        let first = text.bytes().find(|byte| !byte.is_ascii_whitespace());
        if first == Some(b'{') {
            json_lines::read(&text, &mut gather)?;
            Format::JsonLines
        } else {
            table::read(&text, &mut gather)?;
            Format::Csv
        }
    };
    gather.finish(format)
}
