//! Chunk bounds -> which chunks are hashed side by side, and in what order.
//!
//! Knows nothing of hashes or instructions.

use std::mem::MaybeUninit;

use super::xxh64::PAIR;

/// Chunks that are spread over the streams at a time, so that their states fit the stack and the
/// first-level cache.
pub(super) const BATCH: usize = 128;

/// A chunk that waits in a stream.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// Its first token, counted from the start of the batch.
    pub(super) start: u32,
    /// Its pairs of stripes, at least one.
    pub(super) pairs: u32,
}

/// Chunks that are hashed side by side.
pub(super) const STREAMS: usize = 4;

/// Places for jobs: all chunks of a batch, and behind each stream's one to idle on.
pub(super) const PLACES: usize = BATCH + STREAMS;

/// Which stream hashes which chunks: consecutive ones, about as many tokens each.
pub(super) struct Plan {
    pub(super) jobs: [MaybeUninit<Job>; PLACES],
    /// The place of each stream's first job.
    pub(super) first: [usize; STREAMS],
    /// Pairs of stripes in the fullest stream.
    pub(super) steps: usize,
}

impl Plan {
    /// Shares out the chunks of a batch.
    ///
    /// A stream that is done before the others idles on the text from its start on. No stream has
    /// more steps than there are pairs in the text, so it stays inside.
    pub(super) fn new(bounds: &[usize]) -> Self {
        let mut plan = Self {
            jobs: [MaybeUninit::uninit(); PLACES],
            first: [0; STREAMS],
            steps: 0,
        };
        let (origin, chunks) = (bounds[0], bounds.len() - 1);
        let total = bounds[chunks] - origin;
        let mut from = 0;
        for (stream, first) in plan.first.iter_mut().enumerate() {
            let share = origin + total * (stream + 1) / STREAMS;
            let to = bounds[..chunks].partition_point(|&bound| bound < share);
            *first = from + stream;
            let mut steps = 0;
            for (job, pair) in plan.jobs[*first..]
                .iter_mut()
                .zip(bounds[from..=to].windows(2))
            {
                let (start, pairs) = (pair[0] - origin, (pair[1] - pair[0]) / PAIR);
                steps += pairs;
                job.write(Job {
                    start: start as u32,
                    pairs: pairs as u32,
                });
            }
            plan.jobs[to + stream].write(Job {
                start: 0,
                pairs: u32::MAX,
            });
            plan.steps = plan.steps.max(steps);
            from = to;
        }
        plan
    }
}
