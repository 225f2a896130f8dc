//! Several chunks -> their fingerprints, side by side. AVX2 and AVX-512.
//!
//! Knows nothing of how chunks were cut. Bit-identical to `fingerprint.rs`.
//!
//! One xxHash64 is a chain of multiplications and leaves most of the processor idle, so several
//! streams of chunks run at once, each with the four accumulators of its chunk in one register.
//! Chunk lengths cannot be predicted and a wrong branch costs as much as ten stripes; a stream
//! therefore goes from one chunk to its next by selections. The ends of the chunks, less than
//! two stripes each, are hashed afterwards.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_blend_epi32, _mm256_blendv_epi8, _mm256_loadu_si256,
    _mm256_mul_epu32, _mm256_mullo_epi32, _mm256_mullo_epi64, _mm256_or_si256, _mm256_rol_epi64,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_slli_epi64, _mm256_srli_epi64,
    _mm256_storeu_si256,
};
use std::hint::select_unpredictable;
use std::mem::MaybeUninit;

use super::avx2::opaque;
use super::plan::{BATCH, PLACES, Plan, STREAMS};
use super::vectors::Vectors;
use super::xxh64::{P1, P2, PAIR, START, STRIPE, finish, hash};

/// Fewer chunks than this are hashed one by one.
const MIN_CHUNKS: usize = 3;

/// The accumulators of a chunk.
type State = [u64; 4];

/// Writes the fingerprints of the chunks between consecutive `bounds`; false if it did not.
pub(super) fn hash_chunks(tokens: &[u32], bounds: &[usize], hashes: &mut [u64]) -> bool {
    let vectors = Vectors::at_hand();
    if hashes.len() < MIN_CHUNKS || vectors < Vectors::Narrow {
        return false;
    }
    let mut first = 0;
    while first < hashes.len() {
        let count = long_chunks(&bounds[first..]);
        let (bounds, hashes) = (&bounds[first..], &mut hashes[first..]);
        if count < MIN_CHUNKS {
            // The next is too short, or too few follow.
            hashes[0] = hash(&tokens[bounds[0]..bounds[1]]);
            first += 1;
            continue;
        }
        let batch = Batch {
            tokens,
            bounds: &bounds[..=count],
            hashes: &mut hashes[..count],
        };
        if vectors == Vectors::Wide {
            // Safety: AVX-512 was detected, with VL and DQ.
            unsafe { avx512::hash_batch(batch) };
        } else {
            // Safety: AVX2 was detected.
            unsafe { avx2::hash_batch(batch) };
        }
        first += count;
    }
    true
}

/// How many of the first chunks, a batch at most, have a pair of stripes each.
fn long_chunks(bounds: &[usize]) -> usize {
    let long = |pair: &&[usize]| pair[1] - pair[0] >= PAIR;
    bounds.windows(2).take(BATCH).take_while(long).count()
}

/// What is hashed, and where to: at most [`BATCH`] chunks, each with a pair of stripes.
pub(super) struct Batch<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) bounds: &'a [usize],
    pub(super) hashes: &'a mut [u64],
}

/// Hashes what the streams left of each chunk, less than a pair of stripes.
fn finish_all(plan: &Plan, states: &[MaybeUninit<State>; PLACES], batch: Batch<'_>) {
    let mut chunks = batch.bounds.windows(2).zip(batch.hashes).enumerate();
    for stream in 0..STREAMS {
        let next = plan.first.get(stream + 1).map(|first| first - stream - 1);
        let here = plan.first[stream] - stream;
        let count = next.map_or(BATCH, |next| next - here);
        for (chunk, (pair, hash)) in chunks.by_ref().take(count) {
            // Safety: the stream that had this chunk ran to the end of it.
            let state = unsafe { states[chunk + stream].assume_init() };
            let tokens = &batch.tokens[pair[0]..pair[1]];
            *hash = finish(state, tokens.len(), &tokens[tokens.len() / PAIR * PAIR..]);
        }
    }
}

/// A chunk under way.
struct Stream {
    state: __m256i,
    at: *const u32,
    /// Pairs of stripes left in the chunk.
    left: u32,
    /// The place of its job.
    place: usize,
}

/// All zeros, or all ones.
#[repr(align(32))]
struct Masks([State; 2]);

static MASKS: Masks = Masks([[0; 4], [!0; 4]]);

