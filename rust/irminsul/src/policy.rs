//! What may be reused: the limits that a plan keeps.
//!
//! Knows nothing of how spans are found.

use crate::error::{Result, check};

/// Limits on reuse. Lengths are in tokens.
///
/// Costs are counted in tokens of prefill. A plan with `r` reused tokens in `s` spans saves `r` and
/// costs `s * span_cost`; it is worth making when the difference reaches `min_gain`. The copy of a
/// row itself is left out: it moves about 1 KiB a layer, over a hundred times less work than
/// computing the row.
///
/// ```
/// let policy = irminsul::Policy { min_span: 64, ..Default::default() };
/// assert!(policy.validate().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Positions below this are always computed, and rows that were computed below it move nowhere:
    /// attention sinks form there without context. Default 32.
    pub sink_tokens: u32,
    /// Shorter spans are computed instead; each span costs a hole and bookkeeping. Default 32.
    pub min_span: u32,
    /// Tokens at the head of every span that are computed again. Default 0.
    pub recompute_head: u32,
    /// Most rotations that a row may have been through before this one; each rounds k_r once.
    /// Default 16.
    pub max_hops: u32,
    /// Largest approximation depth of a donor (0: computed over exact context). Default 64.
    pub max_depth: u32,
    /// Most reused spans in one plan; the longest are kept. Default 256.
    pub max_segments: u32,
    /// Whether gaps between matched chunks are searched for shorter repeated text. Default true.
    pub windows: bool,
    /// What one more span costs, as tokens of prefill: its share of the copy, one more hole.
    /// Default 8.
    pub span_cost: u32,
    /// Least tokens of prefill that a plan must save after `span_cost`; else everything is
    /// computed. Default 16.
    pub min_gain: u32,
}

impl Policy {
    /// Checks that the limits can be kept.
    ///
    /// # Errors
    /// `InvalidParams` for a `min_span` or `max_segments` of zero.
    pub fn validate(&self) -> Result<()> {
        check(
            self.min_span >= 1,
            "min_span",
            self.min_span.into(),
            "at least 1",
        )?;
        check(
            self.max_segments >= 1,
            "max_segments",
            self.max_segments.into(),
            "at least 1",
        )
    }

    /// Whether a plan of so many spans and reused tokens saves enough.
    pub(crate) fn is_worth(&self, spans: usize, reused: usize) -> bool {
        let cost = spans.saturating_mul(self.span_cost as usize);
        reused.saturating_sub(cost) >= self.min_gain as usize
    }

    pub(crate) fn admits(&self, hops: u32, depth: u32) -> bool {
        hops <= self.max_hops && depth <= self.max_depth
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            sink_tokens: 32,
            min_span: 32,
            recompute_head: 0,
            max_hops: 16,
            max_depth: 64,
            max_segments: 256,
            windows: true,
            span_cost: 8,
            min_gain: 16,
        }
    }
}
