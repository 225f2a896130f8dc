//! Every path that this processor has, called by name -> what the scalar code makes of the same tokens.
//!
//! The crate's functions take the widest path only; here the narrower ones are held to it as well.

use super::block::{Bits, Block, Rare, Seen};
#[cfg(target_arch = "x86_64")]
use super::{looks::Looks, vectors::Vectors};
#[cfg(target_arch = "x86_64")]
use crate::fingerprint::fingerprint;
use crate::gear::{MARKER_THRESHOLD, WINDOW, roll};
use crate::params::ChunkParams;

/// Tokens of a block, and how many different ones. The last is slow where it is interpreted.
const SHAPES: &[(usize, u64)] = &[
    (64, 1 << 20),
    (256, 3),
    (320, 1 << 32),
    (if cfg!(miri) { 576 } else { 4096 }, 2),
    (if cfg!(miri) { 704 } else { 16_512 }, 129_280),
];

/// Uniform ids, and in the middle a run of id 0, every place of which is a marker's.
fn text(count: usize, below: u64) -> Vec<u32> {
    let mut state = count as u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        ((state >> 32) % below) as u32
    };
    let mut tokens: Vec<u32> = (0..count).map(|_| next()).collect();
    tokens[count / 3..count / 2].fill(0);
    tokens
}

/// Bits of the tokens after the first window: candidates and markers.
fn reference(tokens: &[u32], params: &ChunkParams) -> (Vec<u64>, Vec<u64>, Seen) {
    let mut words = [
        vec![0; tokens.len() / 64 - 1],
        vec![0; tokens.len() / 64 - 1],
    ];
    let secret = params.secret();
    let first = tokens[..WINDOW]
        .iter()
        .fold(0, |hash, &token| roll(hash, token ^ secret));
    let mut last = first;
    for (at, &token) in tokens[WINDOW..].iter().enumerate() {
        last = roll(last, token ^ secret);
        for (words, limit) in words.iter_mut().zip([params.threshold(), MARKER_THRESHOLD]) {
            words[at / 64] |= u64::from(last < limit) << (at % 64);
        }
    }
    let [content, markers] = words;
    (content, markers, Seen { first, last })
}

fn check_scan(scan: impl Fn(&Block<'_>, Bits<'_>, Rare<'_>) -> Seen) {
    for (avg, secret) in [(128, 0), (128, 9), (164, 0), (1000, 0xFFFF_FFFF), (66, 0)] {
        let params = ChunkParams::new(64, avg, 2000, secret).expect("in range");
        for &(count, below) in SHAPES {
            let tokens = text(WINDOW + count, below);
            let block = Block::new(&tokens, &params);
            let (mut content, mut markers) = (vec![!0; count / 64], Vec::new());
            let seen = scan(
                &block,
                Bits::new(&mut content, &block),
                Rare::new(&mut markers, count / 64 + 2, 1..count / 64 + 1),
            );
            let expected = reference(&tokens, &params);
            assert_eq!(content, expected.0, "{count} below {below}, {params:?}");
            assert_eq!(seen, expected.2, "{count} below {below}, {params:?}");
            let none = expected.1.iter().all(|&word| word == 0);
            assert_eq!(
                none,
                markers.is_empty(),
                "{count} below {below}, {params:?}"
            );
            if !none {
                markers.remove(0);
                markers.pop();
                assert_eq!(markers, expected.1, "{count} below {below}, {params:?}");
            }
        }
    }
}

/// What a scan finds of cuts in other bits, beside its own work.
#[cfg(target_arch = "x86_64")]
fn check_looks(scan: impl Fn(&Block<'_>, Bits<'_>, Rare<'_>, &mut Looks<'_>)) {
    let params = ChunkParams::default();
    for &(count, below) in SHAPES {
        let tokens = text(WINDOW + count, below);
        let block = Block::new(&tokens, &params);
        for (known, sizes, longest) in [
            (2000, [64, 512], 300),
            (count + 64, [64, 512], 512),
            (count / 2, [100, 120], 1),
            (5000, [64, 20_000], 15_001),
        ] {
            let bits: Vec<u64> = (text(2 * known / 64 + 12, 1 << 32).as_chunks::<2>().0.iter())
                .map(|pair| u64::from(pair[0] & pair[1]) << (pair[1] % 32))
                .collect();
            let mut room = [vec![0; known], vec![0; known]];
            let [beside, alone] = &mut room;
            let mut looks = Looks::new(&bits, known, sizes, longest, beside);
            let mut content = vec![0; count / 64];
            let mut markers = Vec::new();
            let markers = Rare::new(&mut markers, count / 64, 0..count / 64);
            scan(&block, Bits::new(&mut content, &block), markers, &mut looks);
            let expected = Looks::new(&bits, known, sizes, longest, alone).finish();
            assert_eq!(looks.finish(), expected, "{count} {known} {sizes:?}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn check_streams(hash: impl Fn(super::streams::Batch<'_>)) {
    let tokens = text(24_000, 1 << 32);
    let shapes: [&[usize]; 5] = [
        &[16, 16, 17, 18, 19],
        &[64, 65, 66, 67, 79],
        &[16, 16, 16, 16, 2000, 16],
        &[17; 335],
        &[
            500, 31, 32, 33, 47, 48, 49, 64, 20_000, 16, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
        ],
    ];
    for lengths in shapes {
        let mut bounds = vec![3];
        bounds.extend(lengths.iter().scan(3, |end, len| {
            *end += len;
            Some(*end)
        }));
        // The text ends with the last chunk, so that whatever reads further reads too far.
        let text = tokens[..bounds[lengths.len()]].to_vec();
        let pairs = bounds.windows(2);
        let expected = pairs.map(|pair| fingerprint(&tokens[pair[0]..pair[1]]));
        let expected: Vec<u64> = expected.collect();
        for later in [std::ptr::null(), text.as_ptr()] {
            let mut hashes = vec![0; lengths.len()];
            hash(super::streams::Batch {
                tokens: &text,
                bounds: &bounds,
                hashes: &mut hashes,
                later,
            });
            assert_eq!(hashes, expected, "{lengths:?}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2() {
    if Vectors::at_hand() >= Vectors::Narrow {
        // Safety: AVX2 was detected.
        check_scan(|block, content, markers| unsafe {
            super::gear_avx2::scan(block, content, markers, &mut Looks::none(&mut [0; 2]))
        });
        // Safety: AVX2 was detected.
        check_looks(|block, content, markers, looks| unsafe {
            super::gear_avx2::scan(block, content, markers, looks);
        });
        // Safety: AVX2 was detected.
        check_streams(|batch| unsafe { super::streams::avx2::hash_batch(batch) });
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512() {
    if Vectors::at_hand() >= Vectors::Mixed {
        // Safety: AVX-512 was detected, and F comes with VL.
        check_scan(|block, content, markers| unsafe {
            super::gear_avx512::scan(block, content, markers)
        });
        // Safety: AVX-512 was detected, with VL and DQ.
        check_streams(|batch| unsafe { super::streams::avx512::hash_batch(batch) });
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn neon() {
    // Safety: every 64-bit Arm has NEON.
    check_scan(|block, content, markers| unsafe {
        super::gear_neon::scan(block, content, markers)
    });
}
