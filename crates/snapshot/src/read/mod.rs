//! The way from the bytes of a file to a snapshot: pickles, values, and the schema of each
//! PyTorch.

mod direct;
pub(crate) mod keys;
pub(crate) mod lists;
pub(crate) mod load;
pub(crate) mod pickle;
pub(crate) mod raw;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod sniff;
pub(crate) mod value;
