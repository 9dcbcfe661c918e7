//! Files of series, which others have written: reads their bytes, does not interpret them.

use std::io::Read;
use std::path::Path;

use crate::input::unpacked;
use crate::store::open::IS_DIRECTORY;

/// The largest file of series, in bytes after decompression.
pub const SERIES_BYTES_MAX: u64 = 256 << 20;
/// Size of the read buffer, in bytes.
const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Returns the bytes of a file, or of standard input as `-`; plain, or compressed with gzip or
/// zstd.
///
/// # Errors
/// The file cannot be read, is too large, or is known to be something else.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    anyhow::ensure!(!path.is_dir(), IS_DIRECTORY);
    let file = unpacked::open(path, READ_BUFFER_BYTES)?;
    let mut bytes = Vec::new();
    file.take(SERIES_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let is_short = u64::try_from(bytes.len()).is_ok_and(|n_bytes| n_bytes <= SERIES_BYTES_MAX);
    anyhow::ensure!(is_short, "its bytes, unpacked, exceed {SERIES_BYTES_MAX}");
    Ok(bytes)
}
