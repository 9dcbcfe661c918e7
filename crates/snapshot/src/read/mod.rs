//! From the bytes of a file to a snapshot: pickles, values, and the schema of each PyTorch.

pub mod keys;
pub mod lists;
pub mod load;
pub mod pickle;
pub mod raw;
pub mod schema;
pub mod sniff;
pub mod value;
