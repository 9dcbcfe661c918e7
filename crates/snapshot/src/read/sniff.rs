//! The kind of a file, by its first bytes.

use crate::error::{Fault, Unreadable};

/// Bytes that suffice to recognize it.
pub const SNIFF_BYTES: usize = 512;

/// The wrapping of a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// None.
    Plain,
    /// The wrapping of gzip.
    Gzip,
    /// The wrapping of Zstandard.
    Zstd,
}

/// Returns the wrapping of a file's pickle, by the file's first bytes.
///
/// # Errors
///
/// It is something else; the message names it.
pub fn wrapping(head: &[u8]) -> Result<Wrapping, Unreadable> {
    match head {
        [0x80, 2..=5, ..] | [0x80] => Ok(Wrapping::Plain),
        [0x1f, 0x8b, ..] => Ok(Wrapping::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Ok(Wrapping::Zstd)
        }
        _ => Err(not_a_pickle(head)),
    }
}

/// Checks that unwrapped bytes begin as a pickle does.
///
/// # Errors
/// They do not; the message names what they are.
pub fn check_pickle(head: &[u8]) -> Result<(), Unreadable> {
    match wrapping(head)? {
        Wrapping::Plain => Ok(()),
        Wrapping::Gzip | Wrapping::Zstd => Err(is("it is compressed twice")),
    }
}

fn not_a_pickle(head: &[u8]) -> Unreadable {
    let text = String::from_utf8_lossy(head).trim_start().to_ascii_lowercase();
    is(match head {
        [] => "the file is empty",
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            "it is a zip archive, perhaps a file of torch.save; snapshots are plain pickles"
        }
        [0x80, ..] => "it is a pickle of a protocol other than 2 to 5",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "it is compressed with xz; unpack it first",
        [b'B', b'Z', b'h', ..] => "it is compressed with bzip2; unpack it first",
        [0x7f, b'E', b'L', b'F', ..] => "it is a program (ELF)",
        _ if text.starts_with("version https://git-lfs") => {
            "it is a git-lfs pointer; fetch the file itself with `git lfs pull`"
        }
        _ if text.starts_with("<!doctype") || text.starts_with("<html") => {
            "it is an HTML page, not a pickle"
        }
        _ if text.starts_with('{') || text.starts_with('[') => "it is JSON text, not a pickle",
        _ => "it is not a pickle of protocol 2 to 5",
    })
}

fn is(what: &'static str) -> Unreadable {
    Unreadable { fault: Fault::NotPickle(what.into()), offset: 0 }
}
