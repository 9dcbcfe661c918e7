//! The items of a file: its modules, functions, types and constants.

use crate::architecture::tokens::{Placed, Token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Module,
    Function,
    Type,
    Constant,
}

/// One item, wherever it stands.
#[derive(Debug)]
pub struct Item<'t> {
    pub kind: Kind,
    pub name: &'t str,
    pub line: usize,
    /// Whether other files may name it.
    pub is_public: bool,
    /// Whether it stands in a module and not within another item.
    pub is_top: bool,
    /// The type whose `impl` block it stands in.
    pub owner: Option<&'t str>,
    /// Its attributes and its visibility.
    pub before: &'t [Placed],
    /// Everything after its name, beyond its end too.
    pub after: &'t [Placed],
}

impl<'t> Item<'t> {
    /// Whether an attribute of it has this word.
    pub fn has(&self, word: &str) -> bool {
        self.before.iter().any(|(token, _)| is_word(token, word))
    }

    /// The tokens between its first braces; nothing for an item without.
    pub fn body(&self) -> &'t [Placed] {
        let ends = |token: &Token| [Token::Sign('{'), Token::Sign(';')].contains(token);
        match self.after.iter().position(|(token, _)| ends(token)) {
            Some(open) if self.after[open].0 == Token::Sign('{') => {
                inside(&self.after[open..], '{', '}')
            }
            _ => &[],
        }
    }
}

/// Every item, in order.
pub fn items(tokens: &[Placed]) -> Vec<Item<'_>> {
    let mut found = Vec::new();
    let mut open: Vec<Block<'_>> = Vec::new();
    let mut next = Block::Other;
    for (idx, (token, line)) in tokens.iter().enumerate() {
        match token {
            Token::Sign('{') => open.push(std::mem::replace(&mut next, Block::Other)),
            Token::Sign('}') => drop(open.pop()),
            Token::Sign(';') => next = Block::Other,
            Token::Word(word) if word == "impl" && next == Block::Other => {
                next = subject(&tokens[idx + 1..]).map_or(Block::Other, Block::Of);
            }
            Token::Word(word) => {
                let Some((kind, name_idx)) = keyword(tokens, idx, word) else { continue };
                let Token::Word(name) = &tokens[name_idx].0 else { continue };
                next = if kind == Kind::Module { Block::Module } else { Block::Item };
                let before = &tokens[begin(tokens, idx)..idx];
                found.push(Item {
                    kind,
                    name,
                    line: *line,
                    is_public: before.iter().any(|(token, _)| is_word(token, "pub")),
                    is_top: open.iter().all(|block| *block == Block::Module),
                    owner: match open.last() {
                        Some(Block::Of(owner)) => Some(owner),
                        _ => None,
                    },
                    before,
                    after: &tokens[name_idx + 1..],
                });
            }
            _ => {}
        }
    }
    found
}

/// The owner of an open brace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block<'t> {
    Module,
    /// An `impl` block of this type.
    Of(&'t str),
    /// A function, a type or a constant.
    Item,
    Other,
}

/// The type that an `impl` block is of: the last word before its braces, generics left out.
fn subject(after: &[Placed]) -> Option<&str> {
    let mut depth = 0;
    let mut last = None;
    for (idx, (token, _)) in after.iter().enumerate() {
        match token {
            Token::Sign('<') => depth += 1,
            Token::Sign('>') if idx > 0 && after[idx - 1].0 != Token::Sign('-') => depth -= 1,
            Token::Sign('{' | ';') if depth == 0 => return last,
            Token::Word(word) if depth == 0 && word == "where" => return last,
            Token::Word(word) if depth == 0 => last = Some(word.as_str()),
            _ => {}
        }
    }
    None
}

/// The kind of the item whose keyword this word is, and where its name stands.
fn keyword(tokens: &[Placed], idx: usize, word: &str) -> Option<(Kind, usize)> {
    let kind = match word {
        "mod" => Kind::Module,
        "fn" => Kind::Function,
        "struct" | "enum" | "union" | "trait" | "type" => Kind::Type,
        "const" | "static" => Kind::Constant,
        _ => return None,
    };
    // `*const T` is a pointer.
    let is_pointer = idx > 0 && tokens[idx - 1].0 == Token::Sign('*');
    let name_idx = match tokens.get(idx + 1)? {
        (Token::Word(next), _) if next == "mut" => idx + 2,
        (Token::Word(next), _) if ["fn", "unsafe", "async"].contains(&next.as_str()) => {
            return None;
        }
        (Token::Word(_), _) => idx + 1,
        _ => return None,
    };
    (!is_pointer).then_some((kind, name_idx))
}

/// Where the attributes of the item at `idx` begin.
fn begin(tokens: &[Placed], idx: usize) -> usize {
    let ends = |token: &Token| matches!(token, Token::Sign('{' | '}' | ';'));
    tokens[..idx].iter().rposition(|(token, _)| ends(token)).map_or(0, |end| end + 1)
}

/// The tokens between the bracket that `tokens` begin with and the one that closes it.
pub fn inside(tokens: &[Placed], open: char, close: char) -> &[Placed] {
    let mut depth = 0;
    for (idx, (token, _)) in tokens.iter().enumerate() {
        match token {
            Token::Sign(sign) if *sign == open => depth += 1,
            Token::Sign(sign) if *sign == close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return tokens.get(1..idx).unwrap_or_default();
        }
    }
    tokens
}

/// Splits at the commas that stand within no brackets, `<…>` included.
pub fn split_at_commas(tokens: &[Placed]) -> Vec<&[Placed]> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (idx, (token, _)) in tokens.iter().enumerate() {
        let is_arrow = || idx > 0 && matches!(tokens[idx - 1].0, Token::Sign('-' | '='));
        match token {
            Token::Sign('(' | '[' | '{' | '<') => depth += 1,
            Token::Sign('>') if is_arrow() => {}
            Token::Sign(')' | ']' | '}' | '>') => depth -= 1,
            Token::Sign(',') if depth == 0 => {
                parts.push(&tokens[begin..idx]);
                begin = idx + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[begin..]);
    parts.retain(|part| !part.is_empty());
    parts
}

pub fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(it) if it == word)
}

#[test]
fn items_are_read_with_their_visibility_and_place() {
    let text = "pub(crate) mod a { pub struct S { x: u8 } impl S { const N: u8 = 1; } }\n\
                #[derive(Clone)] enum E {} const fn f(p: *const u8) {} pub const M: fn(u8) = g;";
    let tokens = crate::architecture::tokens::read("x.rs", text);
    let read: Vec<(Kind, &str, bool, bool)> = items(&tokens)
        .iter()
        .map(|item| (item.kind, item.name, item.is_public, item.is_top))
        .collect();
    assert_eq!(
        read,
        [
            (Kind::Module, "a", true, true),
            (Kind::Type, "S", true, true),
            (Kind::Constant, "N", false, false),
            (Kind::Type, "E", false, true),
            (Kind::Function, "f", false, true),
            (Kind::Constant, "M", true, true),
        ]
    );
    assert!(items(&tokens)[3].has("Clone"));
    let text = "impl<T: Fn() -> u8> fmt::Display for a::Run<T> where T: X { fn g(x: impl Y) { const Z: u8 = 1; } }\n\
                impl Rank { const N: u8 = 1; }";
    let tokens = crate::architecture::tokens::read("x.rs", text);
    let owners: Vec<_> = items(&tokens).iter().map(|item| (item.name, item.owner)).collect();
    assert_eq!(owners, [("g", Some("Run")), ("Z", None), ("N", Some("Rank"))]);
}
