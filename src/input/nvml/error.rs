//! NVML's errors: their numbers, their names, and their consequences.

use nvml_wrapper::error::NvmlError;

use stepmem_types::device::GpuUnavailable;
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::OutOfRange;

/// The last number of `nvmlReturn_t` that has a name here.
const LAST_NUMBER: u32 = 30;
/// The code for an NVML library that is not installed.
pub const LIBRARY_MISSING: &str = "library_missing";

/// Reasons that a device, or NVML as a whole, does not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum GpuError {
    #[error("{call}: {reason}{}", code.advice())]
    Refused { call: &'static str, code: NvmlCode, reason: String },
    #[error("nvml counts 0 devices, {before} before")]
    NoDevices { before: usize },
    #[error("nvmlDeviceGetUUID: {reason}")]
    Uuid { reason: OutOfRange },
}

impl GpuError {
    pub(super) fn code(&self) -> NvmlCode {
        match self {
            Self::Refused { code, .. } => *code,
            Self::NoDevices { .. } => NvmlCode::Nvml(28),
            Self::Uuid { .. } => NvmlCode::Nvml(999),
        }
    }

    pub(super) fn as_label(&self) -> &'static str {
        self.code().as_label()
    }

    /// Returns whether a new initialization may help.
    pub(super) fn wants_restart(&self) -> bool {
        self.is_device_out() || self.code() == NvmlCode::Nvml(999)
    }

    /// Returns whether the device or all of NVML is unusable, not just the call.
    pub(super) fn is_device_out(&self) -> bool {
        matches!(self.code(), NvmlCode::Nvml(1 | 9 | 15 | 16 | 28))
    }

    pub(super) fn report(&self, device: Option<GpuUuid>) -> GpuUnavailable {
        GpuUnavailable { device, code: self.as_label(), message: self.to_string() }
    }
}

/// Converts an error of `call`.
pub(super) fn refused(call: &'static str) -> impl Fn(NvmlError) -> GpuError {
    move |error| {
        let reason = match &error {
            NvmlError::UnexpectedVariant(number) => label(*number).replace('_', " "),
            other => other.to_string(),
        };
        GpuError::Refused { call, code: NvmlCode::from(error), reason }
    }
}

/// The kind of an NVML error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvmlCode {
    /// A number of `nvmlReturn_t`.
    Nvml(u32),
    LibraryMissing,
    SymbolMissing,
}

impl NvmlCode {
    fn as_label(self) -> &'static str {
        match self {
            Self::Nvml(number) => label(number),
            Self::LibraryMissing => LIBRARY_MISSING,
            Self::SymbolMissing => "symbol_missing",
        }
    }

    /// Advice for an operator, where NVML's message has none.
    fn advice(self) -> &'static str {
        match self {
            Self::Nvml(18) => {
                "; the library and the kernel module are of different driver versions, \
                 which only a restart of the container or the node mends"
            }
            _ => "",
        }
    }
}

impl From<NvmlError> for NvmlCode {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) => Self::LibraryMissing,
            NvmlError::FailedToLoadSymbol(_) => Self::SymbolMissing,
            other => Self::Nvml(other.into()),
        }
    }
}

/// Returns the code of this name in a recording; `unknown` for a name that no version has.
pub fn known_code(name: &str) -> &'static str {
    let others = [NvmlCode::LibraryMissing.as_label(), NvmlCode::SymbolMissing.as_label()];
    let known = (1..=LAST_NUMBER).map(label).chain(others).find(|label| *label == name);
    known.unwrap_or(label(0))
}

/// NVML's name of an `nvmlReturn_t`, in lower case and without `NVML_ERROR_`.
pub(super) fn label(number: u32) -> &'static str {
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
    use super::*;

    #[test]
    fn label_is_nvmls_own_name_in_lower_case() {
        let check = |number, expected| assert_eq!(label(number), expected);
        check(1, "uninitialized");
        check(15, "gpu_is_lost");
        check(18, "lib_rm_version_mismatch");
        check(25, "argument_version_mismatch");
        check(28, "gpu_not_found");
        check(999, "unknown");
        check(31, "unknown");
    }

    #[test]
    fn code_keeps_the_number_that_nvml_gave() {
        for number in (1..=30).chain([999]) {
            assert_eq!(NvmlCode::from(NvmlError::from(number)), NvmlCode::Nvml(number));
        }
        let missing = NvmlError::FailedToLoadSymbol("nvmlInit_v2".to_owned());
        assert_eq!(NvmlCode::from(missing).as_label(), "symbol_missing");
    }
}
