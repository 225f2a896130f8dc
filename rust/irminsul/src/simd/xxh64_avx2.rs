//! Several chunks -> their fingerprints, three chunks at a time. AVX2.
//!
//! Knows nothing of how chunks were cut. Bit-identical to `fingerprint.rs`.
//!
//! One xxHash64 is a chain of multiplications and leaves most of the processor idle. Chunks are
//! independent, so two of them run in vector registers (the four accumulators of one chunk in one
//! register, 64-bit multiplications made of 32-bit ones) and a third beside them in scalar
//! registers, whose multiplier would be idle otherwise.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_or_si256,
    _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_slli_epi64, _mm256_srli_epi64,
    _mm256_storeu_si256,
};

use super::xxh64::{P1, P2, START, STRIPE, finish, short, step};

/// Chunks that make setting the streams up worth while.
const MIN_CHUNKS: usize = 3;

/// Appends the fingerprints of the chunks between consecutive `bounds`; false if it did not.
pub(crate) fn hash_chunks(tokens: &[u32], bounds: &[usize], hashes: &mut Vec<u64>) -> bool {
    if bounds.len() <= MIN_CHUNKS || !is_x86_feature_detected!("avx2") {
        return false;
    }
    let first = hashes.len();
    hashes.resize(first + bounds.len() - 1, 0);
    let mut jobs = Jobs {
        tokens,
        bounds,
        next: 0,
        hashes: &mut hashes[first..],
    };
    // Safety: AVX2 was detected.
    unsafe { jobs.run() };
    true
}

/// Chunks that still wait, and the places of all fingerprints.
struct Jobs<'a> {
    tokens: &'a [u32],
    bounds: &'a [usize],
    next: usize,
    hashes: &'a mut [u64],
}

/// A chunk under way: its number, its tokens not yet hashed, and its accumulators.
struct Stream<'a, A> {
    chunk: usize,
    rest: &'a [u32],
    state: A,
}

impl<A> Stream<'_, A> {
    fn stripes(&self) -> usize {
        self.rest.len() / STRIPE
    }
}

impl<'a> Jobs<'a> {
    /// The next chunk of at least one stripe; shorter ones are hashed on the way.
    fn take<A>(&mut self, state: A) -> Option<Stream<'a, A>> {
        while self.next + 1 < self.bounds.len() {
            let chunk = self.next;
            self.next += 1;
            let rest = &self.tokens[self.bounds[chunk]..self.bounds[chunk + 1]];
            if rest.len() >= STRIPE {
                return Some(Stream { chunk, rest, state });
            }
            self.hashes[chunk] = short(rest);
        }
        None
    }

    fn done(&mut self, chunk: usize, state: [u64; 4], rest: &[u32]) {
        let len = self.bounds[chunk + 1] - self.bounds[chunk];
        self.hashes[chunk] = finish(state, len, rest);
    }

    /// Finishes a chunk alone, when no others are left to go with it.
    fn drain(&mut self, chunk: usize, rest: &[u32], mut state: [u64; 4]) {
        let (stripes, tail) = rest.as_chunks::<STRIPE>();
        for stripe in stripes {
            step(&mut state, stripe);
        }
        self.done(chunk, state, tail);
    }

    #[target_feature(enable = "avx2")]
    fn run(&mut self) {
        let start = load_state(START);
        let (mut a, mut b, mut c) = (self.take(start), self.take(start), self.take(START));
        while let (Some(x), Some(y), Some(z)) = (&mut a, &mut b, &mut c) {
            let together = x.stripes().min(y.stripes()).min(z.stripes());
            triple(x, y, z, together);
            if x.stripes() == 0 {
                self.done(x.chunk, store_state(x.state), x.rest);
                a = self.take(start);
            }
            if y.stripes() == 0 {
                self.done(y.chunk, store_state(y.state), y.rest);
                b = self.take(start);
            }
            if z.stripes() == 0 {
                self.done(z.chunk, z.state, z.rest);
                c = self.take(START);
            }
        }
        for vector in [a, b].into_iter().flatten() {
            self.drain(vector.chunk, vector.rest, store_state(vector.state));
        }
        if let Some(scalar) = c {
            self.drain(scalar.chunk, scalar.rest, scalar.state);
        }
    }
}

/// Advances all three by `count` stripes, which each of them has.
#[target_feature(enable = "avx2")]
fn triple(
    a: &mut Stream<'_, __m256i>,
    b: &mut Stream<'_, __m256i>,
    c: &mut Stream<'_, [u64; 4]>,
    count: usize,
) {
    let (head_a, rest_a) = a.rest.split_at(count * STRIPE);
    let (head_b, rest_b) = b.rest.split_at(count * STRIPE);
    let (head_c, rest_c) = c.rest.split_at(count * STRIPE);
    let (stripes_a, stripes_b) = (head_a.as_chunks().0, head_b.as_chunks().0);
    let both = stripes_a.iter().zip(stripes_b).zip(head_c.as_chunks().0);
    for ((stripe_a, stripe_b), stripe_c) in both {
        a.state = step_lanes(a.state, stripe_a);
        b.state = step_lanes(b.state, stripe_b);
        step(&mut c.state, stripe_c);
    }
    (a.rest, b.rest, c.rest) = (rest_a, rest_b, rest_c);
}

/// One stripe of one chunk: the scalar `step` in four lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn step_lanes(state: __m256i, stripe: &[u32; STRIPE]) -> __m256i {
    // Safety: a stripe is 32 bytes long; the load needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    let input = unsafe { _mm256_loadu_si256(stripe.as_ptr().cast::<__m256i>()) };
    let sum = _mm256_add_epi64(state, multiply(input, P2));
    let turned = _mm256_or_si256(_mm256_slli_epi64::<31>(sum), _mm256_srli_epi64::<33>(sum));
    multiply(turned, P1)
}

/// The low 64 bits of four products, from three 32-bit multiplications.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply(x: __m256i, factor: u64) -> __m256i {
    let low = _mm256_set1_epi64x((factor & 0xFFFF_FFFF) as i64);
    let high = _mm256_set1_epi64x((factor >> 32) as i64);
    let upper = _mm256_mul_epu32(_mm256_srli_epi64::<32>(x), low);
    let cross = _mm256_add_epi64(upper, _mm256_mul_epu32(x, high));
    _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64::<32>(cross))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_state(state: [u64; 4]) -> __m256i {
    let [a, b, c, d] = state.map(|accumulator| accumulator as i64);
    _mm256_set_epi64x(d, c, b, a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_state(state: __m256i) -> [u64; 4] {
    let mut stored = [0; 4];
    // Safety: the array is 32 bytes long; the store needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    unsafe {
        _mm256_storeu_si256(stored.as_mut_ptr().cast::<__m256i>(), state);
    }
    stored
}
