//! Files of `--web.config.file`, and what clients show.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::rig::certificates::Pair;
use crate::rig::folder::Folder;

/// A file of TLS with these further lines.
pub fn web_config(folder: &Folder, server: &Pair, further: &str) -> String {
    let Pair { cert, key } = server;
    let text = format!("tls_server_config:\n  cert_file: {cert}\n  key_file: {key}\n{further}");
    folder.write("web.yml", &text)
}

/// A file with a user `scraper` whose password is this.
pub fn users(folder: &Folder, password: &str) -> String {
    let text = format!("basic_auth_users:\n  scraper: {}\n", hash(password));
    folder.write("web.yml", &text)
}

/// The hash of a password, as cheap as they come.
pub fn hash(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}

/// A header that shows a user and a password.
pub fn basic(user_and_password: &str) -> String {
    format!("Basic {}", STANDARD.encode(user_and_password))
}
