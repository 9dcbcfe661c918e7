//! Documents against the code: the table of bounds, the promises of the security page, the push format. `source` reads a file,
//! `house` all of them, and each rule has a planted breach that it must find. Code behind `#[cfg(test)]` is free.

mod tokens;

mod paths;

mod items;

mod source;

mod house;

mod push_format;

mod bounds;

mod values;

mod standalone;

mod promises;
