#![doc = include_str!("../ARCHITECTURE.md")]

pub mod model;

pub mod text;

pub mod detect;

pub mod analysis;

pub mod metrics;

pub mod report;

pub mod snapshot;

pub mod input;

pub mod output;

pub mod net;

pub mod store;

pub mod config;

pub mod app;

pub mod commands;
