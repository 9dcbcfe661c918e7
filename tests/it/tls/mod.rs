//! `--web.config.file`: listeners over TCP that speak TLS, ask for certificates and passwords, and follow their files.

mod certificates;
mod clients;
mod flood;
mod mistakes;
mod passwords;
mod reload;
mod sidecar;
