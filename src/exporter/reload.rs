//! Files that are read again while the exporter runs: on SIGHUP, and when they change.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::token;
use crate::input::push::http::TokenFile;
use crate::input::push::roles::Token;
use crate::store::open;

/// Interval at which the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Length in bytes below which a token causes a warning: so many hexadecimal digits are 64
/// bits.
const TOKEN_BYTES_MIN: usize = 16;

/// The triggers for reading files again, and for stopping.
#[derive(Clone)]
pub(super) struct ReloadedFiles {
    pub(super) reloads: watch::Receiver<u64>,
    pub(super) stop: watch::Receiver<bool>,
}

impl ReloadedFiles {
    /// Waits until the files are to be checked. Returns false once the exporter stops.
    pub(super) async fn wait(&mut self) -> bool {
        tokio::select! {
            _ = self.stop.wait_for(|is_stopped| *is_stopped) => false,
            // Without a sender, no further signal comes.
            Ok(()) = self.reloads.changed() => true,
            () = tokio::time::sleep(LOOK_EVERY) => true,
        }
    }
}

/// Reads the token again until the exporter stops. A file with an error leaves the token as it
/// was.
pub(super) async fn keep_token(
    (setting, path): (&'static str, PathBuf),
    tokens: watch::Sender<Token>,
    mut files: ReloadedFiles,
) -> anyhow::Result<()> {
    let at_start = TokenFile { path: path.clone(), token: tokens.borrow().clone() };
    for warning in token_warnings(setting, &at_start) {
        tracing::warn!("{warning}");
    }
    let mut is_failing = false;
    while files.wait().await {
        let of_task = path.clone();
        match tokio::task::spawn_blocking(move || token::read(&of_task)).await? {
            Ok(fresh) => {
                is_failing = false;
                let is_new = tokens.send_if_modified(|token| {
                    let is_new = token.0 != fresh;
                    token.0 = fresh;
                    is_new
                });
                if is_new {
                    tracing::info!(path = %path.display(), "token reloaded");
                }
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(setting, %error, "token not reloaded; the previous one stays in force");
                }
                is_failing = true;
            }
        }
    }
    Ok(())
}

/// Returns a sentence of warning for a token that can be guessed, and for one that every user of
/// the machine can read, with the setting that names its file.
pub fn token_warnings(setting: &str, TokenFile { path, token }: &TokenFile) -> Vec<String> {
    let (shown, n_bytes) = (path.display(), token.0.len());
    let short = (n_bytes < TOKEN_BYTES_MIN).then(|| {
        format!(
            "{setting}: {shown}: the token is short, with {n_bytes} bytes: use at least {TOKEN_BYTES_MIN} random characters"
        )
    });
    let public = open::public_mode(path).map(|_| {
        format!("{setting}: {shown}: every user can read the token: make it readable only by its owner")
    });
    short.into_iter().chain(public).collect()
}
