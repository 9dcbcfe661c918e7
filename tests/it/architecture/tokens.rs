//! A file as tokens: without its documentation, its lifetimes and all that is compiled for tests only.

use std::iter::Peekable;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One token; the delimiters of a group are tokens of their own.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// A token and its line, from 1.
pub type Placed = (Token, usize);

/// The tokens of a text.
pub fn read(path: &str, text: &str) -> Vec<Placed> {
    let stream = TokenStream::from_str(text).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    tokens
}

/// Appends the tokens of a stream in order.
fn flatten(stream: TokenStream, into: &mut Vec<Placed>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(ident) => into.push((Token::Word(ident.to_string()), line)),
            TokenTree::Literal(literal) => into.push((Token::Text(literal.to_string()), line)),
            TokenTree::Punct(punct) if punct.as_char() == '#' => attribute(&mut trees, into),
            // A lifetime.
            TokenTree::Punct(punct) if punct.as_char() == '\'' => drop(trees.next()),
            TokenTree::Punct(punct) => into.push((Token::Sign(punct.as_char()), line)),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ('(', ')'),
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    Delimiter::None => (' ', ' '),
                };
                into.push((Token::Sign(open), line));
                flatten(group.stream(), into);
                into.push((Token::Sign(close), group.span_close().start().line));
            }
        }
    }
}

/// Skips `[doc = "…"]`, and `[cfg(test)]` with its item; reads other attributes like code.
fn attribute(trees: &mut Peekable<Trees>, into: &mut Vec<Placed>) {
    if matches!(trees.peek(), Some(TokenTree::Punct(punct)) if punct.as_char() == '!') {
        trees.next();
    }
    let Some(TokenTree::Group(group)) = trees.next() else { return };
    let text = group.stream().to_string().replace(' ', "");
    if text == "cfg(test)" {
        for tree in trees.by_ref() {
            match tree {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
                TokenTree::Punct(punct) if punct.as_char() == ';' => break,
                _ => {}
            }
        }
    } else if !text.starts_with("doc=") {
        flatten(group.stream(), into);
    }
}

type Trees = proc_macro2::token_stream::IntoIter;
