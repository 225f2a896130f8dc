//! Tokens of one chunk -> a 64-bit fingerprint.
//!
//! An index, never a proof: whoever finds a donor by it compares the ids. Two texts may share one.

use std::hash::Hasher;

use twox_hash::XxHash64;

/// Tokens copied to bytes at a time.
const BLOCK: usize = 64;

/// xxHash64 with seed 0 of the ids as little-endian 32-bit words.
///
/// ```
/// assert_eq!(irminsul::fingerprint(&[]), 0xEF46_DB37_51D8_E999);
/// ```
pub fn fingerprint(tokens: &[u32]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    let mut bytes = [0_u8; 4 * BLOCK];
    for block in tokens.chunks(BLOCK) {
        for (slot, token) in bytes.chunks_exact_mut(4).zip(block) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        hasher.write(&bytes[..4 * block.len()]);
    }
    hasher.finish()
}
