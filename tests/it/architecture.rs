//! The arrows and invariants of ARCHITECTURE.md, held over the text of `src/`. What only tests use (`#[cfg(test)]`)
//! is not looked at.

use std::fs;
use std::iter::Peekable;
use std::path::Path;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use stepmem::metrics::table::METRICS;

use super::rig;

/// Who may import what: a file or a room to the left, files and rooms to the right. The longest name to the left that
/// fits a file counts for it. Files of a room to the left may import each other.
const ARROWS: &[(&str, &[&str])] = &[
    ("main", &["commands::args", "commands::program"]),
    (
        "commands",
        &[
            "analysis",
            "app",
            "config::settings",
            "input::nvml::cycle",
            "input::push::wire::recorded",
            "input::recording",
            "model",
            "report",
            "snapshot",
            "text",
        ],
    ),
    (
        "app",
        &[
            "analysis", "config", "input", "metrics", "model", "net", "output", "report",
            "store",
        ],
    ),
    (
        "config",
        &[
            "analysis::captures",
            "analysis::config",
            "input::nvml::config",
            "input::push::http",
            "model",
            "output::otlp",
        ],
    ),
    ("net", &[]),
    ("store::atomic", &[]),
    ("store::state", &["store::atomic"]),
    ("text", &[]),
    ("model::units", &[]),
    ("model::ids", &["model::units"]),
    ("model::step", &["model"]),
    ("model::device", &["model"]),
    ("snapshot", &["text"]),
    ("report", &["analysis", "model", "text"]),
    ("input::recording", &["input::push::wire::recorded", "model"]),
    ("input::push::wire::error", &["model"]),
    ("input::push::wire::json", &["input::push::wire::error"]),
    ("input::push::wire::number", &["input::push::wire::error", "model"]),
    (
        "input::push::wire::field",
        &["input::push::wire::error", "input::push::wire::number", "model"],
    ),
    ("input::push::wire::answer", &["analysis::captures", "input::push::wire::json", "model"]),
    (
        "input::push::wire::step",
        &[
            "input::push::wire::error",
            "input::push::wire::field",
            "input::push::wire::json",
            "input::push::wire::number",
            "model",
        ],
    ),
    (
        "input::push::wire::recorded",
        &[
            "input::push::wire::error",
            "input::push::wire::field",
            "input::push::wire::json",
            "input::push::wire::number",
            "input::push::wire::step",
            "model",
        ],
    ),
    (
        "input::push::wire::control",
        &[
            "analysis::acks",
            "analysis::captures",
            "analysis::diagnosis",
            "input::push::wire::error",
            "input::push::wire::field",
            "input::push::wire::json",
            "input::push::wire::number",
            "input::push::wire::step",
            "model",
        ],
    ),
    (
        "input::push::inbox",
        &[
            "analysis::acks",
            "analysis::captures",
            "analysis::refusal",
            "analysis::status",
            "input::push::wire::control",
            "model",
        ],
    ),
    (
        "input::push::http",
        &["analysis::refusal", "input::push::inbox", "input::push::wire", "model"],
    ),
    ("input::owner::cgroup", &["model"]),
    ("input::owner::procfs", &["input::owner::cgroup", "model"]),
    ("input::owner::kubelet", &["model"]),
    ("input::nvml::config", &["model"]),
    ("input::nvml::error", &["model"]),
    ("input::nvml::raw", &[]),
    ("input::nvml::session", &["input::nvml::error"]),
    ("input::nvml::cycle", &["input::nvml::config", "input::nvml::error", "model"]),
    (
        "input::nvml::process_list",
        &["input::nvml::error", "input::nvml::raw", "input::owner::procfs", "model"],
    ),
    (
        "input::nvml::reader",
        &[
            "input::nvml::config",
            "input::nvml::cycle",
            "input::nvml::error",
            "input::nvml::process_list",
            "input::nvml::raw",
            "input::nvml::session",
            "model",
        ],
    ),
    (
        "input::nvml::poller",
        &[
            "input::nvml::config",
            "input::nvml::cycle",
            "input::nvml::error",
            "input::nvml::process_list",
            "input::nvml::reader",
            "input::nvml::session",
            "input::owner::procfs",
            "model",
        ],
    ),
    (
        "input::nvml::xid",
        &["input::nvml::error", "input::nvml::raw", "input::nvml::session", "model"],
    ),
    ("output::prometheus", &["analysis::status", "metrics"]),
    ("output::otlp", &["analysis::status", "metrics", "model"]),
    ("output::web", &["analysis::status", "output::prometheus"]),
    ("metrics", &["analysis::status", "model"]),
    ("analysis::estimate", &[]),
    ("analysis::creep", &["analysis::estimate"]),
    ("analysis::rank::lifecycle", &["model"]),
    ("analysis::rank::peaks", &["model"]),
    ("analysis::rank::tally", &["model"]),
    ("analysis::rank::view", &["analysis::creep", "analysis::rank::tally", "model"]),
    (
        "analysis::rank::state",
        &["analysis::creep", "analysis::estimate", "analysis::rank", "model"],
    ),
    ("analysis::refusal", &["model"]),
    ("analysis::processes", &["analysis::creep", "model"]),
    ("analysis::devices", &["analysis::rank::view", "model"]),
    ("analysis::ranks", &["analysis::creep", "analysis::rank", "analysis::refusal", "model"]),
    (
        "analysis::diagnosis",
        &[
            "analysis::creep",
            "analysis::devices",
            "analysis::processes",
            "analysis::rank::view",
            "model",
            "text",
        ],
    ),
    ("analysis::acks", &["analysis::diagnosis", "analysis::refusal", "model"]),
    ("analysis::captures", &["model"]),
    ("analysis::findings", &["analysis::acks", "analysis::diagnosis", "model"]),
    (
        "analysis::status",
        &[
            "analysis::acks",
            "analysis::captures",
            "analysis::creep",
            "analysis::devices",
            "analysis::diagnosis",
            "analysis::findings",
            "analysis::processes",
            "analysis::rank",
            "analysis::ranks",
            "model",
        ],
    ),
    (
        "analysis::runs",
        &["analysis::diagnosis", "analysis::findings", "analysis::rank", "model"],
    ),
    ("analysis::event", &["analysis::acks", "analysis::captures", "analysis::ranks", "model"]),
    (
        "analysis::config",
        &[
            "analysis::captures",
            "analysis::creep",
            "analysis::diagnosis",
            "analysis::processes",
            "analysis::ranks",
            "model",
        ],
    ),
    (
        "analysis::saved",
        &[
            "analysis::acks",
            "analysis::creep",
            "analysis::diagnosis",
            "analysis::findings",
            "analysis::processes",
            "analysis::rank",
            "analysis::ranks",
            "model",
        ],
    ),
    ("analysis::engine", &["analysis", "model"]),
    ("analysis::publish", &["analysis", "model"]),
];

