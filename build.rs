//! Lists the files of the Python client and of the `sitecustomize` of `stepmem run`, for the program that carries them.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let package = Path::new("python/stepmem");
    let mut files = vec![("sitecustomize.py".to_owned(), "python/run/sitecustomize.py".into())];
    let mut modules: Vec<PathBuf> = fs::read_dir(package)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, Box<dyn Error>>>()?;
    modules.retain(|path| path.extension().is_some_and(|ending| ending == "py"));
    modules.sort();
    for path in modules {
        let name =
            path.file_name().and_then(|name| name.to_str()).ok_or("a name is not UTF-8")?;
        files.push((format!("stepmem/{name}"), path));
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("no manifest")?);
    let mut list = vec!["&[".to_owned()];
    for (name, path) in files {
        let path = root.join(path);
        let path = path.to_str().ok_or("the path of this crate is not UTF-8")?;
        list.push(format!("    ({name:?}, include_bytes!({path:?})),"));
        // Not the directory: Python writes compiled files to it, which would count as a change.
        println!("cargo::rerun-if-changed={path}");
    }
    list.push("]\n".to_owned());
    let folder = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(Path::new(&folder).join("client.rs"), list.join("\n"))?;
    Ok(())
}
