//! Numbers that look random and are the same in every run.

/// SplitMix64, and the sum of the four 16-bit parts of a number for a normal one (Irwin-Hall).
#[derive(Clone, Debug)]
pub struct Random(
    /// What decides everything that follows.
    pub u64,
);

/// The most that [`Random::normal`] comes to: all four parts at their largest.
pub const LARGEST_NORMAL: f32 = MEAN / DEVIATION;

const MEAN: f32 = 131_070.5;

/// Four uniform parts of 16 bits: sqrt(4 / 12) * 2^16.
const DEVIATION: f32 = 37_837.23;

impl Random {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Mean 0, standard deviation 1, never 0: the sum is whole, and its mean is moved by one half.
    pub fn normal(&mut self) -> f32 {
        let number = self.bits();
        let sum: u32 = (0..4)
            .map(|part| (number >> (16 * part)) as u32 & 0xffff)
            .sum();
        (sum as f32 - MEAN) / DEVIATION
    }
}