/// The loop for one set of instructions; `$step` takes in a stripe.
macro_rules! streams {
    ($module:ident, $feature:literal, $step:path) => {
        pub(super) mod $module {
            use super::*;

            /// Hashes at most [`BATCH`] chunks.
            ///
            /// # Safety
            /// Needs the instructions that the module is named for.
            #[target_feature(enable = $feature)]
            pub(in super::super) unsafe fn hash_batch(batch: Batch<'_>) {
                let plan = Plan::new(batch.bounds);
                let mut states = [MaybeUninit::uninit(); PLACES];
                run(&plan, &batch.tokens[batch.bounds[0]..], &mut states);
                finish_all(&plan, &states, batch);
            }

            /// Runs all streams through all pairs of stripes.
            #[target_feature(enable = $feature)]
            fn run(plan: &Plan, text: &[u32], states: &mut [MaybeUninit<State>; PLACES]) {
                // Safety: a reference to as many words.
                let start = unsafe { load((&raw const START).cast()) };
                let [mut a, mut b, mut c, mut d] = plan.first.map(|place| {
                    // Safety: each stream has a job, be it the one to idle on.
                    let job = unsafe { plan.jobs[place].assume_init() };
                    let at = text.as_ptr().wrapping_add(job.start as usize);
                    let (state, left) = (start, job.pairs);
                    Stream {
                        state,
                        at,
                        left,
                        place,
                    }
                });
                for _ in 0..plan.steps {
                    // Safety: the plan bounds the steps, see there.
                    unsafe {
                        advance(&mut a, plan, text, states, start);
                        advance(&mut b, plan, text, states, start);
                        advance(&mut c, plan, text, states, start);
                        advance(&mut d, plan, text, states, start);
                    }
                }
            }

            /// Takes in a pair of stripes, and goes on to the next chunk if it was the last.
            ///
            /// # Safety
            /// The stream stands before a pair of stripes of the text, and there is a job behind
            /// its own unless that is the one to idle on.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn advance(
                stream: &mut Stream,
                plan: &Plan,
                text: &[u32],
                states: &mut [MaybeUninit<State>],
                start: __m256i,
            ) {
                // Safety: as promised; places are those of jobs, and there are as many states.
                unsafe {
                    let state = $step(stream.state, load(stream.at.cast()));
                    let state = $step(state, load(stream.at.add(STRIPE).cast()));
                    store(states.as_mut_ptr().add(stream.place).cast(), state);
                    stream.left -= 1;
                    let done = stream.left == 0;
                    stream.place += usize::from(done);
                    let next = plan.jobs.get_unchecked(stream.place).assume_init();
                    let (on, other) = (stream.at.wrapping_add(PAIR), text.as_ptr());
                    let other = other.wrapping_add(next.start as usize);
                    stream.at = select_unpredictable(done, other, on);
                    stream.left = select_unpredictable(done, next.pairs, stream.left);
                    let mask = load(MASKS.0.as_ptr().add(usize::from(done)).cast());
                    stream.state = _mm256_blendv_epi8(state, start, mask);
                }
            }
        }
    };
}

streams!(avx2, "avx2", step_avx2);
streams!(avx512, "avx2,avx512vl,avx512dq", step_avx512);

/// A stripe of a chunk: the scalar `step` in four lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn step_avx2(state: __m256i, stripe: __m256i) -> __m256i {
    // Opaque, or the state enters the additions of the product, which makes the chain longer.
    let sum = _mm256_add_epi64(state, opaque(multiply(stripe, P2)));
    let turned = _mm256_or_si256(_mm256_slli_epi64::<31>(sum), _mm256_srli_epi64::<33>(sum));
    multiply(turned, P1)
}

/// A stripe of a chunk, where rotations and multiplications of 64 bits are instructions.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq")]
fn step_avx512(state: __m256i, stripe: __m256i) -> __m256i {
    let [p1, p2] = [P1, P2].map(|factor| _mm256_set1_epi64x(factor as i64));
    let sum = _mm256_add_epi64(state, _mm256_mullo_epi64(stripe, p2));
    _mm256_mullo_epi64(_mm256_rol_epi64::<31>(sum), p1)
}

/// The low 64 bits of four products.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply(x: __m256i, factor: u64) -> __m256i {
    let low = _mm256_set1_epi64x((factor & 0xFFFF_FFFF) as i64);
    let swapped = _mm256_set1_epi64x(factor.rotate_left(32) as i64);
    // Lower halves times the upper half of the factor, and the other way round: both belong into
    // the upper half. Opaque, or the compiler makes two multiplications of each.
    let cross = opaque(_mm256_mullo_epi32(x, swapped));
    let upper = _mm256_blend_epi32::<0b1010_1010>(_mm256_setzero_si256(), cross);
    let upper = _mm256_add_epi64(upper, _mm256_slli_epi64::<32>(cross));
    _mm256_add_epi64(upper, opaque(_mm256_mul_epu32(x, low)))
}

/// Reads 32 bytes, at any address.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)]
unsafe fn load(bytes: *const u8) -> __m256i {
    // Safety: as promised; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.cast::<__m256i>()) }
}

/// Writes 32 bytes, to any address.
///
/// # Safety
/// They can be written.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)]
unsafe fn store(bytes: *mut u8, value: __m256i) {
    // Safety: as promised; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.cast::<__m256i>(), value) }
}
