//! Values of single fields, checked by the model's constructors. Errors name the field.

use crate::wire::error::{DecodeError, DecodeFault};
use crate::wire::number::Number;
use stepmem_types::host::ContainerId;
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::launch::{Instance, Launch};
use stepmem_types::units::{Bytes, Count, INTEGER_MAX, Seconds};

/// The greatest process id that a Linux kernel can be configured to (`PID_MAX_LIMIT`).
pub(super) const PID_MAX: u32 = 1 << 22;

pub(super) fn optional<T>(
    raw: Option<Number>,
    read: impl FnOnce(Number) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    raw.map(read).transpose()
}

pub(super) fn in_field<T>(
    field: &'static str,
    value: Result<T, impl Into<DecodeFault>>,
) -> Result<T, DecodeError> {
    value.map_err(|problem| DecodeError {
        record: None,
        field: field.to_owned(),
        problem: problem.into(),
    })
}

pub(super) fn integer_of(
    field: &'static str,
    raw: Number,
    max: u64,
) -> Result<u64, DecodeError> {
    in_field(field, raw.integer(0, max))
}

pub(super) fn bytes_of(field: &'static str, raw: Number) -> Result<Bytes, DecodeError> {
    in_field(field, Bytes::new(integer_of(field, raw, INTEGER_MAX)?))
}

pub(super) fn count_of(field: &'static str, raw: Number) -> Result<Count, DecodeError> {
    in_field(field, Count::new(integer_of(field, raw, INTEGER_MAX)?))
}

pub(super) fn rank_of(field: &'static str, raw: Number) -> Result<Rank, DecodeError> {
    in_field(field, Rank::new(integer_of(field, raw, Rank::MAX.into())?))
}

pub(super) fn small_of(
    field: &'static str,
    raw: Number,
    min: u32,
    max: u32,
) -> Result<u32, DecodeError> {
    let value = in_field(field, raw.integer(min.into(), max.into()))?;
    Ok(u32::try_from(value).unwrap_or(max))
}

pub(super) fn seconds_of(field: &'static str, raw: Number) -> Result<Seconds, DecodeError> {
    in_field(field, Seconds::new(raw.float()))
}

pub(super) fn run_of(text: &str) -> Result<Run, DecodeError> {
    in_field("run", Run::new(text))
}

pub(super) fn device_of(text: &str) -> Result<GpuUuid, DecodeError> {
    in_field("device", GpuUuid::new(text))
}

pub(super) fn container_of(text: &str) -> Result<ContainerId, DecodeError> {
    in_field("container", ContainerId::new(text))
}

pub(super) fn instance_of(text: &str) -> Result<Instance, DecodeError> {
    in_field("instance", Instance::new(text))
}

pub(super) fn launch_of(text: &str) -> Result<Launch, DecodeError> {
    in_field("launch", Launch::new(text))
}
