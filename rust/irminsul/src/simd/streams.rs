//! Several chunks -> their fingerprints, side by side. AVX2 and AVX-512.
//!
//! Knows nothing of how chunks were cut. Bit-identical to `fingerprint.rs`.
//!
//! One xxHash64 is a chain of multiplications and leaves most of the processor idle, so five streams
//! run at once: four with the accumulators of a chunk in one vector register, and one in general
//! registers, whose ports are free meanwhile. Chunk lengths cannot be predicted and a wrong branch costs
//! as much as ten stripes; a stream therefore goes from one chunk to its next by selections, and takes
//! the next from one queue, so that all end at about the same time. The ends of the chunks, less than
//! two stripes each, are hashed afterwards.

use std::arch::x86_64::{__m256i, _MM_HINT_T1, _mm_prefetch};
use std::hint::select_unpredictable;
use std::mem::MaybeUninit;

use super::ends;
use super::vectors::Vectors;
use super::words::{load, store};
use super::xxh64::{PAIR, START, STRIPE, hash, step_pair};

/// Most chunks that are queued at once, so that the queue fits the first-level cache.
const BATCH: usize = 335;

/// Chunks that are hashed side by side.
const STREAMS: usize = 5;

/// Fewer chunks than this are hashed one by one.
const MIN_CHUNKS: usize = STREAMS;

/// The accumulators of a chunk.
pub(super) type State = [u64; 4];

/// A chunk in the queue: its state after the last pair of stripes so far, and where it is read.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Job {
    pub(super) state: State,
    start: *const u32,
    /// Behind its last pair of stripes. Null in the jobs to idle on, which never end.
    pub(super) stop: *const u32,
}

/// Jobs to idle on: one for each stream, and one that is looked at but never begun.
const IDLE: usize = STREAMS + 1;

/// The queue: jobs of a batch, and behind them those to idle on.
type Queue = [MaybeUninit<Job>; BATCH + IDLE];

/// Writes the fingerprints of the chunks between consecutive `bounds`; false if it did not. Meanwhile as much memory
/// from `later` on, unless that is null, is fetched into the second-level cache.
pub(super) fn hash_chunks(
    tokens: &[u32],
    bounds: &[usize],
    hashes: &mut [u64],
    mut later: *const u32,
) -> bool {
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
            later,
        };
        if !later.is_null() {
            later = later.wrapping_add(bounds[count] - bounds[0]);
        }
        if vectors >= Vectors::Mixed {
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

/// What is hashed, and where to: [`MIN_CHUNKS`] to [`BATCH`] chunks, each with a pair of stripes.
pub(super) struct Batch<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) bounds: &'a [usize],
    pub(super) hashes: &'a mut [u64],
    /// Null, or what is read next.
    pub(super) later: *const u32,
}

impl Batch<'_> {
    /// Queues the chunks up.
    fn queue(&self, queue: &mut Queue) {
        assert!((MIN_CHUNKS..=BATCH).contains(&self.hashes.len()));
        let text = self.tokens.as_ptr();
        let mut jobs = queue.iter_mut();
        for (pair, job) in self.bounds.windows(2).zip(&mut jobs) {
            let pairs = self.tokens[pair[0]..pair[1]].len() / PAIR;
            assert!(pairs > 0);
            let start = text.wrapping_add(pair[0]);
            job.write(Job {
                state: START,
                start,
                stop: start.wrapping_add(pairs * PAIR),
            });
        }
        // A stream idles from the first chunk on, no longer than the last chunks take that were begun before.
        let idle = Job {
            state: START,
            start: text.wrapping_add(self.bounds[0]),
            stop: std::ptr::null(),
        };
        for job in jobs.take(IDLE) {
            job.write(idle);
        }
    }
}

/// A chunk under way.
struct Stream<T> {
    state: T,
    at: *const u32,
    job: *mut Job,
}

