//! Tokens -> candidate bits, eight stretches of the text at a time. NEON.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! As `gear_avx2.rs`, with two states in a register and comparisons of 64 bits, whose results are
//! collected as words of 32 bits, four to a register.

use std::arch::aarch64::{
    uint32x2_t, uint32x4_t, uint64x2_t, vaddq_u64, vandq_u32, vcltq_u64, vcombine_u32, vdupq_n_u32,
    vdupq_n_u64, veorq_u32, vget_high_u32, vget_low_u32, vgetq_lane_u64, vld1q_u32, vmlal_n_u32,
    vmovn_u64, vmull_n_u32, vorrq_u32, vorrq_u64, vshlq_n_u64, vshrq_n_u64, vst1q_u32, vst1q_u64,
    vtrn1q_u32, vtrn2q_u32,
};

use super::block::{Bits, Block, GROUP, LANES, Rare, Seen};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

/// The hashes of the eight stretches, two in each register.
type State = [uint64x2_t; 4];

/// The tokens of one step, in the order of the states.
type Tokens = [uint32x2_t; 4];

/// Fills the candidate bits of a block and, if there are any, those of markers.
///
/// # Safety
/// Needs NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn scan(block: &Block<'_>, mut content: Bits<'_>, mut markers: Rare<'_>) -> Seen {
    let mut state = [vdupq_n_u64(0); 4];
    for step in (0..WINDOW).step_by(4) {
        for tokens in load(block, step) {
            state = advance(state, tokens);
        }
    }
    let first = hashes(state)[0];
    for step in (0..block.stride).step_by(GROUP) {
        let before = state;
        let (bits, near) = group(block, &mut state, step, block.threshold);
        content.store(step, bits);
        if near {
            let (bits, _) = group(block, &mut { before }, step, MARKER_THRESHOLD);
            markers.store(block, step, bits);
        }
    }
    Seen {
        first,
        last: hashes(state)[LANES - 1],
    }
}

/// Advances all stretches by a group of steps. Returns the bits of those that are below the
/// threshold, and whether there are markers among them.
#[inline]
#[target_feature(enable = "neon")]
fn group(
    block: &Block<'_>,
    state: &mut State,
    step: usize,
    threshold: u64,
) -> ([u32; LANES], bool) {
    let (limit, marker) = (vdupq_n_u64(threshold), vdupq_n_u64(MARKER_THRESHOLD));
    let (mut found, mut near) = ([vdupq_n_u32(0); 2], vdupq_n_u64(0));
    let count = (block.stride - step).min(GROUP);
    for at in (0..count).step_by(4) {
        for (t, tokens) in load(block, WINDOW + step + at).into_iter().enumerate() {
            *state = advance(*state, tokens);
            let bit = vdupq_n_u32(1 << (at + t));
            let [a, b, c, d] = state.map(|pair| vmovn_u64(vcltq_u64(pair, limit)));
            for (found, below) in found
                .iter_mut()
                .zip([vcombine_u32(a, b), vcombine_u32(c, d)])
            {
                *found = vorrq_u32(*found, vandq_u32(below, bit));
            }
            for pair in *state {
                near = vorrq_u64(near, vcltq_u64(pair, marker));
            }
        }
    }
    let near = vgetq_lane_u64::<0>(near) | vgetq_lane_u64::<1>(near);
    (words(found), near != 0)
}

/// Loads the tokens `[at, at + 4)` of each stretch, counted from the start of its window, and turns
/// them into one set for each step.
#[inline]
#[target_feature(enable = "neon")]
fn load(block: &Block<'_>, at: usize) -> [Tokens; 4] {
    let secret = vdupq_n_u32(block.secret);
    let first = block.quads(at);
    let lane = |lane: usize| {
        // Safety: `quads` vouches for four tokens at each multiple of the stride.
        let four: uint32x4_t = unsafe { vld1q_u32(first.add(lane * block.stride)) };
        veorq_u32(four, secret)
    };
    let pair = |first: usize| {
        let (a, b) = (lane(first), lane(first + 1));
        // Tokens 0 and 2 of both, then 1 and 3 of both.
        let (even, odd) = (vtrn1q_u32(a, b), vtrn2q_u32(a, b));
        [
            vget_low_u32(even),
            vget_low_u32(odd),
            vget_high_u32(even),
            vget_high_u32(odd),
        ]
    };
    let [a, b, c, d] = [pair(0), pair(2), pair(4), pair(6)];
    [0, 1, 2, 3].map(|t| [a[t], b[t], c[t], d[t]])
}

/// One step of all stretches: [`crate::gear::roll`] in eight lanes.
#[inline]
#[target_feature(enable = "neon")]
fn advance(state: State, tokens: Tokens) -> State {
    [0, 1, 2, 3].map(|i| {
        let a = vmull_n_u32(tokens[i], 0x9E37_79B1);
        let low = vmovn_u64(vshrq_n_u64::<13>(a));
        let mixed = vmlal_n_u32(vshlq_n_u64::<32>(a), low, 0xF2D4_A6C7);
        vaddq_u64(vaddq_u64(state[i], state[i]), mixed)
    })
}

/// All hashes, in the order of the stretches.
#[target_feature(enable = "neon")]
fn hashes(state: State) -> [u64; LANES] {
    let mut hashes = [0; LANES];
    for (pair, stored) in state.into_iter().zip(hashes.as_chunks_mut::<2>().0) {
        // Safety: the array holds two hashes.
        unsafe { vst1q_u64(stored.as_mut_ptr(), pair) };
    }
    hashes
}

#[inline]
#[target_feature(enable = "neon")]
fn words(found: [uint32x4_t; 2]) -> [u32; LANES] {
    let mut words = [0; LANES];
    for (four, stored) in found.into_iter().zip(words.as_chunks_mut::<4>().0) {
        // Safety: the array holds four words.
        unsafe { vst1q_u32(stored.as_mut_ptr(), four) };
    }
    words
}
