//! Noise that is the same in every run of the tests (`SplitMix64`, Steele, Lea and Flood 2014).

/// A generator of even noise.
pub struct Noise(pub u64);

impl Noise {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let limit = u64::try_from(limit).unwrap();
        usize::try_from(mixed(self.0) % limit).unwrap()
    }
}

/// Even noise below `range` that depends on the rank and the step alone.
pub fn noise(rank: u64, step: u64, range: u64) -> u64 {
    mixed((rank << 32 | step).wrapping_mul(0x9E37_79B9_7F4A_7C15)) % range.max(1)
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
