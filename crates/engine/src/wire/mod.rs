//! The push format, version 1: bytes to samples, and responses to bytes. The only module that
//! knows its JSON keys. Pure.

mod answer;
mod control;
mod echo;
mod error;
mod field;
mod holders;
mod json;
mod number;
mod plain;
mod recorded;
mod recording;
mod request;
mod step;

pub use answer::{
    encode_accepted, encode_acknowledged, encode_elsewhere, encode_name_conflict,
    encode_problem, encode_requested,
};
pub use control::{
    RELEASE_SECONDS_MAX, decode_ack, decode_device_ack, decode_end, decode_lines_request,
    decode_release, decode_snapshot, decode_snapshot_request,
};
pub use echo::{ECHO_CHARS_MAX, shortened};
pub use error::DecodeError;
pub use holders::decode_holders;
pub use recorded::decode_recorded;
pub use recording::{
    RECORDING_VERSION, RecordedEvent, RecordedLine, RecordingHead, decode_line,
};
pub use request::ControlRequest;
pub use step::{KEYS, Key, Layout, decode_steps};
