//! The way from the bytes of a file to a snapshot: pickles, values, and the schema of each
//! PyTorch.

mod direct;
pub mod keys;
pub mod lists;
pub mod load;
pub mod pickle;
pub mod raw;
pub mod runs;
pub mod schema;
pub mod sniff;
pub mod value;
