//! One file as the rules see it.

use crate::architecture::items::{Item, items};
use crate::architecture::paths::{NamedPath, Paths};
use crate::architecture::tokens::{Placed, Token, read};

/// The roots of crates, which declare the rooms.
const ROOTS: [&str; 3] = ["src/lib.rs", "src/main.rs", "tests/it/main.rs"];

/// Where something stands: what it is, and its line.
pub type Place = (String, usize);

/// A file of the program, of a crate or of these tests.
pub struct Source {
    /// From the repository's root.
    pub path: String,
    /// `analysis::diagnosis::wording`; `lib` and `main` are the roots.
    pub module: String,
    pub text: String,
    pub tokens: Vec<Placed>,
    pub paths: Vec<NamedPath>,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Self {
        let module = module_of(path);
        let tokens = read(path, text);
        let of_root = ROOTS.contains(&path);
        let words = if of_root { Vec::new() } else { words(&module) };
        let paths = Paths::new(words, !path.starts_with("tests/"), &tokens).find(&tokens);
        Self { path: path.to_owned(), module, text: text.to_owned(), tokens, paths }
    }

    pub fn is_in(&self, room: &str) -> bool {
        is_within(&self.module, room)
    }

    /// Where these tokens stand in a row: words, and signs as single characters.
    pub fn places(&self, wanted: &[&str]) -> Vec<Place> {
        let is = |token: &Token, wanted: &str| match token {
            Token::Word(word) => word == wanted,
            Token::Sign(sign) => wanted.chars().eq([*sign]),
            Token::Text(_) => false,
        };
        self.tokens
            .windows(wanted.len())
            .filter(|window| window.iter().zip(wanted).all(|((token, _), w)| is(token, w)))
            .map(|window| (wanted.concat(), window[0].1))
            .collect()
    }

    /// String and other literals as they are written, with their lines.
    pub fn literals(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tokens.iter().filter_map(|(token, line)| match token {
            Token::Text(text) => Some((text.as_str(), *line)),
            _ => None,
        })
    }

    /// Functions, types and constants, those in `impl` blocks included.
    pub fn items(&self) -> Vec<Item<'_>> {
        items(&self.tokens)
    }

    /// `path:line: what` of each place.
    pub fn at(&self, places: impl IntoIterator<Item = Place>) -> Vec<String> {
        let here = |(what, line): Place| format!("{}:{line}: {what}", self.path);
        places.into_iter().map(here).collect()
    }
}

/// Whether a module is a room or lies in it.
pub fn is_within(module: &str, room: &str) -> bool {
    module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn module_of(path: &str) -> String {
    let inner = path.strip_prefix("crates/").map(|path| path.replacen("/src/", "/", 1));
    let path = inner.as_deref().unwrap_or(path);
    let path = path.trim_start_matches("src/").trim_start_matches("tests/it/");
    path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

fn words(module: &str) -> Vec<String> {
    module.split("::").map(str::to_owned).collect()
}
