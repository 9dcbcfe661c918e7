//! Event files of TensorBoard: as they are, and with right checksums around each part between zeros, which no mutation finds.

use stepmem_report::series::{Wanted, decode};

use crate::series_tables::{is_plain, judged};

/// What stands between two events.
const SEPARATOR: &[u8] = b"\x00\xff--";

pub fn run(data: &[u8]) {
    let mut file = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|part| part == SEPARATOR) {
        add(&mut file, &rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    add(&mut file, rest);
    for bytes in [data, &file] {
        match decode(bytes, &Wanted::default()) {
            Ok(decoded) => judged(decoded),
            Err(error) => is_plain(&error.to_string()),
        }
    }
}

fn add(file: &mut Vec<u8>, event: &[u8]) {
    let length = u64::try_from(event.len()).expect("it fits").to_le_bytes();
    for part in [&length[..], event] {
        file.extend(part);
        file.extend(masked(part).to_le_bytes());
    }
}

fn masked(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}
