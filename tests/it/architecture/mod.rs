//! The invariants of ARCHITECTURE.md, held over the text of `src/` and of these tests: `source` reads a file, `house`
//! all of them, and each rule has a file of its own with a planted breach that it must find. Code behind `#[cfg(test)]`
//! is free.

mod tokens;

mod paths;

mod items;

mod source;

mod house;

mod arrows;

mod circles;

mod doors;

mod sizes;

mod purity;

mod effects;

mod push_format;

mod names;

mod docs;

mod bounds;

mod values;

mod costs;

mod standalone;

mod promises;
