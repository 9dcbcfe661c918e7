//! How soon the allocator gives memory back to the system.

/// From this size on, memory is a mapping of its own, which goes when it is freed: glibc's own figure, fixed. Left alone, glibc
/// raises it to the largest that was ever freed, and keeps twice as much at the top of its heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 128 * 1024;

/// Has glibc keep little of what is freed, for a process that lives long beside others. Another allocator stays as it is.
pub(super) fn give_back_early() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, MAPPED_FROM_BYTES),
        // The threads beside the one that serves allocate little: no heap is kept for each.
        (libc::M_ARENA_MAX, 1),
    ] {
        #[expect(
            unsafe_code,
            reason = "a C call without a safe form, sound with any arguments"
        )]
        // SAFETY: it takes two integers by value, and refuses those that it does not know.
        let is_taken = unsafe { libc::mallopt(option, value) } == 1;
        if !is_taken {
            tracing::debug!(option, value, "the allocator refuses an option");
        }
    }
}