impl<T> Stream<T> {
    /// Goes on behind a pair of stripes, after which the state was kept in the job, or to the chunk that
    /// `next` points to, which then moves on. Returns where the next state is.
    ///
    /// # Safety
    /// Both jobs were written.
    #[inline]
    unsafe fn go_on(&mut self, next: &mut *mut Job) -> *const State {
        // Safety: as promised.
        let (stop, start) = unsafe { ((*self.job).stop, (**next).start) };
        let on = self.at.wrapping_add(PAIR);
        let done = on == stop;
        let kept = self.job.cast::<State>().cast_const();
        let state = select_unpredictable(done, &raw const START, kept);
        self.at = select_unpredictable(done, start, on);
        self.job = select_unpredictable(done, *next, self.job);
        *next = next.wrapping_add(usize::from(done));
        state
    }
}

/// Asks for as many lines of memory as the streams take in at once.
#[inline]
fn fetch(later: *const u32) {
    for stream in 0..STREAMS {
        let line = later.wrapping_add(stream * PAIR);
        // Safety: a prefetch reads nothing that the program sees, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
}

/// The loop for one set of instructions.
macro_rules! streams {
    ($module:ident, $feature:literal) => {
        pub(super) mod $module {
            use super::super::words::$module::round;
            use super::*;

            /// Hashes a batch.
            ///
            /// # Safety
            /// Needs the instructions that the module is named for.
            #[target_feature(enable = $feature)]
            pub(in super::super) unsafe fn hash_batch(batch: Batch<'_>) {
                let mut queue: Queue = [MaybeUninit::uninit(); _];
                batch.queue(&mut queue);
                let (jobs, chunks) = (queue.as_mut_ptr().cast(), batch.hashes.len());
                // Safety: so many chunks, at least one for each stream, were queued.
                unsafe {
                    if batch.later.is_null() {
                        run::<false>(jobs, chunks, batch.later);
                    } else {
                        run::<true>(jobs, chunks, batch.later);
                    }
                }
                // Safety: so many were queued and run through.
                let jobs = unsafe {
                    std::slice::from_raw_parts(queue.as_ptr().cast::<Job>(), batch.hashes.len())
                };
                ends::$module::finish(batch, jobs);
            }

            /// Runs all streams until the queue's chunks are through.
            ///
            /// # Safety
            /// There are as many jobs, at least [`STREAMS`], and [`IDLE`] to idle on behind them.
            #[target_feature(enable = $feature)]
            unsafe fn run<const FETCH: bool>(
                queue: *mut Job,
                chunks: usize,
                mut later: *const u32,
            ) {
                // Safety: a reference to as many words.
                let start = unsafe { load((&raw const START).cast()) };
                let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|stream| {
                    let job = queue.wrapping_add(stream);
                    // Safety: as promised.
                    let at = unsafe { (*job).start };
                    Stream {
                        state: start,
                        at,
                        job,
                    }
                });
                let job = queue.wrapping_add(4);
                // Safety: as promised.
                let at = unsafe { (*job).start };
                let state = &raw const START;
                let mut e = Stream { state, at, job };
                let mut next = queue.wrapping_add(STREAMS);
                // Each chunk moves it on once, when it ends.
                let last = next.wrapping_add(chunks);
                while next < last {
                    if FETCH {
                        fetch(later);
                        later = later.wrapping_add(STREAMS * PAIR);
                    }
                    // Safety: as promised. Each chunk moves `next` on once, at most to the last job to idle
                    // on, and jobs to idle on do not end.
                    unsafe {
                        advance(&mut a, &mut next);
                        advance(&mut b, &mut next);
                        step_pair(e.state, e.at, e.job.cast());
                        e.state = e.go_on(&mut next);
                        advance(&mut c, &mut next);
                        advance(&mut d, &mut next);
                    }
                }
            }

            /// Takes in a pair of stripes, and goes on.
            ///
            /// # Safety
            /// The stream stands before a pair of stripes; as for [`Stream::go_on`].
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn advance(stream: &mut Stream<__m256i>, next: &mut *mut Job) {
                // Safety: as promised. The state is the first field of a job.
                unsafe {
                    let state = round(stream.state, load(stream.at.cast()));
                    let state = round(state, load(stream.at.wrapping_add(STRIPE).cast()));
                    store(stream.job.cast(), state);
                    stream.state = load(stream.go_on(next).cast());
                }
            }
        }
    };
}

streams!(avx2, "avx2");
streams!(avx512, "avx2,avx512vl,avx512dq");
