//! Memory that the process does not need: freed memory, and the code of the start.

use crate::exporter::own_process;
use stepmem_engine::saved::SavedState;

/// Size from which memory is its own mapping, which is unmapped when it is freed: glibc's
/// default, fixed. Otherwise glibc raises it to the largest size that was ever freed, and keeps
/// twice as much at the top of its heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 128 * 1024;

/// Bytes that the exporter needs in addition to its ranks, their state and a summary of them.
const OTHER_BYTES: usize = 40 * 1024 * 1024;

/// Returns the number of ranks that fit into the address space that is left to this process
/// (`ulimit -v`), and that limit in bytes, if so many do not. Half as much again as the ranks
/// take: a state is read, and a summary made, next to them.
pub(crate) fn fewer_ranks(ranks_max: usize) -> Option<(usize, u64)> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let left = limit.saturating_sub(own_process::mapped_bytes()?);
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let needs = |n_ranks| SavedState::bytes_max(n_ranks) / 2 * 3 + OTHER_BYTES;
    if needs(ranks_max) <= left {
        return None;
    }
    let of_rank = (needs(1) - needs(0)).max(1);
    let n_ranks = left.saturating_sub(needs(0)) / of_rank;
    Some((n_ranks.clamp(1, ranks_max), limit))
}

/// Has glibc keep little freed memory, for a process that runs long next to others. Another
/// allocator stays as it is.
pub(super) fn give_back_early() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES),
        (libc::M_TRIM_THRESHOLD, MAPPED_FROM_BYTES),
        // All threads but the serving one allocate little: they get no heap each.
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

/// Has the system unmap the code that only the start needed. Pages that are called again are
/// mapped again, from the file or from the system's cache of it. Where that is not known to be
/// safe, everything stays as it is.
///
/// Linux maps 16 pages where one is touched, so that after the start nearly all code counts as
/// resident.
pub(super) fn unmap_code() {
    #[cfg(target_os = "linux")]
    if let Some(code) = own_code() {
        let start = std::ptr::without_provenance_mut(code.start);
        #[expect(unsafe_code, reason = "a C call without a safe form")]
        // SAFETY: the range is one mapping of this program's file, which cannot be written.
        // Every page of it can therefore be read from the file again.
        let is_done = unsafe { libc::madvise(start, code.len(), libc::MADV_DONTNEED) } == 0;
        if !is_done {
            tracing::debug!("the system keeps the code of the start");
        }
    }
}

/// Returns the address range of this program's code; `None` if that is not one private mapping
/// that can only be read and executed.
#[cfg(target_os = "linux")]
fn own_code() -> Option<std::ops::Range<usize>> {
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut found = maps.lines().filter_map(|line| code_of(line, program.to_str()?));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Returns the range of a line of `/proc/PID/maps` if it holds code of `program`.
#[cfg(target_os = "linux")]
fn code_of(line: &str, program: &str) -> Option<std::ops::Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    let is_code = rights == "r-xp" && words.nth(3) == Some(program) && words.next().is_none();
    let (start, end) = range.split_once('-').filter(|_| is_code)?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{code_of, own_code, unmap_code};

    #[test]
    fn code_is_what_can_be_run_of_the_program_itself() {
        let line =
            |rights: &str, path: &str| format!("1000-3000 {rights} 00001000 fd:00 7 {path}");
        assert_eq!(code_of(&line("r-xp", "/bin/it"), "/bin/it"), Some(0x1000..0x3000));
        for (rights, path) in [
            ("r--p", "/bin/it"),
            ("rwxp", "/bin/it"),
            ("r-xs", "/bin/it"),
            ("r-xp", "/lib/other"),
            ("r-xp", "/bin/it (deleted)"),
            ("r-xp", ""),
        ] {
            assert_eq!(code_of(&line(rights, path), "/bin/it"), None, "{rights} {path}");
        }
    }

    #[test]
    fn program_whose_code_was_unmapped_runs_on() {
        assert!(own_code().is_some());
        unmap_code();
        assert!(own_code().is_some());
    }
}
