//! A directory of this process for targets that read files; in memory where the system has such a place.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

thread_local! {
    static OF_THREAD: PathBuf = {
        let thread = format!("{:?}", std::thread::current().id());
        let number: String = thread.chars().filter(char::is_ascii_digit).collect();
        let folder = folder().join(number);
        std::fs::create_dir_all(&folder).expect("a directory for files");
        folder
    };
}

/// Returns the path of a file of this process and thread.
pub(crate) fn file(name: &str) -> PathBuf {
    OF_THREAD.with(|folder| folder.join(name))
}

/// Writes a file anew, and returns its path.
pub(crate) fn write(name: &str, content: &[u8]) -> PathBuf {
    let path = file(name);
    std::fs::write(&path, content).expect("a file in the directory");
    path
}

/// Removes what targets of this process wrote.
pub fn remove() {
    // It is there only if a target wrote a file.
    std::fs::remove_dir_all(folder()).ok();
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        parent.join(format!("stepmem-fuzz-{}", std::process::id()))
    })
}
