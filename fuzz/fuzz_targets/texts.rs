//! A few bytes -> a text of tokens that repeats itself, so that short inputs reach long chunks.
//!
//! Knows nothing of what the text is used for.

use arbitrary::Arbitrary;

/// Most tokens of a text.
pub const MOST: usize = 40_000;

/// One part of a text.
#[derive(Arbitrary, Debug, Clone)]
pub enum Part {
    /// These ids, so many times.
    Repeat { ids: Vec<u32>, times: u16 },
    /// Pseudo-random ids below a bound.
    Random { seed: u16, count: u16, below: u32 },
    /// Counting.
    Steps { start: u32, step: u8, count: u16 },
    /// A piece of what came before.
    Again { start: u16, count: u16 },
}

/// The text of some parts.
pub fn text(parts: &[Part]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for part in parts {
        let room = MOST - tokens.len();
        match part {
            Part::Repeat { ids, times } => {
                let all = ids.iter().cycle().take(ids.len() * usize::from(*times));
                tokens.extend(all.take(room));
            }
            Part::Random { seed, count, below } => {
                tokens.extend(random(*seed, *below).take(usize::from(*count).min(room)));
            }
            Part::Steps { start, step, count } => {
                let id = |i: u32| start.wrapping_add(i.wrapping_mul(u32::from(*step)));
                tokens.extend((0..u32::from(*count)).map(id).take(room));
            }
            Part::Again { start, count } => {
                let start = usize::from(*start).min(tokens.len());
                let end = (start + usize::from(*count).min(room)).min(tokens.len());
                tokens.extend_from_within(start..end);
            }
        }
    }
    tokens
}

fn random(seed: u16, below: u32) -> impl Iterator<Item = u32> {
    let mut state = u64::from(seed);
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        ((state >> 32) % u64::from(below.max(1))) as u32
    })
}
