//! JSON lines: an object a row, whose keys are the columns. Objects in it are of `key.key`.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::series::error::SeriesError;
use crate::series::gather::Gather;
use crate::series::model::DEPTH_MAX;

/// Reads the rows. A last line that is cut short is left out.
pub(super) fn read(text: &str, gather: &mut Gather<'_>) -> Result<(), SeriesError> {
    let mut lines =
        (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).peekable();
    let is_cut = !text.ends_with('\n');
    let mut cells = Vec::new();
    while let Some((line, row)) = lines.next() {
        match serde_json::from_str::<Map<String, Value>>(row) {
            Ok(row) => {
                cells.clear();
                flatten("", row, DEPTH_MAX, &mut |name, cell| {
                    cells.push((gather.column(name)?, Cow::Owned(cell)));
                    Ok(())
                })?;
                gather.row(&cells)?;
            }
            Err(_) if is_cut && lines.peek().is_none() && line > 1 => {
                gather.left_out.is_cut = true;
            }
            Err(error) => return Err(SeriesError::line(line, &error)),
        }
    }
    Ok(())
}

/// Passes each number and text of an object to `take`, with its name.
fn flatten(
    above: &str,
    row: Map<String, Value>,
    depth: u8,
    take: &mut impl FnMut(&str, String) -> Result<(), SeriesError>,
) -> Result<(), SeriesError> {
    for (key, value) in row {
        let name = if above.is_empty() { key } else { format!("{above}.{key}") };
        match value {
            Value::Number(number) => take(&name, number.to_string())?,
            Value::String(text) => take(&name, text)?,
            Value::Object(inner) if depth > 1 => flatten(&name, inner, depth - 1, take)?,
            Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Null => {}
        }
    }
    Ok(())
}
