//! The state of a process, as the kernel reports it: running, stopped or ended.

/// The state of a process in job control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// True if the process is gone, or waits for its parent to ask for its exit code.
    pub has_ended: bool,
    pub is_stopped: bool,
    /// True if the process's group is in the foreground of its controlling terminal.
    pub is_in_foreground: bool,
}

impl ProcessState {
    /// Returns the state of a process. A process of another session cannot ask the terminal
    /// itself.
    pub fn of(pid: i32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may hold anything: state, parent, group, session, terminal, the
        // terminal's group.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        match fields.split(' ').collect::<Vec<_>>().as_slice() {
            [state, _, group, _, _, foreground, ..] => {
                let has_ended = matches!(*state, "Z" | "X");
                let is_in_foreground = group == foreground;
                Self { has_ended, is_stopped: *state == "T", is_in_foreground }
            }
            _ => Self { has_ended: true, ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessState;

    #[test]
    fn process_that_does_not_exist_has_ended_and_is_neither_stopped_nor_in_the_foreground() {
        let gone = ProcessState { has_ended: true, ..ProcessState::default() };
        assert_eq!(ProcessState::of(i32::MAX), gone);
    }
}
