//! The settings: a table, the sources of their values, and the modules' configurations that
//! they become.

mod devices;
pub mod environment;
pub mod error;
mod file;
pub mod keys;
mod misspelled;
mod otlp;
pub mod page;
pub mod settings;
pub mod sources;
pub mod table;
pub mod token;
mod values;
pub mod web_file;
mod yaml;
