//! Stripes of tokens -> xxHash64 (seed 0), in steps that several chunks can take in turns.
//!
//! Knows nothing of vectors or scheduling. The algorithm is the published one; a stripe is eight
//! tokens, and a chunk's bytes come in fours, so that no single bytes are left at its end.

/// Tokens in a stripe of 32 bytes.
pub(super) const STRIPE: usize = 8;

pub(super) const P1: u64 = 0x9E37_79B1_85EB_CA87;
pub(super) const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// The accumulators before the first stripe.
pub(super) const START: [u64; 4] = [P1.wrapping_add(P2), P2, 0, 0_u64.wrapping_sub(P1)];

#[inline]
fn round(accumulator: u64, input: u64) -> u64 {
    accumulator
        .wrapping_add(input.wrapping_mul(P2))
        .rotate_left(31)
        .wrapping_mul(P1)
}

/// Two tokens as the 64-bit little-endian word that their bytes are.
#[inline]
fn word(pair: [u32; 2]) -> u64 {
    u64::from(pair[0]) | u64::from(pair[1]) << 32
}

/// Takes in one stripe.
#[inline]
pub(super) fn step(state: &mut [u64; 4], stripe: &[u32; STRIPE]) {
    for (accumulator, pair) in state.iter_mut().zip(stripe.as_chunks().0) {
        *accumulator = round(*accumulator, word(*pair));
    }
}

/// The hash of a chunk of `len` tokens, of which `rest` (less than a stripe) is not in `state`.
///
/// Computing all steps for the rest and selecting, to spare mispredicted branches, was tried: a tenth
/// slower.
#[inline]
pub(super) fn finish(state: [u64; 4], len: usize, rest: &[u32]) -> u64 {
    let [a, b, c, d] = state;
    let sum = a.rotate_left(1).wrapping_add(b.rotate_left(7));
    let sum = sum
        .wrapping_add(c.rotate_left(12))
        .wrapping_add(d.rotate_left(18));
    let merge = |hash: u64, accumulator| {
        (hash ^ round(0, accumulator))
            .wrapping_mul(P1)
            .wrapping_add(P4)
    };
    tail(state.into_iter().fold(sum, merge), len, rest)
}

/// The hash of a chunk shorter than a stripe.
pub(super) fn short(tokens: &[u32]) -> u64 {
    tail(P5, tokens.len(), tokens)
}

#[inline]
fn tail(hash: u64, len: usize, rest: &[u32]) -> u64 {
    let mut hash = hash.wrapping_add(4 * len as u64);
    let (pairs, last) = rest.as_chunks();
    for pair in pairs {
        hash = (hash ^ round(0, word(*pair)))
            .rotate_left(27)
            .wrapping_mul(P1)
            .wrapping_add(P4);
    }
    for &token in last {
        let mixed = hash ^ u64::from(token).wrapping_mul(P1);
        hash = mixed.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P2);
    hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

/// The hash of one chunk, for texts too short to run several at once.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    let (stripes, rest) = tokens.as_chunks();
    if stripes.is_empty() {
        return short(tokens);
    }
    let mut state = START;
    for stripe in stripes {
        step(&mut state, stripe);
    }
    finish(state, tokens.len(), rest)
}