/// Doors: they list their room's files and import nothing.
const DOORS: [&str; 21] = [
    "lib",
    "analysis",
    "analysis::rank",
    "app",
    "app::collectors",
    "commands",
    "config",
    "input",
    "input::nvml",
    "input::owner",
    "input::push",
    "input::push::wire",
    "metrics",
    "model",
    "net",
    "output",
    "report",
    "report::explain",
    "snapshot",
    "store",
    "text",
];

/// What never waits, logs, reads a clock, spawns or touches files.
const PURE: [&str; 8] = [
    "analysis",
    "input::push::wire",
    "input::owner::cgroup",
    "metrics",
    "model",
    "report",
    "snapshot",
    "text",
];

/// Paths that pure code does not name, and calls that it does not make.
const IMPURE_PATHS: [&str; 10] = [
    "tokio",
    "tracing",
    "std::net",
    "std::fs",
    "std::env",
    "std::sync",
    "std::io",
    "std::process",
    "std::thread",
    "std::os",
];

/// What a file breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// It imports what ARROWS does not list.
    Arrow,
    /// It is pure and waits, logs, reads a clock, spawns or touches files.
    Pure,
    /// It is not in app and spawns.
    Spawn,
    /// It is not in app and reads the clock.
    Clock,
    /// It is not main.rs and exits or prints an error.
    Exit,
    /// It is not wire.rs and reads the push JSON.
    PushJson,
    /// It is an input and knows an output, or an output and knows an input.
    Meeting,
    /// It owns an engine beside the one engine task.
    Engine,
    /// It is not metrics.rs and has the name of a metric.
    MetricName,
}

