//! Opens a recording or a file of series, plain or compressed, by its first bytes. The error for any other file
//! names its actual kind.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::store::zstd::ZstdFrames;

/// Bytes that suffice to identify a file's format.
const HEAD_BYTES: u64 = 512;

/// Opens a file, or standard input as `-`.
///
/// # Errors
/// The file cannot be opened or read, or is known to be something else.
pub(super) fn open(path: &Path, buffer_bytes: usize) -> anyhow::Result<Box<dyn BufRead>> {
    let file: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path)?)
    };
    let mut file = BufReader::with_capacity(buffer_bytes, file);
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    let packing = packing(&head).map_err(anyhow::Error::msg)?;
    let whole = Cursor::new(head).chain(file);
    Ok(match packing {
        Packing::Plain => Box::new(whole),
        Packing::Gzip => {
            Box::new(BufReader::with_capacity(buffer_bytes, MultiGzDecoder::new(whole)))
        }
        Packing::Zstd => {
            Box::new(BufReader::with_capacity(buffer_bytes, ZstdFrames::new(whole)))
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// Returns a recording's compression, by its first bytes.
///
/// # Errors
/// The actual kind of a file that is no recording.
fn packing(head: &[u8]) -> Result<Packing, &'static str> {
    match head {
        [0x1f, 0x8b, ..] => Ok(Packing::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Packing::Zstd),
        [0x80, 2..=5, ..] => Err(
            "it is a pickle, perhaps a PyTorch memory snapshot, not a recording: stepmem snapshot show reads it",
        ),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Err("it is a zip archive, not a recording"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Err("it is compressed with xz; unpack it first"),
        [b'B', b'Z', b'h', ..] => Err("it is compressed with bzip2; unpack it first"),
        [0x7f, b'E', b'L', b'F', ..] => Err("it is a program (ELF), not a recording"),
        _ if head.starts_with(b"SQLite format 3") => {
            Err("it is an SQLite database, perhaps TraceML's, not a recording")
        }
        _ if is_document(head) => {
            Err("it is one JSON document, perhaps a final_summary.json, not a recording: \
                 stepmem summary and compare read summaries")
        }
        _ if head.trim_ascii_start().first() == Some(&b'<') => {
            Err("it is an HTML or XML page, not a recording")
        }
        _ => Ok(Packing::Plain),
    }
}

/// Returns whether the file at a path is JSON over several lines, as a summary is.
pub fn has_document(path: &Path) -> bool {
    let mut head = Vec::new();
    let file =
        File::open(path).ok().filter(|file| file.metadata().is_ok_and(|it| it.is_file()));
    let read = file.map(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    matches!(read, Some(Ok(_))) && is_document(&head)
}

/// Returns whether a file is JSON over several lines: its first line is an opening bracket
/// only.
fn is_document(head: &[u8]) -> bool {
    let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    matches!(first.trim_ascii(), b"{" | b"[") && head.len() > first.len()
}
