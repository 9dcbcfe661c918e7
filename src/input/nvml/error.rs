//! NVML's errors: their numbers, their names, and their consequences.

use nvml_wrapper::error::NvmlError;

use stepmem_types::device::GpuUnavailable;
use stepmem_types::ids::GpuUuid;
use stepmem_types::nvml_code::{LIBRARY_MISSING, SYMBOL_MISSING, nvml_code};
use stepmem_types::units::OutOfRange;

/// Reasons that a device, or NVML as a whole, does not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum GpuError {
    #[error("{call}: {reason}{}", code.advice())]
    Refused { call: &'static str, code: NvmlCode, reason: String },
    #[error("{reason}")]
    NoLibrary { reason: String },
    #[error("nvml counts 0 devices, {before} before")]
    NoDevices { before: usize },
    #[error("nvmlDeviceGetUUID: {reason}")]
    Uuid { reason: OutOfRange },
}

impl GpuError {
    pub(super) fn code(&self) -> NvmlCode {
        match self {
            Self::Refused { code, .. } => *code,
            Self::NoLibrary { .. } => NvmlCode::LibraryMissing,
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
            NvmlError::LibloadingError(error) => {
                return GpuError::NoLibrary { reason: error.to_string() };
            }
            NvmlError::UnexpectedVariant(number) => nvml_code(*number).replace('_', " "),
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
            Self::Nvml(number) => nvml_code(number),
            Self::LibraryMissing => LIBRARY_MISSING,
            Self::SymbolMissing => SYMBOL_MISSING,
        }
    }

    /// Advice for an operator, where NVML's message has none.
    fn advice(self) -> &'static str {
        match self {
            Self::Nvml(18) => {
                "; the library and the kernel module have different driver versions: \
                 restart the container or the node"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_keeps_the_number_that_nvml_gave() {
        for number in (1..=30).chain([999]) {
            assert_eq!(NvmlCode::from(NvmlError::from(number)), NvmlCode::Nvml(number));
        }
        let missing = NvmlError::FailedToLoadSymbol("nvmlInit_v2".to_owned());
        assert_eq!(NvmlCode::from(missing).as_label(), "symbol_missing");
    }
}