#[derive(Debug)]
struct Violation {
    rule: Rule,
    at: String,
}

/// One token; what delimits a group stands as a token of its own.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// The text of one file as a checker sees it.
struct Source {
    /// `analysis::diagnosis::wording`
    module: String,
    tokens: Vec<(Token, usize)>,
    /// Every path that begins with a crate, with the modules of this crate made absolute (`crate::…`).
    paths: Vec<(Vec<String>, usize)>,
}

impl Source {
    fn parse(path: &str, text: &str) -> Self {
        let module = module_of(path);
        let stream = TokenStream::from_str(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        let paths = Paths::new(path, &module, &tokens).find(&tokens);
        Self { module, tokens, paths }
    }

    fn is_in(&self, room: &str) -> bool {
        is_within(&self.module, room)
    }

    /// Where these tokens stand, one after the other: words, and signs as single characters.
    fn places(&self, wanted: &[&str]) -> Vec<usize> {
        let is = |token: &Token, wanted: &str| match token {
            Token::Word(word) => word == wanted,
            Token::Sign(sign) => wanted.chars().eq([*sign]),
            Token::Text(_) => false,
        };
        self.tokens
            .windows(wanted.len())
            .filter(|window| window.iter().zip(wanted).all(|((token, _), w)| is(token, w)))
            .map(|window| window[0].1)
            .collect()
    }

    fn texts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tokens.iter().filter_map(|(token, line)| match token {
            Token::Text(text) => Some((text.as_str(), *line)),
            _ => None,
        })
    }

    /// The files and rooms of this crate that are named, but for the file itself.
    fn imports(&self) -> Vec<(String, usize)> {
        let modules =
            self.paths.iter().filter(|(path, _)| path[0] == "crate").map(|(path, line)| {
                let path = &path[1..];
                let known = (0..=path.len())
                    .rev()
                    .map(|n| path[..n].join("::"))
                    .find(|name| is_module(name))
                    .unwrap_or_default();
                // A first segment that is no module of ours is a new room without a place in the table.
                let is_unknown = known.is_empty() && !path.is_empty();
                (if is_unknown { path[0].clone() } else { known }, *line)
            });
        modules.filter(|(module, _)| *module != self.module).collect()
    }
}

fn module_of(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.trim_end_matches("/mod").replace('/', "::")
}

