//! The files of the repository as the rules read them: by lines, as rustfmt writes them. Comments and what is behind
//! `#[cfg(test)]` are no code.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::rig::folder::root;

static PRODUCT: LazyLock<Vec<Source>> = LazyLock::new(|| read(&["src", "crates"]));
static TESTS: LazyLock<Vec<Source>> = LazyLock::new(|| read(&["tests/it"]));

/// A file of the program, of a crate or of these tests.
pub struct Source {
    /// The path from the repository's root.
    pub path: String,
    /// `engine::diagnosis::growth`; `lib` and `main` are the roots.
    pub module: String,
    pub text: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), module: module_of(path), text: text.to_owned() }
    }

    /// Returns whether the file is a module or lies in it.
    pub fn is_in(&self, module: &str) -> bool {
        let rest = self.module.strip_prefix(module);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    }

    /// Returns its lines of code, each with its number.
    pub fn code(&self) -> Vec<(usize, &str)> {
        let mut lines = self.text.lines().enumerate().map(|(idx, line)| (idx + 1, line));
        let mut code = Vec::new();
        while let Some((number, line)) = lines.next() {
            if line.trim_start() == "#[cfg(test)]" {
                let indentation = line.len() - line.trim_start().len();
                let ends = |line: &str| {
                    let (before, rest) = line.split_at(line.len().min(indentation));
                    before.trim().is_empty() && rest.starts_with('}')
                        || !rest.starts_with([' ', '#']) && rest.ends_with([';', '}'])
                };
                lines.find(|(_, line)| ends(line));
            } else if !line.trim_start().starts_with("//") {
                code.push((number, line));
            }
        }
        code
    }
}

/// `src/` and `crates/` as they are.
pub fn product() -> &'static [Source] {
    &PRODUCT
}

/// `tests/it/` as it is.
pub fn tests() -> &'static [Source] {
    &TESTS
}

/// Fails with every violation.
pub fn holds(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

fn module_of(path: &str) -> String {
    let inner = path.strip_prefix("crates/").map(|path| path.replacen("/src/", "/", 1));
    let path = inner.as_deref().unwrap_or(path);
    let path = path.trim_start_matches("src/").trim_start_matches("tests/it/");
    path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Every Rust file of some folders, by path.
fn read(folders: &[&str]) -> Vec<Source> {
    let mut files = Vec::new();
    let mut folders: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(Source::new(relative(&path), &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

fn relative(path: &Path) -> &str {
    path.strip_prefix(root()).unwrap().to_str().unwrap()
}

#[test]
fn code_is_read_without_comments_and_tests() {
    let text = "//! A file.\nuse a::b; // c\n\n#[cfg(test)]\nmod behavior;\nfn f() {\n    // Why.\n    #[cfg(test)]\n    g();\n    h();\n}\n\
                #[cfg(test)]\nimpl A {\n    #[must_use]\n    fn i() {}\n}\nfn j() {}\n#[cfg(test)]\n#[expect(x)]\nmod tests {\n    fn k() {}\n}\n";
    let file = Source::new("crates/types/src/format/mod.rs", text);
    assert_eq!(file.module, "types::format");
    assert!(file.is_in("types") && file.is_in("types::format") && !file.is_in("types::form"));
    let lines = [(2, "use a::b; // c"), (3, ""), (6, "fn f() {"), (10, "    h();"), (11, "}")];
    assert_eq!(file.code(), [&lines[..], &[(17, "fn j() {}")]].concat());
}
