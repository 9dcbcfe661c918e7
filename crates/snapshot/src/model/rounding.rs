//! The allocator's rounding of a request up to a block.

/// The allocator rounds requests up to this.
const GRAIN_BYTES: u64 = 512;
/// Requests from this size on, and each power of two above it, have divisions of their own;
/// smaller ones those of the first.
const FIRST_POWER: u32 = 20;
/// Powers of two with divisions.
pub(crate) const POWERS: usize = 16;

/// `roundup_power2_divisions`: the number of parts into which the allocator divides the space
/// between a power of two and the next. One entry a power, from 1 MiB up; 0 and 1 are its
/// default, multiples of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    pub divisions: [u64; POWERS],
}

impl Rounding {
    /// A request as the allocator rounds it.
    #[inline]
    pub fn round(&self, requested: u64) -> u64 {
        if self.divisions == [0; POWERS] {
            return rounded(requested);
        }
        self.round_by_divisions(requested)
    }

    fn round_by_divisions(&self, requested: u64) -> u64 {
        let power = requested.max(1).ilog2().saturating_sub(FIRST_POWER);
        let power = usize::try_from(power).unwrap_or(POWERS).min(POWERS - 1);
        let divisions = self.divisions.get(power).copied().unwrap_or(0);
        if divisions < 2
            || requested <= divisions.saturating_mul(GRAIN_BYTES)
            || requested.is_power_of_two()
        {
            return rounded(requested);
        }
        let floor = 1_u64 << requested.ilog2();
        match floor >> divisions.ilog2() {
            0 => floor.saturating_mul(2),
            part => requested.checked_next_multiple_of(part).unwrap_or(requested),
        }
    }
}

/// A request as the allocator rounds it by default.
#[inline]
pub(crate) fn rounded(requested: u64) -> u64 {
    requested.max(1).next_multiple_of(GRAIN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn without_divisions_blocks_are_multiples_of_512() {
        assert_eq!(Rounding::default().round(0), 512);
        assert_eq!(Rounding::default().round(1025), 1536);
        assert_eq!(Rounding { divisions: [1; POWERS] }.round(5 * MIB + 1), 5 * MIB + 512);
    }

    #[test]
    fn divisions_round_up_to_parts_of_a_power_of_two() {
        let quarters = Rounding { divisions: [4; POWERS] };
        assert_eq!(quarters.round(1200), 1536, "small requests as ever");
        assert_eq!(quarters.round(4 * MIB), 4 * MIB);
        assert_eq!(quarters.round(4 * MIB + 1), 5 * MIB);
        assert_eq!(quarters.round(7 * MIB + 1), 8 * MIB);
        assert_eq!(quarters.round(700 * 1024), 768 * 1024, "below 1 MiB as at 1 MiB");
    }

    #[test]
    fn each_power_of_two_has_its_own_divisions() {
        let mut rounding = Rounding::default();
        rounding.divisions[2] = 2;
        assert_eq!(rounding.round(5 * MIB), 6 * MIB);
        assert_eq!(rounding.round(3 * MIB + 1), 3 * MIB + 512);
        assert_eq!(rounding.round(9 * MIB + 1), 9 * MIB + 512);
        assert_eq!(rounding.round(u64::MAX >> 1), 1 << 63, "beyond the last power");
    }
}
