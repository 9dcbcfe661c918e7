#![doc = include_str!("../ARCHITECTURE.md")]

pub mod input;

pub mod output;

pub mod net;

pub mod store;

pub mod config;

pub mod exporter;

pub mod run;

pub mod commands;
