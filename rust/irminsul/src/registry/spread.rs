//! Keys that are hashes or counters already -> places in a hash map.
//!
//! Knows nothing of what the keys stand for.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Spreads keys by one multiplication a word, folded. The standard hasher takes longer than the
/// rest of a probe.
///
/// The seed is unknown to clients, who choose some of the keys. No plan depends on it, nor on any
/// map's order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    seed: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl BuildHasher for Spread {
    type Hasher = SpreadHasher;

    fn build_hasher(&self) -> SpreadHasher {
        SpreadHasher(self.seed)
    }
}

/// State of [`Spread`].
#[derive(Debug)]
pub(crate) struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk
                .iter()
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte));
            self.write_u64(word);
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_spread_over_high_and_low_bits() {
        let spread = Spread::default();
        for shift in [0, 57] {
            let mut counts = [0_u32; 128];
            for key in 0..128_000_u64 {
                counts[(spread.hash_one((7_u64, key)) >> shift) as usize & 127] += 1;
            }
            let (min, max) = (counts.iter().min(), counts.iter().max());
            assert!(min > Some(&700) && max < Some(&1_300), "{counts:?}");
        }
    }
}
