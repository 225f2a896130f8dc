//! Stripes of tokens -> xxHash64 (seed 0), in steps that several chunks can take in turns.
//!
//! Knows nothing of vectors or scheduling. The algorithm is the published one; a stripe is eight
//! tokens, and a chunk's bytes come in fours, so that no single bytes are left at its end.

/// Tokens in a stripe of 32 bytes.
pub(super) const STRIPE: usize = 8;

/// Tokens in two stripes.
#[cfg(target_arch = "x86_64")]
pub(super) const PAIR: usize = 2 * STRIPE;

pub(super) const P1: u64 = 0x9E37_79B1_85EB_CA87;
pub(super) const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
pub(super) const P3: u64 = 0x1656_67B1_9E37_79F9;
pub(super) const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// The accumulators before the first stripe.
pub(super) static START: [u64; 4] = [P1.wrapping_add(P2), P2, 0, 0_u64.wrapping_sub(P1)];

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

/// Takes in two stripes from any address: the state at `from`, after them, goes to `to`.
///
/// In assembly, or compilers put the lanes into vector registers, which the other streams need.
///
/// # Safety
/// The tokens and the first state can be read, the second can be written.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn step_pair(from: *const [u64; 4], at: *const u32, to: *mut [u64; 4]) {
    #[cfg(miri)]
    // Safety: as promised.
    unsafe {
        let (mut state, stripes) = (*from, &*at.cast::<[[u32; STRIPE]; 2]>());
        stripes.iter().for_each(|stripe| step(&mut state, stripe));
        *to = state;
    }
    #[cfg(not(miri))]
    // Safety: as promised.
    unsafe {
        std::arch::asm!(
            lane!("0", "32"), lane!("8", "40"), lane!("16", "48"), lane!("24", "56"),
            from = in(reg) from, at = in(reg) at, to = in(reg) to,
            p1 = in(reg) P1, p2 = in(reg) P2,
            a = out(reg) _, t = out(reg) _, u = out(reg) _,
            options(nostack),
        );
    }
}

/// Two rounds of the accumulator at `$at`, which is also where its words are in both stripes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! lane {
    ($at:literal, $second:literal) => {
        concat!(
            "mov {a}, [{from} + ",
            $at,
            "]\n",
            "mov {t}, [{at} + ",
            $at,
            "]\n",
            "imul {t}, {p2}\n",
            "mov {u}, [{at} + ",
            $second,
            "]\n",
            "add {a}, {t}\n",
            "rol {a}, 31\n",
            "imul {u}, {p2}\n",
            "imul {a}, {p1}\n",
            "add {a}, {u}\n",
            "rol {a}, 31\n",
            "imul {a}, {p1}\n",
            "mov [{to} + ",
            $at,
            "], {a}\n",
        )
    };
}
#[cfg(all(target_arch = "x86_64", not(miri)))]
use lane;

/// The hash of a chunk of `len` tokens, of which `rest` is not in `state`.
///
/// Computing all steps for the rest and selecting, to spare mispredicted branches, was tried: a tenth
/// slower.
#[inline]
pub(super) fn finish(mut state: [u64; 4], len: usize, rest: &[u32]) -> u64 {
    let (stripes, rest) = rest.as_chunks();
    for stripe in stripes {
        step(&mut state, stripe);
    }
    tail(merge(state), len, rest)
}

#[inline]
fn sum(state: [u64; 4]) -> u64 {
    let [a, b, c, d] = state;
    let sum = a.rotate_left(1).wrapping_add(b.rotate_left(7));
    sum.wrapping_add(c.rotate_left(12))
        .wrapping_add(d.rotate_left(18))
}

#[inline]
fn merge_one(hash: u64, accumulator: u64) -> u64 {
    (hash ^ round(0, accumulator))
        .wrapping_mul(P1)
        .wrapping_add(P4)
}

fn merge(state: [u64; 4]) -> u64 {
    state.into_iter().fold(sum(state), merge_one)
}

fn tail(hash: u64, len: usize, rest: &[u32]) -> u64 {
    let (pairs, last) = rest.as_chunks();
    let hash = hash.wrapping_add(4 * len as u64);
    let hash = pairs.iter().fold(hash, |hash, pair| add_pair(hash, *pair));
    scatter(
        last.iter()
            .fold(hash, |hash, token| add_token(hash, *token)),
    )
}

#[inline]
fn add_pair(hash: u64, pair: [u32; 2]) -> u64 {
    (hash ^ round(0, word(pair)))
        .rotate_left(27)
        .wrapping_mul(P1)
        .wrapping_add(P4)
}

#[inline]
fn add_token(hash: u64, token: u32) -> u64 {
    let mixed = hash ^ u64::from(token).wrapping_mul(P1);
    mixed.rotate_left(23).wrapping_mul(P2).wrapping_add(P3)
}

#[inline]
fn scatter(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 33).wrapping_mul(P2);
    let hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

/// The hash of one chunk, for texts too short to run several at once.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    if tokens.len() < STRIPE {
        return tail(P5, tokens.len(), tokens);
    }
    finish(START, tokens.len(), tokens)
}
