//! Texts -> bytes of memory for each cached token, measured at the allocator.
//!
//! Knows nothing of how they are spent. One test, so that nothing else allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use irminsul::{ChunkParams, Cutter, Entry, Namespace, Policy, Registry};

/// The system's allocator, counting.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// Safety: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // Safety: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // Safety: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // Safety: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CAPACITY: usize = 1 << 20;
/// The bound in docs/core.md, for a registry that is full of texts of a thousand tokens and more.
const BYTES_PER_TOKEN: f64 = 10.0;

/// Bytes for each token of capacity after three times as many tokens were added.
fn bytes_per_token(length: usize, text: impl Fn(u64) -> Vec<u32>) -> f64 {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let policy = Policy::default();
    let registry = Registry::new(CAPACITY, ChunkParams::default(), policy).expect("valid");
    let namespace = Namespace::default();
    for node in 0..(3 * CAPACITY / length) as u64 {
        registry
            .add(&Entry::root(node, &text(node), &namespace))
            .expect("evicts");
    }
    let stats = registry.stats();
    assert!(stats.resident_tokens + length > CAPACITY, "full");
    assert!(stats.evicted_nodes > 0);
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    bytes as f64 / CAPACITY as f64
}

fn random(seed: u64, length: usize) -> Vec<u32> {
    let mut state = seed * 2 + 1;
    let next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 47) as u32
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Chunks of the smallest size, all different: after 63 tokens, one in 64 ids makes a cut.
fn smallest_chunks(seed: u64, count: usize) -> Vec<u32> {
    let mut cutter = Cutter::new(&ChunkParams::default());
    let mut text = Vec::with_capacity(64 * count);
    for (chunk, tokens) in random(seed, 63 * count).chunks(63).enumerate() {
        for &token in tokens {
            assert_eq!(cutter.push(token), None);
            text.push(token);
        }
        let cuts = |id: &u32| cutter.clone().push(*id).is_some();
        let last = (0..u32::MAX).find(cuts).expect("one in 64 ids is such");
        cutter.push(last);
        text.push(last);
        assert_eq!(text.len(), 64 * (chunk + 1));
    }
    text
}

/// Bytes for each node that stays of a long text whose end was removed, piece by piece.
fn bytes_per_head(count: u64) -> f64 {
    let policy = Policy::default();
    let registry = Registry::new(CAPACITY, ChunkParams::default(), policy).expect("valid");
    let namespace = Namespace::default();
    let before = ALLOCATED.load(Ordering::Relaxed);
    for head in 0..count {
        registry
            .add(&Entry::root(head, &random(head, 50_000), &namespace))
            .expect("room");
        for part in 1..50 {
            let above = part * count + head;
            registry.split(head, 1000, above).expect("inside");
            // The first piece stays.
            if part > 1 {
                registry.remove(above).expect("lives");
            }
        }
        registry.remove(head).expect("lives");
    }
    assert_eq!(registry.stats().resident_tokens as u64, 1000 * count);
    (ALLOCATED.load(Ordering::Relaxed) - before) as f64 / count as f64
}

#[test]
fn memory_stays_inside_the_stated_bytes_per_token() {
    let mut measured = Vec::new();
    for length in [1000, 8000, 100_000] {
        measured.push((length, bytes_per_token(length, |node| random(node, length))));
    }
    let crafted = |node| smallest_chunks(node, 128);
    measured.push((64 * 128, bytes_per_token(64 * 128, crafted)));
    assert!(
        measured.iter().all(|(_, bytes)| *bytes <= BYTES_PER_TOKEN),
        "{measured:?}"
    );
    // Ids of a thousand tokens, what is indexed of them, and a kilobyte for the node.
    let head = bytes_per_head(200);
    assert!(head <= 4000.0 + 2000.0 + 1024.0, "{head} bytes for each");
}
