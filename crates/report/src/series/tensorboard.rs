//! TensorBoard's event files: records of TensorFlow's format, each with its length and two
//! masked checksums (CRC-32C), and in each an event.

use prost::Message;

use crate::series::error::SeriesError;
use crate::series::gather::Gather;
use crate::series::model::ROW_BYTES_MAX;
use crate::series::packed::Event;
use stepmem_types::units::UnixTime;

/// Bytes of a length, of a checksum.
const LENGTH_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;

/// A record of a file.
enum Record<'a> {
    Whole(&'a [u8]),
    /// A record whose checksum is not that of its bytes.
    Damaged,
    /// Nothing after it can be read.
    Cut,
}

/// Returns whether a file begins as an event file does: with a length and its checksum.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    length(bytes).is_some()
}

/// Reads the scalars of all events.
pub(super) fn read(mut bytes: &[u8], gather: &mut Gather<'_>) -> Result<(), SeriesError> {
    while !bytes.is_empty() {
        let event = match next(&mut bytes) {
            Record::Whole(data) if data.len() > ROW_BYTES_MAX => {
                gather.left_out.records_too_long += 1;
                continue;
            }
            Record::Whole(data) => Event::decode(data).ok(),
            Record::Damaged => None,
            Record::Cut => {
                gather.left_out.is_cut = true;
                break;
            }
        };
        let Some(event) = event else {
            gather.left_out.records_damaged += 1;
            continue;
        };
        let time = UnixTime::new(event.wall_time).ok();
        for value in event.summary.iter().flat_map(|summary| &summary.value) {
            let Some(number) = value.number() else { continue };
            let column = gather.column(&value.tag)?;
            match time {
                Some(time) => gather.point(column, time.get(), number)?,
                None => gather.left_out.rows_without_time += 1,
            }
        }
    }
    Ok(())
}

/// Takes the next record.
fn next<'a>(bytes: &mut &'a [u8]) -> Record<'a> {
    let Some(length) = length(bytes).and_then(|length| usize::try_from(length).ok()) else {
        return Record::Cut;
    };
    let rest = bytes.get(LENGTH_BYTES + CHECKSUM_BYTES..).unwrap_or_default();
    let Some((data, rest)) = rest.split_at_checked(length) else { return Record::Cut };
    let Some((checksum, rest)) = rest.split_first_chunk::<CHECKSUM_BYTES>() else {
        return Record::Cut;
    };
    *bytes = rest;
    if u32::from_le_bytes(*checksum) == masked(data) {
        Record::Whole(data)
    } else {
        Record::Damaged
    }
}

/// Returns the length that a record begins with, if its checksum is right.
fn length(bytes: &[u8]) -> Option<u64> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let (checksum, _) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u32::from_le_bytes(*checksum) == masked(length)).then(|| u64::from_le_bytes(*length))
}

/// Returns the checksum of bytes as records have it: turned by 15 bits, and a constant added.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C of bytes (Castagnoli's polynomial, reflected), half a byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let halves = bytes.iter().flat_map(|byte| [byte & 0xf, byte >> 4]);
    !halves.fold(!0, |crc: u32, half| {
        (0..4).fold(crc ^ u32::from(half), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{crc32c, masked, read};
    use crate::series::gather::Gather;
    use crate::series::model::{ROW_BYTES_MAX, Wanted};

    #[test]
    fn records_too_long_for_scalars_are_left_out() {
        let mut file = Vec::new();
        for record in [vec![0; ROW_BYTES_MAX + 1], vec![0xff]] {
            let length = u64::try_from(record.len()).unwrap().to_le_bytes();
            for part in [&length[..], &record] {
                file.extend(part);
                file.extend(masked(part).to_le_bytes());
            }
        }
        let wanted = Wanted::default();
        let mut gather = Gather::new(&wanted);
        read(&file, &mut gather).unwrap();
        let left_out = gather.left_out;
        assert_eq!((left_out.records_too_long, left_out.records_damaged), (1, 1));
        assert!(!left_out.is_cut);
    }

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b""), 0);
        // The length of a first record, `brain.Event:2`.
        assert_eq!(masked(&24_u64.to_le_bytes()), u32::from_le_bytes([0xa3, 0x7f, 0x4b, 0x22]));
    }
}
