//! Text for terminals and files: clean text, quantities, pages of paragraphs and tables, sparklines. This room knows
//! nothing of the others.

pub mod clean;
pub mod page;
pub mod spark;
pub mod units;
