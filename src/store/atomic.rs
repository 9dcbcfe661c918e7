//! Files that are replaced as a whole: after a crash, a reader finds the old content or the
//! new.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::store::open;

/// The mode of files that others may read, less what the umask takes.
const SHARED_MODE: u32 = 0o666;

/// Writes `parts` to a new file, and replaces the file once they are on the disk.
///
/// # Errors
/// The file system refused; the file is unchanged.
pub fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let fresh = stage(path, parts)?;
    fs::rename(&fresh, path)
}

/// Writes `parts` to a new file next to this one, and replaces any left by an earlier attempt.
/// Returns its path.
fn stage(path: &Path, parts: &[&[u8]]) -> io::Result<PathBuf> {
    stage_as(&beside(path, "new"), parts)
}

/// Writes `parts` to a file that is to replace another; returns its path. Leaves nothing behind
/// when that fails.
///
/// # Errors
/// The file system refused.
pub fn stage_as(fresh: &Path, parts: &[&[u8]]) -> io::Result<PathBuf> {
    let mut file = open::fresh_file(fresh, SHARED_MODE)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    if let Err(error) = written.and_then(|()| file.sync_all()) {
        // On a full disk, the written part takes the last bytes.
        fs::remove_file(fresh)?;
        return Err(error);
    }
    Ok(fresh.to_owned())
}

/// The path with another extension appended.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::store::atomic::{beside, replace, stage};

    #[test]
    fn crash_between_write_and_rename_leaves_the_old_file_whole() {
        let folder = std::env::temp_dir().join(format!("stepmem-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("final_summary.json");
        replace(&path, &[b"old"]).unwrap();
        // The work of a process that dies before the rename.
        stage(&path, &[b"a new one, cut sh"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace(&path, &[b"ne", b"w"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!beside(&path, "new").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
