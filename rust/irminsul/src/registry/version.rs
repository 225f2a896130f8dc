//! The tokens of one insertion, cut into the nodes that the host sees -> what readers walk over.
//!
//! Knows nothing of other runs beyond their ids. A version never changes: a split or the release of
//! memory makes a new one of the same run, and readers keep the one they hold. Only whether a node
//! lives is looked up in the node itself.

use std::ops::Range;
use std::sync::Arc;

use super::node::NodeCell;
use super::raw::Handle;

/// Id of a run: its slot and the slot's generation. A stale id finds nothing instead of another run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunId(pub(crate) u64);

impl RunId {
    pub(crate) fn slot(self) -> u32 {
        self.handle().slot()
    }

    pub(crate) fn handle(self) -> Handle {
        Handle::from_bits(self.0)
    }
}

/// A point on a path: just before the token `offset` of `run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) run: RunId,
    pub(crate) offset: u32,
}

impl Place {
    /// As the tables keep it: slot and offset. Places in tables end a text, so they are never 0.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.run.slot()) << 32 | u64::from(self.offset)
    }
}

/// What a host says about a run besides its tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunHeader {
    pub(crate) namespace: u64,
    pub(crate) parent: Option<Place>,
    pub(crate) base_position: u64,
    pub(crate) hops: u32,
    pub(crate) depth: u32,
    /// Counts insertions; newer runs have larger ones.
    pub(crate) serial: u64,
}

impl RunHeader {
    /// Better donors first: least approximate, least rotated, newest.
    pub(crate) fn rank(&self) -> (u32, u32, u64) {
        (self.depth, self.hops, u64::MAX - self.serial)
    }
}

/// Part of a run that is one node of the host.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) end: u32,
    pub(crate) node: Arc<NodeCell>,
}

/// A run as it was at some time.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) id: RunId,
    pub(crate) header: RunHeader,
    pub(crate) segments: Vec<Segment>,
    /// The tokens `[first, first + tokens.len())`; all that lives lies in them.
    first: u32,
    tokens: Arc<[u32]>,
}

impl Version {
    pub(crate) fn new(id: RunId, header: RunHeader, tokens: &[u32], node: Arc<NodeCell>) -> Self {
        let end = tokens.len() as u32;
        Self {
            id,
            header,
            segments: vec![Segment { end, node }],
            first: 0,
            tokens: tokens.into(),
        }
    }

    /// Tokens held in memory.
    pub(crate) fn held(&self) -> Range<u32> {
        self.first..self.first + self.tokens.len() as u32
    }

