//! Packs the Python client and the `sitecustomize` of `stepmem run` into an archive that Python imports from. The same
//! files give the same bytes.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The modification time of every entry: 1 January 1980, the first that the format knows.
const DATE: u16 = 0x21;
/// A regular file that all may read, as a Unix mode in the upper half.
const ATTRIBUTES: u32 = 0o100_644 << 16;
const VERSION: u16 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let package = Path::new("python/stepmem");
    let start = Path::new("python/run/sitecustomize.py");
    let mut entries = vec![("sitecustomize.py".to_owned(), fs::read(start)?)];
    let mut modules: Vec<PathBuf> = fs::read_dir(package)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, Box<dyn Error>>>()?;
    modules.retain(|path| path.extension().is_some_and(|ending| ending == "py"));
    modules.sort();
    for path in modules {
        let name =
            path.file_name().and_then(|name| name.to_str()).ok_or("a name is not UTF-8")?;
        entries.push((format!("stepmem/{name}"), fs::read(&path)?));
        // Not the directory: Python writes compiled files to it, which would count as a change.
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let folder = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(Path::new(&folder).join("client.zip"), archive(&entries)?)?;
    println!("cargo::rerun-if-changed={}", start.display());
    Ok(())
}

/// Returns a zip archive whose entries are stored as they are.
fn archive(entries: &[(String, Vec<u8>)]) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let offset = u32::try_from(bytes.len())?;
        let common = common(name, content)?;
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(name.as_bytes());
        bytes.extend(content);
        directory.extend(b"PK\x01\x02");
        // Made on Unix.
        directory.extend((0x0300 | VERSION).to_le_bytes());
        directory.extend(&common);
        // No comment, on the first disk, no internal attributes.
        directory.extend([0; 6]);
        directory.extend(ATTRIBUTES.to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let n_entries = u16::try_from(entries.len())?.to_le_bytes();
    let (size, offset) = (u32::try_from(directory.len())?, u32::try_from(bytes.len())?);
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(n_entries);
    bytes.extend(n_entries);
    bytes.extend(size.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0; 2]);
    Ok(bytes)
}

/// Returns what an entry's header and its place in the directory share, from the version to the length of extra fields.
fn common(name: &str, content: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let size = u32::try_from(content.len())?.to_le_bytes();
    let mut bytes = Vec::new();
    // Flags, method "stored", time.
    for field in [VERSION, 0, 0, 0, DATE] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(crc32fast::hash(content).to_le_bytes());
    bytes.extend(size);
    bytes.extend(size);
    bytes.extend(u16::try_from(name.len())?.to_le_bytes());
    bytes.extend([0; 2]);
    Ok(bytes)
}
