//! The tokens of one insertion -> an immutable run, cut into the nodes that the host sees.
//!
//! Knows nothing of other runs beyond their ids. A split adds a border here and moves no index
//! entry.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::spread::Spread;

/// Id of a run; never given twice, so a stale id finds nothing instead of another run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunId(pub(crate) u64);

/// Id of a node inside the registry; never given twice, unlike the host's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeKey(pub(crate) u64);

/// A point on a path: just before the token `offset` of `run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) run: RunId,
    pub(crate) offset: u32,
}

/// A chunk that ends in this run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anchor {
    pub(crate) end: u32,
    pub(crate) fingerprint: u64,
    pub(crate) kind: AnchorKind,
}

/// What ended the chunk of an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnchorKind {
    Content,
    Marker,
    /// The run's end: no cut, so a child continues this chunk.
    Tail,
}

/// A sampled window that ends in this run and is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunWindow {
    pub(crate) end: u32,
    pub(crate) key: u32,
}

/// Part of a run that is one node of the host, or that was removed (`node` is `None`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) end: u32,
    pub(crate) node: Option<NodeKey>,
}

/// Tokens added in one call, with the bounds of the chunks that end in them.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) namespace: u64,
    pub(crate) parent: Option<Place>,
    pub(crate) base_position: u64,
    pub(crate) hops: u32,
    pub(crate) depth: u32,
    pub(crate) anchors: Vec<Anchor>,
    /// In order; filled by the registry, which knows what the index took.
    pub(crate) windows: Vec<RunWindow>,
    pub(crate) segments: Vec<Segment>,
    /// Runs that continue this one, by offset and first token.
    pub(crate) children: HashMap<(u32, u32), Vec<RunId>, Spread>,
    /// First token ever held; the parent files this run under it.
    pub(crate) first_token: u32,
    /// Plans hold clones; a run with clones outstanding is pinned.
    pub(crate) pin: Arc<()>,
    /// The tokens `[first, first + tokens.len())`; removed ends are given back to the allocator.
    tokens: Box<[u32]>,
    first: u32,
}

impl Run {
    pub(crate) fn new(
        header: RunHeader,
        tokens: &[u32],
        anchors: Vec<Anchor>,
        node: NodeKey,
    ) -> Self {
        Self {
            namespace: header.namespace,
            parent: header.parent,
            base_position: header.base_position,
            hops: header.hops,
            depth: header.depth,
            anchors,
            windows: Vec::new(),
            segments: vec![Segment {
                end: tokens.len() as u32,
                node: Some(node),
            }],
            children: HashMap::default(),
            first_token: tokens[0],
            pin: Arc::new(()),
            tokens: tokens.into(),
            first: 0,
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }

    /// Tokens of a range that lies in live segments.
    pub(crate) fn tokens(&self, range: Range<u32>) -> &[u32] {
        &self.tokens[(range.start - self.first) as usize..(range.end - self.first) as usize]
    }

    /// Index of the segment that holds the token at `offset`.
    pub(crate) fn segment_at(&self, offset: u32) -> usize {
        self.segments
            .partition_point(|segment| segment.end <= offset)
    }

    pub(crate) fn segment_range(&self, index: usize) -> Range<u32> {
        let start = if index == 0 {
            0
        } else {
            self.segments[index - 1].end
        };
        start..self.segments[index].end
    }

    /// The live range around the token at `offset` that belongs to one node.
    pub(crate) fn live_range(&self, offset: u32) -> Option<Range<u32>> {
        let index = self.segment_at(offset);
        self.segments.get(index)?.node?;
        Some(self.segment_range(index))
    }

    /// Chunks that end inside `range`, its start excluded and its end included.
    pub(crate) fn anchors_in(&self, range: &Range<u32>) -> &[Anchor] {
        let at = |offset| self.anchors.partition_point(|anchor| anchor.end <= offset);
        &self.anchors[at(range.start)..at(range.end)]
    }

    /// Windows that end inside `range`, its start excluded and its end included.
    pub(crate) fn windows_in(&self, range: &Range<u32>) -> &[RunWindow] {
        let at = |offset| self.windows.partition_point(|window| window.end <= offset);
        &self.windows[at(range.start)..at(range.end)]
    }

    /// Adds a border inside the segment `index`, whose head becomes `head`.
    pub(crate) fn split_segment(&mut self, index: usize, at: u32, head: NodeKey) {
        self.segments.insert(
            index,
            Segment {
                end: at,
                node: Some(head),
            },
        );
    }

    /// Marks a segment removed; returns how many tokens of memory were given back.
    ///
    /// Removed ends are cut off once they are half of what is held, which keeps copying linear in
    /// total.
    pub(crate) fn kill_segment(&mut self, index: usize) -> usize {
        self.segments[index].node = None;
        let live = |segment: &Segment| segment.node.is_some();
        let start = self
            .segments
            .iter()
            .position(live)
            .map(|i| self.segment_range(i).start);
        let end = self
            .segments
            .iter()
            .rposition(live)
            .map(|i| self.segments[i].end);
        let (start, end) = (start.unwrap_or(self.first), end.unwrap_or(self.first));
        let held = self.tokens.len();
        if ((end - start) as usize) * 2 > held {
            return 0;
        }
        self.tokens = self.tokens(start..end).into();
        self.first = start;
        held - self.tokens.len()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.segments.iter().all(|segment| segment.node.is_none())
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
}
