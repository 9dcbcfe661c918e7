//! What may be said to a person. `table` has a row for each kind of statement: its words, the
//! evidence that it needs, when it may be said, and how far it may be off. Code that has the
//! evidence makes a `statement`, joins statements to a `sentence`, and says sentences on a
//! `telling`, which is text and a list of statements at once.

mod row;
mod sentence;
mod statement;
mod table;
mod telling;

pub use sentence::Sentence;
pub use statement::Statement;
pub use table::{Claim, document};
pub use telling::{Telling, contradictions};
