//! Lists the files of the Python client and of the `sitecustomize` of `stepmem run`, for the program that carries them, and joins the
//! modules of its page.

#[path = "src/output/page/bundle.rs"]
mod bundle;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bundle::{Bundle, plain_style};

/// The modules that are the beginning of a script.
const SCRIPTS: [&str; 1] = ["main"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = vec![("sitecustomize.py".to_owned(), "python/run/sitecustomize.py".into())];
    add_modules(Path::new("python/stepmem"), "stepmem", &mut files)?;
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
    let folder = Path::new(&folder);
    fs::write(folder.join("client.rs"), list.join("\n"))?;
    let page = Path::new("src/output/page");
    let style = page.join("style.css");
    fs::write(folder.join("style.css"), plain_style(&fs::read_to_string(&style)?))?;
    println!("cargo::rerun-if-changed={}", style.display());
    for module in SCRIPTS {
        let Bundle { script, files } = Bundle::of(page, module)?;
        fs::write(folder.join(module).with_extension("js"), script)?;
        for file in files {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    Ok(())
}

/// Adds the modules of a package and of its sub-packages, in the order of their names.
fn add_modules(
    package: &Path,
    name: &str,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(package)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, Box<dyn Error>>>()?;
    paths.sort();
    for path in paths {
        let entry =
            path.file_name().and_then(|name| name.to_str()).ok_or("a name is not UTF-8")?;
        let name = format!("{name}/{entry}");
        if path.is_dir() && entry != "__pycache__" {
            add_modules(&path, &name, files)?;
        } else if path.extension().is_some_and(|ending| ending == "py") {
            files.push((name, path));
        }
    }
    Ok(())
}
