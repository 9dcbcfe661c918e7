//! Any bytes as the body of every kind of push: decoded or refused, and a refusal repeats little of it.

use stepmem_engine::wire::{
    DecodeError, Layout, decode_ack, decode_device_ack, decode_end, decode_holders,
    decode_lines_request, decode_recorded, decode_release, decode_snapshot,
    decode_snapshot_request, decode_steps,
};
use stepmem_types::ids::{GpuUuid, Run};

/// A refusal's bytes, before the endpoint cuts it to 896 characters: each is at most four bytes, and may be escaped.
const REFUSAL_BYTES_MAX: usize = 8 * 1024;

/// The first byte says which decoder.
pub fn run(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    match kind % 9 {
        0 => check(decode_steps(body, Layout::Json)),
        1 => check(decode_steps(body, Layout::NdJson)),
        2 => check(decode_end(body)),
        3 => check(decode_release(body)),
        4 => check(decode_ack(Run::new("fuzzed").expect("a name"), body)),
        5 => check(decode_device_ack(GpuUuid::new("GPU-0").expect("a name"), body)),
        6 => {
            check(decode_snapshot_request(Run::new("fuzzed").expect("a name"), body));
            check(decode_lines_request(Run::new("fuzzed").expect("a name"), body));
        }
        7 => check(decode_snapshot(body, Some(1000))),
        _ => {
            check(decode_holders(body));
            check(decode_recorded(body));
        }
    }
}

fn check<T>(decoded: Result<T, DecodeError>) {
    if let Err(error) = decoded {
        let text = error.to_string();
        assert!(text.len() <= REFUSAL_BYTES_MAX, "{} bytes", text.len());
    }
}
