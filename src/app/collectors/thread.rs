//! Threads of collectors: calls of the driver may hang, so that they never run on the runtime's.

/// The stack of the threads that ask NVML, in bytes.
const THREAD_STACK_BYTES: usize = 512 * 1024;

/// Starts a thread that ends with the program.
///
/// # Errors
/// There is no room for a thread.
pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(THREAD_STACK_BYTES).spawn(body).map(drop)
}
