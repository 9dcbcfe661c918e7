//! The state of a process, as the kernel reports it.

/// Returns whether a process is gone, or waits for its parent to ask for its exit code.
pub fn has_exited(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may hold anything.
    let state = stat.rsplit(") ").next().unwrap_or_default().chars().next();
    state.is_none_or(|state| matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::has_exited;

    #[test]
    fn process_that_does_not_exist_has_exited_and_this_one_has_not() {
        assert!(has_exited(u32::MAX));
        assert!(!has_exited(std::process::id()));
    }
}
