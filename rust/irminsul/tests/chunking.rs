//! Random token sequences -> the properties that chunking promises.
//!
//! Exact bounds are the golden vectors' business.

mod support;

use irminsul::{ChunkParams, Chunker, Cut, Cutter, chunk, fingerprint};
use proptest::prelude::*;
use support::random_ids;

/// Ids from vocabularies of 2 to 2^32 words, with runs of one id in between.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let text = (any::<u64>(), 0_usize..1500, 1_u32..33)
        .prop_map(|(seed, count, bits)| random_ids(seed, count, 1 << bits));
    let run = (any::<u32>(), 0_usize..700).prop_map(|(id, count)| vec![id; count]);
    prop::collection::vec(prop_oneof![3 => text, 1 => run], 0..4).prop_map(|parts| parts.concat())
}

/// Enough tokens for every block size of the fast paths, with low-entropy stretches among them.
fn long_tokens() -> impl Strategy<Value = Vec<u32>> {
    let text = (any::<u64>(), 0_usize..40_000, 1_u32..33)
        .prop_map(|(seed, count, bits)| random_ids(seed, count, 1 << bits));
    let cycle = (any::<u64>(), 1_usize..130, 1_usize..60)
        .prop_map(|(seed, period, times)| random_ids(seed, period, 1 << 32).repeat(times));
    let zeros = (0_usize..3000).prop_map(|count| vec![0; count]);
    prop::collection::vec(prop_oneof![2 => text, 1 => cycle, 1 => zeros], 0..5)
        .prop_map(|parts| parts.concat())
}

fn params() -> impl Strategy<Value = ChunkParams> {
    (
        64_u32..200,
        prop_oneof![2_u32..300, Just(64), Just(2)],
        0_u32..600,
        prop_oneof![Just(0), any::<u32>()],
    )
        .prop_map(|(min, more, most, secret)| {
            ChunkParams::new(min, min + more, min + more + most, secret).expect("in range")
        })
}

proptest! {
    #[test]
    fn chunks_tile_and_keep_their_sizes(tokens in tokens(), params in params()) {
        let chunks = chunk(&tokens, &params);
        prop_assert_eq!(chunks.bounds().first(), Some(&0));
        prop_assert_eq!(chunks.bounds().last(), Some(&tokens.len()));
        for part in chunks.iter() {
            prop_assert!(part.start < part.end);
            prop_assert!(part.end - part.start <= params.max() as usize);
            prop_assert_eq!(part.fingerprint, fingerprint(&tokens[part.start..part.end]));
        }
    }

    #[test]
    fn fast_paths_equal_the_cutter(tokens in long_tokens(), params in params()) {
        let mut cutter = Cutter::new(&params);
        let mut bounds = vec![0];
        bounds.extend((0..tokens.len()).filter(|&at| cutter.push(tokens[at]).is_some()).map(|at| at + 1));
        if bounds.last() != Some(&tokens.len()) {
            bounds.push(tokens.len());
        }
        let chunks = chunk(&tokens, &params);
        prop_assert_eq!(chunks.bounds(), bounds);
        for part in chunks.iter() {
            prop_assert_eq!(part.fingerprint, fingerprint(&tokens[part.start..part.end]));
        }
    }

    #[test]
    fn pieces_make_no_difference(
        tokens in long_tokens(),
        params in params(),
        sizes in prop::collection::vec(0_usize..40_000, 0..6),
    ) {
        let mut chunker = Chunker::new(&params);
        let mut rest = &tokens[..];
        for size in sizes {
            let (piece, more) = rest.split_at(size.min(rest.len()));
            chunker.push(piece);
            rest = more;
        }
        chunker.push(rest);
        prop_assert_eq!(chunker.finish(), chunk(&tokens, &params));
    }

    #[test]
    fn a_short_chunk_ends_at_a_marker_or_at_the_end(tokens in tokens(), params in params()) {
        let mut cutter = Cutter::new(&params);
        let mut start = 0;
        for (at, &token) in tokens.iter().enumerate() {
            let Some(cut) = cutter.push(token) else { continue };
            let len = at + 1 - start;
            prop_assert!(cut == Cut::Marker || len >= params.min() as usize);
            start = at + 1;
        }
    }

    #[test]
    fn a_resumed_cutter_goes_on_as_if_it_had_seen_everything(
        tokens in tokens(),
        params in params(),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(tokens.len() + 1);
        let mut whole = Cutter::new(&params);
        let (mut last_cut, mut last_marker) = (0, 0);
        for (i, &token) in tokens[..at].iter().enumerate() {
            let cut = whole.push(token);
            last_cut = if cut.is_some() { i + 1 } else { last_cut };
            last_marker = if cut == Some(Cut::Marker) { i + 1 } else { last_marker };
        }
        let window = &tokens[at.saturating_sub(64)..at];
        let mut resumed = Cutter::resume(&params, window, at - last_cut, at - last_marker);
        for &token in &tokens[at..] {
            prop_assert_eq!(resumed.push(token), whole.push(token));
        }
    }

    #[test]
    fn inserted_text_disturbs_few_chunks(seed in any::<u64>(), at in 0_usize..20_000, count in 1_usize..300) {
        let params = ChunkParams::default();
        let text = random_ids(seed, 20_000, 129_280);
        let mut edited = text.clone();
        edited.splice(at..at, random_ids(!seed, count, 129_280));
        let known: std::collections::HashSet<u64> = chunk(&text, &params).fingerprints().iter().copied().collect();
        let fresh = chunk(&edited, &params).fingerprints().iter().filter(|f| !known.contains(f)).count();
        // Twelve chunks of slack for random ids: cuts meet again with the first one that both sides allow.
        prop_assert!(fresh <= count / 64 + 12, "{fresh} new chunks");
    }
}
