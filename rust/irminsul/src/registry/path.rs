//! A place in the forest -> the end of the path that leads there.
//!
//! Knows nothing of chunks but where they end.

use std::ops::Range;

use super::anchor::{AnchorKind, ends_in};
use super::forest::Forest;
use super::raw::Pin;
use super::version::{Place, Version};
use super::view::Core;

/// The end of a path: what a child's chunking continues from.
#[derive(Debug, Default)]
pub(crate) struct PathTail {
    pub(crate) tokens: Vec<u32>,
    pub(crate) since_cut: usize,
    pub(crate) since_marker: usize,
}

impl Forest {
    /// The last `limit` live tokens before `place`, and how far back the last cuts lie.
    pub(crate) fn path_tail(&self, core: &Core, place: Place, limit: usize) -> PathTail {
        let mut pieces: Vec<Vec<u32>> = Vec::new();
        let (mut len, mut since_cut, mut since_marker) = (0, None, None);
        let mut next = Some(place);
        let mut held: Option<Pin<'_, Version>> = None;
        while let Some(Place { run: id, offset }) = next.filter(|_| len < limit) {
            let Some(run) = self.run(id) else { break };
            if offset == 0 {
                next = run.header.parent;
                continue;
            }
            if held.as_ref().is_none_or(|version| version.id != id) {
                held = core.version(id);
            }
            let version = held.as_ref();
            let live = version.and_then(|v| Some((v, v.live_range(offset - 1)?)));
            let Some((version, Range { start, .. })) = live else {
                break;
            };
            let start = start.max(offset.saturating_sub((limit - len) as u32));
            for anchor in ends_in(&run.anchors, start, offset, |anchor| anchor.end)
                .iter()
                .rev()
            {
                let distance = len + (offset - anchor.end) as usize;
                if anchor.kind != AnchorKind::Tail {
                    since_cut.get_or_insert(distance);
                }
                if anchor.kind == AnchorKind::Marker {
                    since_marker.get_or_insert(distance);
                }
            }
            pieces.push(version.tokens(start..offset).to_vec());
            len += (offset - start) as usize;
            next = Some(Place {
                run: id,
                offset: start,
            });
        }
        pieces.reverse();
        // No cut within `limit` tokens happens only where removed ancestors hide it.
        let since_cut = since_cut.unwrap_or(len).min(limit - 1);
        PathTail {
            tokens: pieces.concat(),
            since_cut,
            since_marker: since_marker.unwrap_or(len),
        }
    }
}
