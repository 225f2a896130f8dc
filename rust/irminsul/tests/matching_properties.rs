//! Random forests and prompts that repeat themselves and each other -> sound and complete plans.

mod support;

use irminsul::Policy;
use proptest::prelude::*;
use proptest::sample::Index;
use support::host::{Host, join, reused, text};
use support::random_ids;

/// Instructions to build texts that repeat themselves and each other.
fn pieces() -> impl Strategy<Value = Vec<(u64, usize, usize)>> {
    prop::collection::vec((0_u64..4, 0_usize..300, 1_usize..400), 0..8)
}

fn assemble(pieces: &[(u64, usize, usize)], alphabet: u64) -> Vec<u32> {
    let sources: Vec<Vec<u32>> = (0..4).map(|seed| random_ids(seed, 700, alphabet)).collect();
    let part = |&(seed, start, len): &(u64, usize, usize)| {
        sources[seed as usize][start..start + len].to_vec()
    };
    pieces.iter().flat_map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Few ids make runs, periods and accidental repeats; few fingerprint bits make collisions.
    #[test]
    fn every_plan_is_sound(
        nodes in prop::collection::vec((pieces(), any::<Option<Index>>(), 0_u32..20), 1..8),
        prompt in pieces(),
        alphabet in prop::sample::select(vec![1_u64, 2, 5, 50_000]),
        prefix in any::<Index>(),
        bits in prop::sample::select(vec![0_u32, 3, 64]),
        recompute_head in 0_u32..50,
        min_span in 1_u32..80,
    ) {
        let policy = Policy { recompute_head, min_span, ..Policy::default() };
        let mut host = Host::with_bits(policy, bits);
        for (pieces, parent, hops) in &nodes {
            let tokens = assemble(pieces, alphabet);
            if !tokens.is_empty() {
                let count = host.nodes.len();
                let parent = parent.filter(|_| count > 0).map(|parent| parent.index(count) as u64);
                host.add(parent, &tokens, *hops, 0);
            }
        }
        let prompt = assemble(&prompt, alphabet);
        host.plan(&prompt, prefix.index(prompt.len() + 1));
    }

    /// Whatever surrounds a long enough text, all of it is found.
    #[test]
    fn long_repeats_are_found_whole(
        before in 40_usize..400,
        after in 1_usize..400,
        len in 500_usize..1500,
        seed in 0_u64..1000,
    ) {
        let mut host = Host::new(Policy::default());
        let shared = text(seed, len);
        host.record(&join(&[&text(seed + 5000, 45), &shared, &text(seed + 6000, 50)]));
        let prompt = join(&[&text(seed + 7000, before), &shared, &text(seed + 8000, after)]);
        prop_assert_eq!(reused(&host.plan(&prompt, 0)), len);
    }
}