fn is_within(module: &str, room: &str) -> bool {
    module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Whether a name is that of a file or room, by the table or by the files there are.
fn is_module(name: &str) -> bool {
    let in_table = ARROWS.iter().any(|(from, _)| is_within(from, name));
    let file = rig::root().join("src").join(name.replace("::", "/"));
    !name.is_empty() && (in_table || file.with_extension("rs").exists() || file.is_dir())
}

/// Tokens in order, without documentation, lifetimes and what is only compiled for tests.
fn flatten(stream: TokenStream, into: &mut Vec<(Token, usize)>) {
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

/// Passes over `[doc = "…"]`, and over `[cfg(test)]` with its item; other attributes are read like code.
fn attribute(trees: &mut Peekable<Trees>, into: &mut Vec<(Token, usize)>) {
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

/// Finds paths: `use` trees with their groups, and those that stand in code.
struct Paths {
    module: Vec<String>,
    /// Files that this one declares: their names begin a path, too.
    children: Vec<String>,
}

impl Paths {
    fn new(path: &str, module: &str, tokens: &[(Token, usize)]) -> Self {
        let is_root = ["src/lib.rs", "src/main.rs"].contains(&path);
        let module = if is_root { Vec::new() } else { words(module) };
        let children = tokens.windows(3).filter_map(|window| match window {
            [(Token::Word(key), _), (Token::Word(name), _), (Token::Sign(';'), _)]
                if key == "mod" =>
            {
                Some(name.clone())
            }
            _ => None,
        });
        Self { module, children: children.collect() }
    }

    fn find(&self, tokens: &[(Token, usize)]) -> Vec<(Vec<String>, usize)> {
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
            "crate" | "stepmem" => {
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

/// Whether the word there is the first of a path, or of what `use` takes.
fn begins_path(tokens: &[(Token, usize)], idx: usize) -> bool {
    let before = idx.checked_sub(1).map(|before| &tokens[before].0);
    let is_joined = tokens[idx + 1..].iter().take(2).all(|(t, _)| *t == Token::Sign(':'))
        && tokens.len() > idx + 2;
    let is_first = !matches!(before, Some(Token::Sign(':' | '.')));
    is_joined && is_first || before == Some(&Token::Word("use".to_owned()))
}

fn words(module: &str) -> Vec<String> {
    module.split("::").map(str::to_owned).collect()
}

fn names(inline: &[(String, usize)]) -> Vec<String> {
    inline.iter().map(|(name, _)| name.clone()).collect()
}

/// Reads `a::{b, c::*, self as d}` from its first word on.
fn tree<'t>(
    cursor: &mut Peekable<impl Iterator<Item = &'t (Token, usize)>>,
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
    // What a name is renamed to says nothing.
    while matches!(cursor.peek(), Some((Token::Word(_), _))) {
        cursor.next();
    }
}

/// Takes `::`, if it comes next.
fn is_joined<'t>(cursor: &mut Peekable<impl Iterator<Item = &'t (Token, usize)>>) -> bool {
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

/// Everything that a file breaks.
fn check(path: &str, text: &str) -> Vec<Violation> {
    let source = Source::parse(path, text);
    let mut found = Vec::new();
    for (rule, places) in [
        (Rule::Arrow, arrows(&source)),
        (Rule::Meeting, meetings(&source)),
        (Rule::Pure, impurities(&source)),
        (Rule::Spawn, spawns(&source)),
        (Rule::Clock, clock_reads(&source)),
        (Rule::Exit, exits(&source)),
        (Rule::PushJson, push_json(&source)),
        (Rule::Engine, engines(&source)),
        (Rule::MetricName, metric_names(&source)),
    ] {
        found.extend(
            places
                .into_iter()
                .map(|(what, line)| Violation { rule, at: format!("{path}:{line}: {what}") }),
        );
    }
    found
}

type Places = Vec<(String, usize)>;

fn arrows(source: &Source) -> Places {
    let imports = source.imports().into_iter();
    if DOORS.contains(&source.module.as_str()) {
        let room = &source.module;
        return imports
            .filter(|(to, _)| !is_within(to, room))
            .map(|(to, line)| (format!("the door {room} imports {to}"), line))
            .collect();
    }
    let row =
        ARROWS.iter().filter(|(from, _)| source.is_in(from)).max_by_key(|(from, _)| from.len());
    let Some((from, allowed)) = row else {
        return vec![(format!("{} has no row in ARROWS", source.module), 1)];
    };
    imports
        .filter(|(to, _)| {
            !is_within(to, from) && !allowed.iter().any(|room| is_within(to, room))
        })
        .map(|(to, line)| (format!("{} imports {to}", source.module), line))
        .collect()
}

fn meetings(source: &Source) -> Places {
    let other = match () {
        () if source.is_in("input") => "output",
        () if source.is_in("output") => "input",
        () => return Vec::new(),
    };
    let meets = |to: &str| is_within(to, other) || is_within(to, "app") || to.is_empty();
    source.imports().into_iter().filter(|(to, _)| meets(to)).collect()
}

fn impurities(source: &Source) -> Places {
    if !PURE.iter().any(|room| source.is_in(room)) {
        return Vec::new();
    }
    let named = source.paths.iter().filter_map(|(path, line)| {
        let path = path.join("::");
        let is_impure = IMPURE_PATHS.iter().any(|impure| is_within(&path, impure));
        is_impure.then_some((path, *line))
    });
    let called = [&[".", "await"][..], &["async"], &[":", ":", "now", "("]];
    named.chain(called.iter().flat_map(|tokens| at(source, tokens))).collect()
}

fn spawns(source: &Source) -> Places {
    let wanted = [
        &["spawn", "("][..],
        &["spawn_blocking"],
        &["spawn_local"],
        &["JoinSet"],
        &["thread", ":", ":", "Builder"],
        &["thread", ":", ":", "scope"],
    ];
    except(source, "app", wanted.iter().flat_map(|tokens| at(source, tokens)))
}

fn clock_reads(source: &Source) -> Places {
    let wanted = [
        &["Instant", ":", ":", "now"][..],
        &["SystemTime", ":", ":", "now"],
        &[".", "elapsed", "("],
        &["UNIX_EPOCH"],
    ];
    except(source, "app", wanted.iter().flat_map(|tokens| at(source, tokens)))
}

fn exits(source: &Source) -> Places {
    let wanted = [
        &["process", ":", ":", "exit"][..],
        &["exit", "("],
        &["abort", "("],
        &["eprintln", "!"],
        &["eprint", "!"],
    ];
    except(source, "main", wanted.iter().flat_map(|tokens| at(source, tokens)))
}

fn push_json(source: &Source) -> Places {
    // What the exporter wrote itself it reads back: its state, which is not JSON.
    let is_inside = ["analysis", "model", "store"].iter().any(|room| source.is_in(room));
    let mut wanted = if is_inside {
        Vec::new()
    } else {
        vec!["Deserialize", "Deserializer", "DeserializeOwned", "DeserializeSeed"]
    };
    if source.is_in("input") || is_inside {
        wanted.push("serde_json");
    }
    except(source, "input::push::wire", wanted.iter().flat_map(|word| at(source, &[*word])))
}

fn engines(source: &Source) -> Places {
    let is_owner = ["app", "commands::explain", "commands::playback", "analysis"]
        .iter()
        .any(|room| source.is_in(room));
    let engine = words("crate::analysis::engine::Engine");
    let named = source.paths.iter().filter(|(path, _)| path.starts_with(&engine));
    let shared = ["Mutex", "RwLock", "static", "thread_local"]
        .iter()
        .flat_map(|word| at(source, &[*word]));
    if source.is_in("analysis") {
        shared.collect()
    } else {
        named.filter(|_| !is_owner).map(|(path, line)| (path.join("::"), *line)).collect()
    }
}

fn metric_names(source: &Source) -> Places {
    let is_name = |text: &str| {
        let text = text.trim_matches(['"', 'r', 'b', '#']);
        text.contains("stepmem_") || METRICS.iter().any(|metric| metric.name == text)
    };
    let named = source.texts().filter(|(text, _)| is_name(text));
    except(source, "metrics", named.map(|(text, line)| (text.to_owned(), line)))
}

fn at(source: &Source, tokens: &[&str]) -> Places {
    source.places(tokens).into_iter().map(|line| (tokens.concat(), line)).collect()
}

fn except(
    source: &Source,
    module: &str,
    places: impl Iterator<Item = (String, usize)>,
) -> Places {
    if source.is_in(module) { Vec::new() } else { places.collect() }
}

/// Every file of `src/` with its text.
fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![rig::root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(rig::root()).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// Fails with every place of `src/` that breaks the rule.
fn holds(rule: Rule) {
    let broken: Vec<String> = files()
        .iter()
        .flat_map(|(path, text)| check(path, text))
        .filter(|violation| violation.rule == rule)
        .map(|violation| violation.at)
        .collect();
    assert!(broken.is_empty(), "{rule:?}:\n{}", broken.join("\n"));
}

/// Plants text in a file and says which rules are broken then.
fn planted(path: &str, text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = check(path, text).iter().map(|found| found.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn files_import_only_what_the_arrows_allow() {
    holds(Rule::Arrow);
}

#[test]
fn pure_rooms_never_wait_log_read_a_clock_spawn_or_touch_files() {
    holds(Rule::Pure);
}

#[test]
fn only_app_spawns() {
    holds(Rule::Spawn);
}

#[test]
fn only_app_reads_the_clock() {
    holds(Rule::Clock);
}

#[test]
fn only_main_exits_and_prints_errors() {
    holds(Rule::Exit);
}

#[test]
fn only_wire_reads_the_push_json() {
    holds(Rule::PushJson);
}

#[test]
fn inputs_and_outputs_never_meet() {
    holds(Rule::Meeting);
}

#[test]
fn one_task_owns_all_state() {
    holds(Rule::Engine);
}

#[test]
fn a_metrics_name_stands_in_one_rust_file() {
    holds(Rule::MetricName);
}

#[test]
fn main_is_short() {
    let text = fs::read_to_string(rig::root().join("src/main.rs")).unwrap();
    assert!(text.lines().count() <= 40);
}

#[test]
fn every_arrow_is_between_files_that_exist() {
    for (from, to) in ARROWS {
        for name in [from].into_iter().chain(*to) {
            let file = Path::new("src").join(name.replace("::", "/"));
            let file = rig::root().join(file);
            assert!(
                file.with_extension("rs").exists() || file.join("mod.rs").exists(),
                "{name} is in ARROWS and not in src/"
            );
        }
    }
}

#[test]
fn a_planted_arrow_is_found() {
    let cases = [
        ("src/analysis/estimate.rs", "use crate::model::units::Bytes;"),
        ("src/analysis/creep.rs", "use crate::analysis::{estimate, rank::view::RankView};"),
        ("src/analysis/rank/state.rs", "use super::super::event::Event;"),
        (
            "src/analysis/rank/state.rs",
            "fn f() { super::super::super::config::settings::document(); }",
        ),
        ("src/analysis/diagnosis/imbalance.rs", "use super::super::engine::Engine as E;"),
        ("src/analysis/diagnosis/mod.rs", "use crate::analysis;"),
        ("src/analysis/mod.rs", "use crate::config::settings::SETTINGS;"),
        ("src/metrics/table.rs", "fn f(s: &crate::analysis::event::Event) {}"),
        ("src/output/prometheus.rs", "fn f() { x!(y, crate::config::settings::document()) }"),
        ("src/output/web.rs", "mod m { use super::super::otlp::Config; }"),
        ("src/input/push/http.rs", "use crate::{model::ids::Run, net::server};"),
        ("src/input/push/wire.rs", "use super::inbox::Inbox;"),
        ("src/net/server.rs", "use crate::input;"),
        ("src/config/settings.rs", "use crate::output::*;"),
        ("src/commands/args.rs", "use crate::*;"),
        ("src/main.rs", "fn main() { stepmem::app::run() }"),
        ("src/nowhere/summary.rs", "fn f() {}"),
        ("src/text/units.rs", "use crate::report::summary::Summary;"),
    ];
    for (path, text) in cases {
        assert_eq!(planted(path, text).first(), Some(&Rule::Arrow), "{path}: {text}");
    }
}

#[test]
fn an_allowed_import_is_not_a_violation() {
    let cases = [
        (
            "src/analysis/engine.rs",
            "use crate::analysis::{rank::view::RankView, status::{self, Status}};",
        ),
        ("src/analysis/diagnosis/mod.rs", "mod imbalance; const X: X = imbalance::IMBALANCE;"),
        ("src/analysis/diagnosis/imbalance.rs", "use super::high_pressure::pressures;"),
        ("src/output/web.rs", "use crate::output::prometheus::{Format, render};"),
        ("src/input/nvml.rs", "mod raw { use super::Row; } use raw::Row;"),
        (
            "src/net/server.rs",
            "pub(crate) struct S { pub(in crate::net::server) a: super::server::T }",
        ),
        (
            "src/app/serve.rs",
            "use crate::{input, output}; fn f() { input::push::http::router() }",
        ),
        ("src/lib.rs", "pub mod app; pub mod commands;"),
        (
            "src/analysis/estimate.rs",
            "/// Unlike `crate::app::run`.\nfn f() { \"crate::app\"; }",
        ),
        ("src/analysis/estimate.rs", "#[cfg(test)] mod tests { use crate::app; }"),
    ];
    for (path, text) in cases {
        let found = check(path, text);
        assert!(found.is_empty(), "{path}: {text}: {found:?}");
    }
}

#[test]
fn a_planted_impurity_is_found() {
    let cases = [
        ("src/analysis/creep.rs", "use tokio::sync::mpsc;"),
        ("src/analysis/rank/state.rs", "fn f() { tracing::warn!(\"x\"); }"),
        ("src/model/units.rs", "use std::{fmt, fs::File};"),
        ("src/analysis/status.rs", "use std::sync::Arc;"),
        ("src/metrics/table.rs", "fn f() { std::env::var(\"A\"); }"),
        ("src/metrics/table.rs", "use std::net::{self, IpAddr};"),
        ("src/input/push/wire.rs", "fn f() -> T { T::now() }"),
        ("src/input/push/wire.rs", "fn f() { m! { x.await } }"),
        ("src/analysis/engine.rs", "pub async fn f() {}"),
        ("src/analysis/diagnosis/imbalance.rs", "use std::thread;"),
    ];
    for (path, text) in cases {
        assert_eq!(planted(path, text).first(), Some(&Rule::Pure), "{path}: {text}");
    }
}

#[test]
fn a_planted_spawn_is_found() {
    for text in [
        "fn f() { tokio::spawn(g()); }",
        "fn f(s: &S) { s.tasks.spawn(g()); }",
        "use tokio::task::JoinSet;",
        "use std::thread; fn f() { thread::Builder::new(); }",
        "fn f() { tokio::task::spawn_blocking(g); }",
    ] {
        assert_eq!(planted("src/input/push/http.rs", text), [Rule::Spawn], "{text}");
        assert_eq!(planted("src/app.rs", text), [], "{text}");
    }
}

#[test]
fn a_planted_clock_is_found() {
    for text in [
        "fn f() { std::time::Instant::now(); }",
        "use std::time::SystemTime as T; use std::time::UNIX_EPOCH;",
        "fn f() { SystemTime::now(); }",
        "fn f(since: Instant) { since.elapsed(); }",
    ] {
        assert_eq!(planted("src/net/server.rs", text), [Rule::Clock], "{text}");
        assert_eq!(planted("src/app.rs", text), [], "{text}");
    }
}

#[test]
fn a_planted_exit_is_found() {
    for text in [
        "fn f() { std::process::exit(1); }",
        "use std::process::exit; fn f() { exit(1); }",
        "fn f() { eprintln!(\"error\"); }",
        "fn f() { std::process::abort(); }",
    ] {
        assert_eq!(planted("src/commands/args.rs", text), [Rule::Exit], "{text}");
    }
}

#[test]
fn planted_reading_of_push_json_is_found() {
    for (path, text) in [
        ("src/input/push/http.rs", "fn f() { serde_json::from_slice(b); }"),
        ("src/input/push/inbox.rs", "use serde::Deserialize;"),
        ("src/metrics/table.rs", "#[derive(serde::Deserialize)] struct S;"),
        ("src/model/units.rs", "fn f(t: &str) { serde_json::from_str::<u8>(t); }"),
        ("src/commands/demo.rs", "use serde::{Deserialize, Serialize};"),
    ] {
        assert_eq!(planted(path, text), [Rule::PushJson], "{path}: {text}");
        assert_eq!(planted("src/input/push/wire.rs", text), [], "{text}");
    }
}

#[test]
fn a_planted_meeting_is_found() {
    for (path, text) in [
        ("src/input/push/http.rs", "use crate::output::web::StatusSource;"),
        ("src/input/nvml.rs", "fn f() { super::super::output::prometheus::render(); }"),
        ("src/output/otlp.rs", "use crate::{input::inbox::Inbox, metrics};"),
        ("src/output/web.rs", "use crate::app::App;"),
    ] {
        assert_eq!(planted(path, text), [Rule::Arrow, Rule::Meeting], "{path}: {text}");
    }
}

#[test]
fn planted_state_is_found() {
    for (path, text) in [
        ("src/output/web.rs", "use crate::analysis::engine::{Engine};"),
        ("src/commands/demo.rs", "fn f() { crate::analysis::engine::Engine::new(); }"),
        ("src/analysis/rank/state.rs", "static mut N: u32 = 0;"),
    ] {
        assert_eq!(planted(path, text).last(), Some(&Rule::Engine), "{path}: {text}");
    }
}

#[test]
fn a_planted_metric_name_is_found() {
    for text in [
        "const A: &str = \"stepmem_rank_step\";",
        "fn f() { format!(\"stepmem_{x}\"); }",
        "fn f() { g(\"process_open_fds\"); }",
    ] {
        assert_eq!(planted("src/output/prometheus.rs", text), [Rule::MetricName], "{text}");
        assert_eq!(planted("src/metrics/table.rs", text), [], "{text}");
    }
    let in_prose = "/// See `stepmem_rank_step`.\nfn f() {}";
    assert_eq!(planted("src/output/prometheus.rs", in_prose), []);
}
