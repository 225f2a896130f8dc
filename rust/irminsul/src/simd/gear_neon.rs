//! Tokens -> candidate bits, eight stretches of the text at a time. NEON.
//!
//! Knows nothing of chunk sizes. Bit-identical to the scalar scan in `scan.rs`.
//!
//! As `gear_avx2.rs`, with two states in a register. Comparisons narrow to one byte per stretch, so
//! that eight steps collect into one byte per stretch without a transposition.

use std::arch::aarch64::{
    uint8x8_t, uint32x2_t, uint32x4_t, uint64x2_t, vaddq_u64, vand_u8, vcltq_u64, vcombine_u16,
    vcombine_u32, vdup_n_u8, vdupq_n_u32, vdupq_n_u64, veorq_u32, vget_high_u32, vget_lane_u64,
    vget_low_u32, vgetq_lane_u64, vld1q_u32, vmlal_n_u32, vmovn_u16, vmovn_u32, vmovn_u64,
    vmull_n_u32, vorr_u8, vorrq_u64, vreinterpret_u64_u8, vshlq_n_u64, vshrq_n_u64, vtrn1q_u32,
    vtrn2q_u32,
};

use super::block::{Block, GROUP, Markers};
use crate::gear::{MARKER_THRESHOLD, WINDOW};

/// The states of the eight stretches, two in each register.
type State = [uint64x2_t; 4];

/// The tokens of one step, in the order of the states.
type Tokens = [uint32x2_t; 4];

/// Fills the candidate bits of a block and adds the places of markers.
///
/// # Safety
/// Needs NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn scan(block: &Block<'_>, bits: &mut [u8], markers: &mut Markers) {
    let tokens = block.tokens();
    let secret = vdupq_n_u32(block.secret);
    let limit = vdupq_n_u64(block.threshold);
    let marker = vdupq_n_u64(MARKER_THRESHOLD);
    let mut state = [vdupq_n_u64(0); 4];
    for step in (0..WINDOW).step_by(4) {
        for tokens in load(tokens, step, block.stride, secret) {
            state = advance(state, tokens);
        }
    }
    for step in (0..block.stride).step_by(GROUP) {
        let mut columns = vdup_n_u8(0);
        let mut near = vdupq_n_u64(0);
        for half in 0..2 {
            let four = load(tokens, WINDOW + step + 4 * half, block.stride, secret);
            for (t, tokens) in four.into_iter().enumerate() {
                state = advance(state, tokens);
                let bit = vdup_n_u8(1 << (4 * half + t));
                columns = vorr_u8(columns, vand_u8(below(state, limit), bit));
                for pair in state {
                    near = vorrq_u64(near, vcltq_u64(pair, marker));
                }
            }
        }
        let columns = vget_lane_u64::<0>(vreinterpret_u64_u8(columns));
        // Safety: `bits` was made for this block, and `step` is a multiple of GROUP below stride.
        unsafe { block.store_columns(step, columns, bits) };
        if vgetq_lane_u64::<0>(near) | vgetq_lane_u64::<1>(near) != 0 {
            block.collect_markers(step, markers);
        }
    }
}

/// All ones in the byte of each stretch whose state is below the limit.
#[inline]
#[target_feature(enable = "neon")]
fn below(state: State, limit: uint64x2_t) -> uint8x8_t {
    let [a, b, c, d] = state.map(|pair| vmovn_u64(vcltq_u64(pair, limit)));
    let (low, high) = (vmovn_u32(vcombine_u32(a, b)), vmovn_u32(vcombine_u32(c, d)));
    vmovn_u16(vcombine_u16(low, high))
}

/// Loads the tokens `[at, at + 4)` of each stretch and turns them into one set for each step.
#[inline]
#[target_feature(enable = "neon")]
fn load(tokens: &[u32], at: usize, stride: usize, secret: uint32x4_t) -> [Tokens; 4] {
    debug_assert!(at + 7 * stride + 4 <= tokens.len());
    let lane = |lane: usize| {
        // Safety: callers stay inside the block: its window, then `stride` tokens for each lane.
        let four = unsafe { vld1q_u32(tokens.as_ptr().add(at + lane * stride)) };
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
