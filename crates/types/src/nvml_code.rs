//! The names of NVML's errors, and of the two ways in which its library is not usable.

/// The code for an NVML library that is not installed.
pub const LIBRARY_MISSING: &str = "library_missing";
/// The code for an NVML library that lacks a function.
pub const SYMBOL_MISSING: &str = "symbol_missing";
/// The last number of `nvmlReturn_t` that has a name here.
const LAST_NUMBER: u32 = 30;

/// Returns the code of this name in a recording; `unknown` for a name that no version has.
pub fn known_code(name: &str) -> &'static str {
    let others = [LIBRARY_MISSING, SYMBOL_MISSING];
    let known = (1..=LAST_NUMBER).map(nvml_code).chain(others).find(|code| *code == name);
    known.unwrap_or(nvml_code(0))
}

/// Returns NVML's name of an `nvmlReturn_t`, in lower case and without `NVML_ERROR_`.
pub fn nvml_code(number: u32) -> &'static str {
    match number {
        1 => "uninitialized",
        2 => "invalid_argument",
        3 => "not_supported",
        4 => "no_permission",
        5 => "already_initialized",
        6 => "not_found",
        7 => "insufficient_size",
        8 => "insufficient_power",
        9 => "driver_not_loaded",
        10 => "timeout",
        11 => "irq_issue",
        12 => "library_not_found",
        13 => "function_not_found",
        14 => "corrupted_inforom",
        15 => "gpu_is_lost",
        16 => "reset_required",
        17 => "operating_system",
        18 => "lib_rm_version_mismatch",
        19 => "in_use",
        20 => "memory",
        21 => "no_data",
        22 => "vgpu_ecc_not_supported",
        23 => "insufficient_resources",
        24 => "freq_not_supported",
        25 => "argument_version_mismatch",
        26 => "deprecated",
        27 => "not_ready",
        28 => "gpu_not_found",
        29 => "invalid_state",
        30 => "reset_type_not_supported",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::{known_code, nvml_code};

    #[test]
    fn code_is_nvmls_own_name_in_lower_case() {
        let check = |number, expected| assert_eq!(nvml_code(number), expected);
        check(1, "uninitialized");
        check(15, "gpu_is_lost");
        check(18, "lib_rm_version_mismatch");
        check(25, "argument_version_mismatch");
        check(28, "gpu_not_found");
        check(999, "unknown");
        check(31, "unknown");
    }

    #[test]
    fn name_that_no_version_has_is_unknown() {
        let check = |name, expected| assert_eq!(known_code(name), expected);
        check("gpu_is_lost", "gpu_is_lost");
        check("library_missing", "library_missing");
        check("reset_type_not_supported", "reset_type_not_supported");
        check("made_up", "unknown");
    }
}
