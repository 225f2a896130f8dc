//! What the streams left of each chunk, less than two stripes -> fingerprints, four chunks side by side.
//!
//! Knows nothing of how the streams got there. Bit-identical to `xxh64.rs`.
//!
//! Lengths cannot be predicted, so everything is computed and selected from: a stripe, three pairs of
//! tokens, and a single one. That is 33 multiplications for the one port of the general registers, and a
//! chain of a hundred cycles that the scheduler cannot hold twice; with a lane for each of four chunks
//! there is a quarter of both.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi64, _mm256_and_si256, _mm256_blend_epi32,
    _mm256_blendv_pd, _mm256_broadcastsi128_si256, _mm256_castpd_si256, _mm256_castsi128_si256,
    _mm256_castsi256_pd, _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_slli_epi64, _mm256_srli_epi64, _mm256_sub_epi64, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::avx2::opaque;
use super::streams::{Batch, Job};
use super::words::{load, store};
use super::xxh64::{P1, P2, P3, P4, PAIR, STRIPE, finish as finish_one};

/// Chunks that are finished together.
const CHUNKS: usize = 4;

/// A lane for each of four chunks.
type Lanes = __m256i;

/// Of so many chunks two stripes can be read behind the last pair: all but those at the text's end.
fn readable(tokens: &[u32], bounds: &[usize]) -> usize {
    let early = |pair: &[usize]| pair[1] - (pair[1] - pair[0]) % PAIR + PAIR <= tokens.len();
    let last = bounds.windows(2).rposition(early);
    last.map_or(0, |last| last + 1)
}

/// Four words of 64 bits from each of four places: the first ones, the second ones, and so on.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn gather(places: [*const __m128i; CHUNKS]) -> [Lanes; 4] {
    let two = |at: usize| {
        // Safety: as promised; the loads need no alignment.
        let [a, b, c, d] = places.map(|place| unsafe { _mm_loadu_si128(place.add(at)) });
        // Opaque, or the compiler takes an instruction of half the rate for the blend.
        let [c, d] = [c, d].map(|half| opaque(_mm256_broadcastsi128_si256(half)));
        let even = _mm256_blend_epi32::<0xF0>(_mm256_castsi128_si256(a), c);
        let odd = _mm256_blend_epi32::<0xF0>(_mm256_castsi128_si256(b), d);
        (
            _mm256_unpacklo_epi64(even, odd),
            _mm256_unpackhi_epi64(even, odd),
        )
    };
    let ((a, b), (c, d)) = (two(0), two(1));
    [a, b, c, d]
}

/// `yes` where the highest bit of `choice` is set, and otherwise `no`.
#[inline]
#[target_feature(enable = "avx2")]
fn select(choice: Lanes, yes: Lanes, no: Lanes) -> Lanes {
    let [choice, yes, no] = [choice, yes, no].map(|lanes| _mm256_castsi256_pd(lanes));
    _mm256_castpd_si256(_mm256_blendv_pd(no, yes, choice))
}

/// What is read of four chunks.
struct Read {
    len: Lanes,
    /// The accumulators behind the pairs of stripes.
    state: [Lanes; 4],
    /// The eight tokens after these, which are a stripe if there are as many.
    stripe: [Lanes; 4],
    /// The eight tokens behind the last stripe.
    words: [Lanes; 4],
}

impl Read {
    /// Reads what is left of four chunks.
    ///
    /// # Safety
    /// Two stripes can be read behind the pairs of each.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn new(jobs: &[Job; CHUNKS], bounds: &[usize; CHUNKS + 1]) -> Self {
        let states = jobs.each_ref().map(|job| (&raw const job.state).cast());
        let stops = jobs.each_ref().map(|job| job.stop);
        let words = std::array::from_fn(|chunk| {
            let stripe = (bounds[chunk + 1] - bounds[chunk]) & STRIPE;
            stops[chunk].wrapping_add(stripe).cast()
        });
        // Safety: as promised.
        unsafe {
            let starts = bounds.as_ptr();
            let ends = load(starts.add(1).cast());
            Self {
                len: _mm256_sub_epi64(ends, load(starts.cast())),
                state: gather(states),
                stripe: gather(stops.map(<*const u32>::cast)),
                words: gather(words),
            }
        }
    }

    /// The four bits of a length that say what is left of it, each at the top of a lane.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bits(&self) -> [Lanes; 4] {
        [
            _mm256_slli_epi64::<63>(self.len),
            _mm256_slli_epi64::<62>(self.len),
            _mm256_slli_epi64::<61>(self.len),
            _mm256_slli_epi64::<60>(self.len),
        ]
    }
}

