//! The paths that a file names: `use` trees with their groups, and paths in code.

use std::iter::Peekable;

use crate::architecture::tokens::{Placed, Token};

/// A path by its words, and its line.
pub type NamedPath = (Vec<String>, usize);

/// Finds the paths of one file.
pub struct Paths {
    module: Vec<String>,
    /// Modules that this file declares: a path may begin with their names.
    children: Vec<String>,
    /// Whether the file belongs to the library or its binary, which names it `stepmem`.
    is_ours: bool,
}

impl Paths {
    /// `module`: the words of the file's own path, none for a crate's root.
    pub fn new(module: Vec<String>, is_ours: bool, tokens: &[Placed]) -> Self {
        let children = tokens.windows(3).filter_map(|window| match window {
            [(Token::Word(key), _), (Token::Word(name), _), (Token::Sign(';'), _)]
                if key == "mod" =>
            {
                Some(name.clone())
            }
            _ => None,
        });
        Self { module, children: children.collect(), is_ours }
    }

    /// Every path that begins with a crate; those of this crate begin with `crate`.
    pub fn find(&self, tokens: &[Placed]) -> Vec<NamedPath> {
        let mut paths = Vec::new();
        let mut inline: Vec<(String, usize)> = Vec::new();
        let mut depth = 0;
        for (idx, (token, line)) in tokens.iter().enumerate() {
            match token {
                Token::Sign('{') => depth += 1,
                Token::Sign('}') => {
                    inline.retain(|(_, at)| *at < depth);
                    depth -= 1;
                }
                Token::Word(word) if word == "mod" => {
                    if let [(Token::Word(name), _), (Token::Sign('{'), _), ..] =
                        &tokens[idx + 1..]
                    {
                        inline.push((name.clone(), depth + 1));
                    }
                }
                Token::Word(_) if begins_path(tokens, idx) => {
                    let mut found = Vec::new();
                    tree(&mut tokens[idx..].iter().peekable(), &mut Vec::new(), &mut found);
                    let here = [self.module.clone(), names(&inline)].concat();
                    let absolute = |path| (self.absolute(path, &here), *line);
                    paths.extend(found.into_iter().map(absolute));
                }
                _ => {}
            }
        }
        paths
    }

    /// Turns `self::`, `super::`, `stepmem::` and the names of declared files into `crate::…`.
    fn absolute(&self, path: Vec<String>, here: &[String]) -> Vec<String> {
        let mut here = here.to_vec();
        let mut rest = path.as_slice();
        match path[0].as_str() {
            first if first == "crate" || first == "stepmem" && self.is_ours => {
                return [vec!["crate".to_owned()], path[1..].to_vec()].concat();
            }
            "self" => rest = &rest[1..],
            "super" => {
                while let Some(("super", after)) =
                    rest.split_first().map(|(s, r)| (s.as_str(), r))
                {
                    here.pop();
                    rest = after;
                }
            }
            first if self.children.iter().any(|child| child == first) => {}
            _ => return path,
        }
        [vec!["crate".to_owned()], here, rest.to_vec()].concat()
    }
}

/// Whether the word at `idx` is the first of a path or of a `use` tree.
fn begins_path(tokens: &[Placed], idx: usize) -> bool {
    let before = idx.checked_sub(1).map(|before| &tokens[before].0);
    let is_joined = tokens[idx + 1..].iter().take(2).all(|(t, _)| *t == Token::Sign(':'))
        && tokens.len() > idx + 2;
    let is_first = !matches!(before, Some(Token::Sign(':' | '.')));
    is_joined && is_first || before == Some(&Token::Word("use".to_owned()))
}

fn names(inline: &[(String, usize)]) -> Vec<String> {
    inline.iter().map(|(name, _)| name.clone()).collect()
}

/// Reads `a::{b, c::*, self as d}` from its first word on.
fn tree<'t>(
    cursor: &mut Peekable<impl Iterator<Item = &'t Placed>>,
    prefix: &mut Vec<String>,
    found: &mut Vec<Vec<String>>,
) {
    let depth = prefix.len();
    loop {
        match cursor.peek().map(|(token, _)| token) {
            Some(Token::Word(word)) => {
                if word != "self" || prefix.is_empty() {
                    prefix.push(word.clone());
                }
                cursor.next();
            }
            Some(Token::Sign('{')) => {
                cursor.next();
                while let Some((token, _)) = cursor.peek() {
                    match token {
                        Token::Sign('}') => break,
                        Token::Sign(',') => drop(cursor.next()),
                        _ => tree(cursor, prefix, found),
                    }
                }
                cursor.next();
                prefix.truncate(depth);
                return;
            }
            Some(Token::Sign('*')) => drop(cursor.next()),
            _ => break,
        }
        if !is_joined(cursor) {
            break;
        }
    }
    found.push(prefix.clone());
    prefix.truncate(depth);
    // `as NAME` does not matter.
    while matches!(cursor.peek(), Some((Token::Word(_), _))) {
        cursor.next();
    }
}

/// Takes `::` if it comes next.
fn is_joined<'t>(cursor: &mut Peekable<impl Iterator<Item = &'t Placed>>) -> bool {
    if !matches!(cursor.peek(), Some((Token::Sign(':'), _))) {
        return false;
    }
    cursor.next();
    if !matches!(cursor.peek(), Some((Token::Sign(':'), _))) {
        return false;
    }
    cursor.next();
    true
}
