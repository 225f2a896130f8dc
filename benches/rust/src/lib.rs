//! Seeds -> token sequences and registries to measure with.
//!
//! Knows nothing of clocks or results.

use irminsul::{ChunkParams, Entry, Namespace, Policy, Registry};

/// Ids in the vocabulary of DeepSeek's models.
pub const VOCABULARY: u64 = 129_280;

/// An endless SplitMix64 stream.
pub fn splitmix(mut seed: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// Uniform 32-bit ids.
pub fn uniform(seed: u64, count: usize) -> Vec<u32> {
    splitmix(seed).take(count).map(|x| x as u32).collect()
}

/// Ids of the vocabulary with frequencies that fall with the id, about as 1 / id.
pub fn text(seed: u64, count: usize) -> Vec<u32> {
    let top = (VOCABULARY as f64).ln();
    let unit = |x: u64| (x >> 11) as f64 / (1_u64 << 53) as f64;
    splitmix(seed)
        .take(count)
        .map(|x| (unit(x) * top).exp() as u32 - 1)
        .collect()
}

/// A registry with twenty other documents, and one that equals `document` unless that is empty.
pub fn registry(document: &[u32], windows: bool) -> Registry {
    let policy = Policy {
        windows,
        ..Policy::default()
    };
    let registry = Registry::new(1 << 23, ChunkParams::default(), policy).expect("valid sizes");
    let namespace = Namespace::default();
    for node in 0..20 {
        let other = text(1000 + node, 100_000);
        registry
            .add(&Entry::root(node, &other, &namespace))
            .expect("room for it");
    }
    if !document.is_empty() {
        registry
            .add(&Entry::root(99, document, &namespace))
            .expect("room for it");
    }
    registry
}

/// The ids as the bytes that byte-wise chunkers see.
pub fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect()
}

/// The processor, and how busy it is.
pub fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("?");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    #[cfg(target_arch = "x86_64")]
    let vectors = if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else {
        "AVX2 or less"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "no x86 vectors";
    let model = model.trim_matches([' ', ':', '\t']);
    format!("{model}, {cores} cores, {vectors}, load average {load} at the start")
}
