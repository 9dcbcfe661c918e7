//! Threads for calls of the driver, which may hang and therefore never run on the runtime's
//! threads.

/// Stack size, in bytes.
const THREAD_STACK_BYTES: usize = 512 * 1024;

/// Starts a thread that runs until the process ends.
///
/// # Errors
/// The system cannot start another thread.
pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(THREAD_STACK_BYTES).spawn(body).map(drop)
}