    /// One past the last token that the run ever held.
    pub(crate) fn end(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.end)
    }

    /// Tokens of a range that lies in live segments.
    pub(crate) fn tokens(&self, range: Range<u32>) -> &[u32] {
        let at = |offset: u32| (offset.saturating_sub(self.first) as usize).min(self.tokens.len());
        &self.tokens[at(range.start)..at(range.end)]
    }

    /// Position at which the row of the token at `offset` was computed.
    pub(crate) fn position(&self, offset: u32) -> u64 {
        self.header.base_position + u64::from(offset)
    }

    /// Index of the segment that holds the token at `offset`.
    pub(crate) fn segment_at(&self, offset: u32) -> usize {
        self.segments
            .partition_point(|segment| segment.end <= offset)
    }

    pub(crate) fn segment_range(&self, index: usize) -> Range<u32> {
        let start = index.checked_sub(1).map_or(0, |i| self.segments[i].end);
        start..self.segments[index].end
    }

    /// The range around the token at `offset` that belongs to one live node.
    pub(crate) fn live_range(&self, offset: u32) -> Option<Range<u32>> {
        let index = self.segment_at(offset);
        let live = self.segments.get(index)?.node.is_live();
        // A version made after a release of memory may hold less than a node that has died since.
        let range = live.then(|| self.segment_range(index))?;
        let held = self.held();
        (held.start <= range.start && range.end <= held.end).then_some(range)
    }

    /// With a border inside the segment `index`, whose head becomes `head`.
    pub(crate) fn split(&self, index: usize, at: u32, head: Arc<NodeCell>) -> Self {
        let mut segments = Vec::with_capacity(self.segments.len() + 1);
        segments.extend_from_slice(&self.segments[..index]);
        segments.push(Segment {
            end: at,
            node: head,
        });
        segments.extend_from_slice(&self.segments[index..]);
        Self {
            segments,
            tokens: Arc::clone(&self.tokens),
            ..*self
        }
    }

    /// Without the dead tokens at both ends, once they are at least half of what is held, which
    /// keeps copying linear in total. The nodes there become one at each end.
    pub(crate) fn shrink(&self) -> Option<Self> {
        let live = |segment: &Segment| segment.node.is_live();
        let first = self.segments.iter().position(live)?;
        let last = self.segments.iter().rposition(live)?;
        let (start, end) = (self.segment_range(first).start, self.segments[last].end);
        if (end - start) as usize * 2 > self.tokens.len() {
            return None;
        }
        // The last dead one before what lives ends where that begins, and the very last ends the run.
        let count = self.segments.len();
        let (before, behind) = (first.saturating_sub(1), count.max(last + 2) - 1);
        let segments = [&self.segments[before..=last], &self.segments[behind..]].concat();
        Some(Self {
            segments,
            first: start,
            tokens: self.tokens(start..end).into(),
            ..*self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> Version {
        let header = RunHeader {
            namespace: 1,
            parent: None,
            base_position: 5,
            hops: 0,
            depth: 0,
            serial: 0,
        };
        let tokens: Vec<u32> = (0..100).collect();
        Version::new(
            RunId(1 << 32),
            header,
            &tokens,
            Arc::new(NodeCell::new(0, 0)),
        )
    }

    #[test]
    fn a_split_divides_a_range_and_shares_the_tokens() {
        let whole = version();
        let parts = whole.split(0, 40, Arc::new(NodeCell::new(1, 0)));
        assert_eq!(
            (parts.live_range(39), parts.live_range(40)),
            (Some(0..40), Some(40..100))
        );
        assert_eq!(whole.live_range(40), Some(0..100));
        assert!(std::ptr::eq(whole.tokens(0..100), parts.tokens(0..100)));
    }

    #[test]
    fn dead_ends_are_given_back_when_they_are_half() {
        let parts = version().split(0, 40, Arc::new(NodeCell::new(1, 0)));
        let parts = parts.split(1, 70, Arc::new(NodeCell::new(2, 0)));
        parts.segments[0].node.remove();
        assert!(parts.shrink().is_none() && parts.live_range(0).is_none());
        parts.segments[2].node.remove();
        let rest = parts.shrink().expect("thirty of a hundred live");
        assert_eq!((rest.held(), rest.end()), (40..70, 100));
        assert_eq!(rest.tokens(50..52), [50, 51]);
        assert_eq!(
            (rest.live_range(45), rest.live_range(99)),
            (Some(40..70), None)
        );
        rest.segments[1].node.remove();
        assert!(
            rest.shrink().is_none(),
            "nothing lives: the run goes as a whole"
        );
    }

    #[test]
    fn dead_nodes_at_the_ends_are_given_back_too() {
        let node = |host| Arc::new(NodeCell::new(host, 0));
        let parts = (1..10).fold(version(), |version, at| {
            version.split(version.segments.len() - 1, 10 * at, node(at.into()))
        });
        for segment in [0, 1, 2, 5, 6, 7, 8, 9] {
            parts.segments[segment].node.remove();
        }
        let rest = parts.shrink().expect("twenty of a hundred live");
        let ends: Vec<u32> = rest.segments.iter().map(|segment| segment.end).collect();
        assert_eq!((rest.held(), ends), (30..50, vec![30, 40, 50, 100]));
        let ranges = [29, 30, 49, 50].map(|offset| rest.live_range(offset));
        assert_eq!(ranges, [None, Some(30..40), Some(40..50), None]);
    }
}
