//! Random numbers, by which a launch's seed chooses among what the rules allow.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64, block: [u32; 3]) -> Self {
        let mut random = Random(seed);
        for part in block {
            random.0 = random.next() ^ u64::from(part);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`, nearly uniform.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Brings values into a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
