//! Joins modules of the page into one script, without comments and indentation: one request, and
//! fewer bytes than a file each. Its style loses both, too. Compiled into the build script.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A script, and the files that it is made of.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    pub(crate) script: String,
    pub(crate) files: Vec<PathBuf>,
}

impl Bundle {
    /// Joins a module of the folder and all that it imports.
    ///
    /// # Errors
    /// A module cannot be read, or imports or exports in another form than the page's modules.
    pub(crate) fn of(folder: &Path, module: &str) -> Result<Self, Box<dyn Error>> {
        let mut bundle = Self::default();
        bundle.add(folder, module)?;
        Ok(bundle)
    }

    /// Adds a module after those that it imports. Each is a function of its own, so that their
    /// names do not clash.
    fn add(&mut self, folder: &Path, module: &str) -> Result<(), Box<dyn Error>> {
        let path = folder.join(module).with_extension("js");
        if self.files.contains(&path) {
            return Ok(());
        }
        let text = fs::read_to_string(&path)?;
        self.files.push(path);
        let (mut body, mut exports, mut is_comment) = (String::new(), Vec::new(), false);
        for line in text.lines().map(str::trim) {
            is_comment |= line.starts_with("/**");
            if is_comment {
                is_comment = !line.ends_with("*/");
            } else if let Some(rest) = line.strip_prefix("import ") {
                let (names, of) = import(rest).ok_or_else(|| format!("{module}: {line}"))?;
                self.add(folder, of)?;
                let names = names.replace(" as ", ": ");
                writeln!(body, "const {names} = {of}_js;")?;
            } else if let Some(rest) = line.strip_prefix("export ") {
                exports.push(declared(rest).ok_or_else(|| format!("{module}: {line}"))?);
                writeln!(body, "{rest}")?;
            } else if !line.is_empty() && !line.starts_with("//") {
                writeln!(body, "{line}")?;
            }
        }
        let exports = exports.join(", ");
        let exported = format!("return {{ {exports} }};");
        writeln!(self.script, "const {module}_js = (() => {{\n{body}{exported}\n}})();")?;
        Ok(())
    }
}

/// Returns a style sheet without indentation and lines that are only a comment.
pub(crate) fn plain_style(text: &str) -> String {
    let is_comment = |line: &&str| line.starts_with("/*") && line.ends_with("*/");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.filter(|line| !is_comment(line)).map(|line| line.to_owned() + "\n").collect()
}

/// Returns the names, in braces, and the module of `{ … } from "./MODULE.js";`.
fn import(rest: &str) -> Option<(&str, &str)> {
    let (names, of) = rest.split_once(" from \"./")?;
    let is_list = names.starts_with('{') && names.ends_with('}');
    Some((names, of.strip_suffix(".js\";")?)).filter(|_| is_list)
}

/// Returns the name that a declaration declares.
fn declared(rest: &str) -> Option<&str> {
    let (kind, rest) = rest.split_once(' ')?;
    let is_name = |char: char| char.is_ascii_alphanumeric() || "$_".contains(char);
    let name = rest.split(|char| !is_name(char)).next()?;
    (["const", "function", "class"].contains(&kind) && !name.is_empty()).then_some(name)
}
