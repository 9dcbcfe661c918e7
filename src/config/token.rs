//! The token of pushes, as read from its file.

use std::path::Path;

use crate::config::error::ValueError;
use crate::store::open;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// Reads the token from a file, without the white space around it.
///
/// # Errors
/// The file cannot be read, or holds no token of a fitting length.
pub fn read(path: &Path) -> Result<Vec<u8>, ValueError> {
    let shown = path.display().to_string();
    let file_bytes_max = u64::try_from(2 * TOKEN_BYTES_MAX).unwrap_or(u64::MAX);
    let bytes = match open::read_regular(path, file_bytes_max) {
        Ok(bytes) => bytes,
        Err(error) => {
            return Err(ValueError::Unreadable { path: shown, reason: error.to_string() });
        }
    };
    let token = bytes.trim_ascii();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(ValueError::Token {
            path: shown,
            bytes: token.len(),
            max: TOKEN_BYTES_MAX,
        });
    }
    Ok(token.to_vec())
}
