#![doc = include_str!("../ARCHITECTURE.md")]

pub mod analysis;

pub mod metrics;

pub mod server;

pub mod input;

pub mod output;

pub mod config;

pub mod app;

pub mod demo;

pub mod file;

pub mod state;

pub mod recording;

pub mod replay;

pub mod summary;

pub mod report;

pub mod explain;

pub mod overview;

pub mod cli;
