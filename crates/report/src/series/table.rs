//! Tables as text: CSV with commas, semicolons or tabs, which the first line names.

use std::borrow::Cow;

use csv::{ReaderBuilder, StringRecord, Trim};

use crate::series::error::SeriesError;
use crate::series::gather::Gather;

/// Returns bytes as text. They may be UTF-16, as a shell of Windows writes them; what is no
/// text is replaced.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let pairs = |bytes: &[u8], of: fn([u8; 2]) -> u16| {
        let units = bytes
            .chunks_exact(2)
            .map(|pair| <[u8; 2]>::try_from(pair).map(of).unwrap_or_default());
        let text = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
        Cow::Owned(text.collect::<String>())
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => pairs(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => pairs(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] | rest => String::from_utf8_lossy(rest),
    }
}

/// Reads the rows of a table. A line that repeats the first one is left out.
pub(super) fn read(text: &str, gather: &mut Gather<'_>) -> Result<(), SeriesError> {
    let first = text.lines().find(|line| !line.trim().is_empty()).ok_or(SeriesError::Empty)?;
    let delimiter = [b',', b'\t', b';'].into_iter().max_by_key(|delimiter| {
        (first.bytes().filter(|of| of == delimiter).count(), *delimiter == b',')
    });
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter.unwrap_or(b','))
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let of_line = |error: csv::Error| {
        SeriesError::line(error.position().map_or(0, csv::Position::line), &error)
    };
    let mut names = StringRecord::from(gather.wanted().header.clone());
    if names.is_empty() {
        reader.read_record(&mut names).map_err(of_line)?;
    }
    let columns: Vec<usize> =
        names.iter().map(|name| gather.column(name)).collect::<Result<_, _>>()?;
    let mut record = StringRecord::new();
    let mut cells = Vec::new();
    while reader.read_record(&mut record).map_err(of_line)? {
        if record == names {
            continue;
        }
        cells.clear();
        cells.extend(
            columns.iter().copied().zip(record.iter().map(|cell| Cow::Owned(cell.to_owned()))),
        );
        gather.row(&cells)?;
    }
    Ok(())
}
