//! Text for terminals and files: quantities, wrapped pages, sparklines. It knows nothing of ours.

pub mod units;
