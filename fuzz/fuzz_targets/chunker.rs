//! Any text, cut by any parameters, whole or in pieces -> the chunks of the slow reference.
#![no_main]

mod texts;

use arbitrary::Arbitrary;
use irminsul::{ChunkParams, Chunker, Cutter, chunk, chunk_bounds, fingerprint};
use libfuzzer_sys::fuzz_target;
use texts::{Part, text};

#[derive(Arbitrary, Debug)]
struct Input {
    sizes: (u8, u16, u16),
    secret: u32,
    parts: Vec<Part>,
    pieces: Vec<u16>,
}

fuzz_target!(|input: Input| {
    let (min, more, most) = input.sizes;
    let min = 64 + u32::from(min);
    let avg = min + 2 + u32::from(more);
    let params = ChunkParams::new(min, avg, avg + u32::from(most), input.secret).expect("in range");
    let tokens = text(&input.parts);
    let mut cutter = Cutter::new(&params);
    let mut bounds = vec![0];
    bounds.extend((1..=tokens.len()).filter(|&end| cutter.push(tokens[end - 1]).is_some()));
    if bounds.last() != Some(&tokens.len()) {
        bounds.push(tokens.len());
    }
    let chunks = chunk(&tokens, &params);
    assert_eq!(chunks.bounds(), bounds);
    assert_eq!(chunk_bounds(&tokens, &params), bounds);
    for part in chunks.iter() {
        assert_eq!(part.fingerprint, fingerprint(&tokens[part.start..part.end]));
    }
    let mut chunker = Chunker::new(&params);
    let mut rest = &tokens[..];
    for piece in input.pieces {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(piece)));
        chunker.push(piece);
        rest = after;
    }
    chunker.push(rest);
    assert_eq!(chunker.finish(), chunks);
});
