//! Slots one thread at a time; `rust/models` has the threads. Apart from `slots.rs`, which those compile.

use super::slots::{Slots, locate};

#[test]
fn slots_fill_the_buckets_in_order() {
    let mut expected = (0_u32..4).flat_map(|b| (0..64_usize << b).map(move |o| (b as usize, o)));
    for slot in 0..64 * 15 {
        assert_eq!(Some(locate(slot)), expected.next());
    }
}

#[test]
fn a_life_ends_once_and_its_handle_never_fits_again() {
    let slots = Slots::<()>::default();
    let slot = slots.claim().expect("room");
    let first = slots.publish(slot);
    assert!(slots.pin(first) && slots.pins(slot) == 1);
    assert!(!slots.evict(first), "pinned");
    assert!(!slots.retire(first), "the last unpin frees");
    assert!(!slots.pin(first), "dead");
    assert!(slots.unpin(slot));
    slots.recycle(slot);
    assert_eq!(slots.claim(), Some(slot));
    let second = slots.publish(slot);
    assert!(first != second && !slots.pin(first) && slots.pin(second));
    assert!(!slots.unpin(slot));
    assert!(slots.evict(second) && !slots.evict(second));
}
