//! Chunk sizes and the secret -> validated parameters and the cut threshold.
//!
//! Knows nothing of tokens. Content chunked under different parameters never matches.

use crate::error::{Result, check};
use crate::gear::WINDOW;

/// Largest `max` that is accepted; a registry keeps up to `max` tokens of context per insertion.
const MAX_CHUNK: u32 = 1 << 20;

/// How a token sequence is cut into chunks. Lengths are in tokens.
///
/// ```
/// use irminsul::ChunkParams;
/// let params = ChunkParams::new(64, 128, 512, 0)?;
/// assert_eq!(params, ChunkParams::default());
/// assert!(ChunkParams::new(32, 128, 512, 0).is_err());
/// # Ok::<(), irminsul::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkParams {
    min: u32,
    avg: u32,
    max: u32,
    secret: u32,
}

impl ChunkParams {
    /// Checks the sizes: `64 <= min`, `min + 2 <= avg <= max <= 2^20`.
    ///
    /// `min` covers the hash window, so that every content cut depends on the last 64 tokens and on nothing
    /// before them; insertions therefore disturb only the chunks they touch.
    ///
    /// # Errors
    /// `InvalidParams` names the size that is out of range.
    pub fn new(min: u32, avg: u32, max: u32, secret: u32) -> Result<Self> {
        let int = i128::from;
        check(
            min >= WINDOW as u32,
            "min",
            int(min),
            "at least 64, the window of the rolling hash",
        )?;
        check(
            avg >= min.saturating_add(2),
            "avg",
            int(avg),
            "at least min + 2",
        )?;
        check(max >= avg, "max", int(max), "at least avg")?;
        check(max <= MAX_CHUNK, "max", int(max), "at most 1048576")?;
        Ok(Self {
            min,
            avg,
            max,
            secret,
        })
    }

    /// Shortest chunk, except before a boundary marker and at the end.
    pub fn min(&self) -> u32 {
        self.min
    }

    /// Chunk length that the threshold aims at.
    pub fn avg(&self) -> u32 {
        self.avg
    }

    /// Longest chunk.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Value XORed into every token id before mixing, so that a client cannot craft cuts.
    pub fn secret(&self) -> u32 {
        self.secret
    }

    /// Hashes below this cut: `2^64 / (avg - min)`, which fires once in `avg - min` tokens.
    pub fn threshold(&self) -> u64 {
        ((1_u128 << 64) / u128::from(self.avg - self.min)) as u64
    }
}

impl Default for ChunkParams {
    fn default() -> Self {
        Self {
            min: 64,
            avg: 128,
            max: 512,
            secret: 0,
        }
    }
}