/// The same for one set of instructions.
macro_rules! ends {
    ($module:ident, $feature:literal) => {
        pub(super) mod $module {
            use super::super::words::$module::{multiply, rotate, round};
            use super::*;

            /// Hashes what is left of each chunk; `jobs` are theirs, with the states behind their pairs.
            #[target_feature(enable = $feature)]
            pub(in super::super) fn finish(batch: Batch<'_>, jobs: &[Job]) {
                let Batch {
                    tokens,
                    bounds,
                    hashes,
                    ..
                } = batch;
                // A batch's chunks are no shorter than a pair, so only the last may end too late.
                let whole = readable(tokens, bounds).min(jobs.len());
                let whole = if whole < CHUNKS { 0 } else { whole };
                let groups = whole.div_ceil(CHUNKS);
                for group in 0..groups {
                    // The last ones together with some that were hashed before.
                    let first = (CHUNKS * group).min(whole - CHUNKS);
                    let (Some(jobs), Some(bounds), Some(hashes)) = (
                        jobs[first..].first_chunk(),
                        bounds[first..].first_chunk(),
                        hashes[first..].first_chunk_mut::<CHUNKS>(),
                    ) else {
                        break;
                    };
                    // Safety: the tokens can be read, and the hashes written.
                    unsafe {
                        let read = Read::new(jobs, bounds);
                        store(hashes.as_mut_ptr().cast(), four(&read));
                    }
                }
                for at in whole..jobs.len() {
                    let tokens = &tokens[bounds[at]..bounds[at + 1]];
                    let rest = &tokens[tokens.len() / PAIR * PAIR..];
                    hashes[at] = finish_one(jobs[at].state, tokens.len(), rest);
                }
            }

            /// The hashes of four chunks.
            #[inline]
            #[target_feature(enable = $feature)]
            fn four(read: &Read) -> Lanes {
                let [odd, two, four, eight] = read.bits();
                let last = |at: usize| round(read.state[at], read.stripe[at]);
                let state = std::array::from_fn(|at| select(eight, last(at), read.state[at]));
                let mut hash = merge(state);
                hash = _mm256_add_epi64(hash, _mm256_slli_epi64::<2>(read.len));
                let has = [
                    _mm256_or_si256(two, four),
                    four,
                    _mm256_and_si256(two, four),
                ];
                for (&pair, has) in read.words.iter().zip(has) {
                    hash = select(has, add_pair(hash, pair), hash);
                }
                let [a, b, c, d] = read.words;
                let token = select(four, select(two, d, c), select(two, b, a));
                scatter(select(odd, add_token(hash, token), hash))
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn merge(state: [Lanes; 4]) -> Lanes {
                let [a, b, c, d] = state;
                let ab = _mm256_add_epi64(rotate::<1, 63>(a), rotate::<7, 57>(b));
                let cd = _mm256_add_epi64(rotate::<12, 52>(c), rotate::<18, 46>(d));
                state
                    .into_iter()
                    .fold(_mm256_add_epi64(ab, cd), |hash, lane| {
                        let mixed = _mm256_xor_si256(hash, round(_mm256_setzero_si256(), lane));
                        _mm256_add_epi64(multiply(mixed, P1), _mm256_set1_epi64x(P4 as i64))
                    })
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn add_pair(hash: Lanes, pair: Lanes) -> Lanes {
                let mixed = _mm256_xor_si256(hash, round(_mm256_setzero_si256(), pair));
                let product = multiply(rotate::<27, 37>(mixed), P1);
                _mm256_add_epi64(product, _mm256_set1_epi64x(P4 as i64))
            }

            /// Takes in the lower half of a word.
            #[inline]
            #[target_feature(enable = $feature)]
            fn add_token(hash: Lanes, word: Lanes) -> Lanes {
                let token = _mm256_srli_epi64::<32>(_mm256_slli_epi64::<32>(word));
                let mixed = _mm256_xor_si256(hash, multiply(token, P1));
                let product = multiply(rotate::<23, 41>(mixed), P2);
                _mm256_add_epi64(product, _mm256_set1_epi64x(P3 as i64))
            }

            #[inline]
            #[target_feature(enable = $feature)]
            fn scatter(hash: Lanes) -> Lanes {
                let hash = _mm256_xor_si256(hash, _mm256_srli_epi64::<33>(hash));
                let hash = multiply(hash, P2);
                let hash = _mm256_xor_si256(hash, _mm256_srli_epi64::<29>(hash));
                let hash = multiply(hash, P3);
                _mm256_xor_si256(hash, _mm256_srli_epi64::<32>(hash))
            }
        }
    };
}

ends!(avx2, "avx2");
ends!(avx512, "avx2,avx512vl,avx512dq");
