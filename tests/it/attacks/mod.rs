//! Attacks with default settings: each leaves the memory bounded, loses no push of others, and does not keep a scrape
//! waiting.

mod bodies;
mod browser;
mod buttons;
mod files;
mod names;
mod readers;
mod recordings;
mod redirects;
mod states;
mod summaries;
mod terminal;
