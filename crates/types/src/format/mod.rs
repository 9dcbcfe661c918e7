//! Text for terminals and files: clean text, quantities, pages of paragraphs and tables,
//! sparklines. This module depends on no other module of the crate.

pub mod clean;
pub mod page;
pub mod spark;
pub mod units;
