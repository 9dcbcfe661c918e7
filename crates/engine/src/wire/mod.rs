//! The push format, version 1: bytes to samples, and responses to bytes. The only module that
//! knows its JSON keys. Pure.

pub mod answer;
pub mod control;
pub mod echo;
pub mod error;
mod field;
pub mod holders;
mod json;
mod number;
mod plain;
pub mod recorded;
pub mod recording;
pub mod request;
pub mod step;
