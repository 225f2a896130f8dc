//! Tables and nodes one thread at a time; `rust/models` has the threads. Apart from the files tested,
//! which those compile.

use super::node::NodeCell;
use super::table::{Inserted, Table, table_key};

fn first_vacant<const N: usize>(places: &[u64; N]) -> Option<usize> {
    places.iter().position(|&place| place == 0)
}

fn add(table: &Table<2>, key: u64, place: u64) -> Inserted {
    table.insert(key, place, first_vacant, |_| true)
}

#[test]
fn places_come_and_go_one_by_one() {
    let table = Table::<2>::new(4);
    assert_eq!(add(&table, 5, 10), Inserted::Added);
    assert_eq!(add(&table, 5, 11), Inserted::Added);
    assert_eq!(add(&table, 5, 12), Inserted::Refused);
    let replaced = table.insert(5, 12, |_| Some(1), |_| true);
    assert_eq!(replaced, Inserted::Replaced(11));
    assert_eq!((table.get(5), table.counts()), ([10, 12], (2, 1, 0)));
    assert!(!table.remove(5, 11) && table.remove(5, 10));
    assert!(table.holds(5, 12) && !table.holds(5, 10));
    assert!(table.remove(5, 12));
    assert_eq!((table.get(5), table.counts()), ([0, 0], (0, 0, 0)));
}

#[test]
fn the_key_that_was_not_used_gives_way() {
    let table = Table::<2>::new(1);
    (1..=7).for_each(|key| assert_eq!(add(&table, key, key), Inserted::Added));
    (1..=7)
        .filter(|&key| key != 4)
        .for_each(|key| assert_eq!(table.get(key)[0], key));
    assert_eq!(add(&table, 8, 8), Inserted::Added);
    assert_eq!(table.get(4), [0, 0]);
    assert_eq!(table.counts(), (7, 7, 1));
}

#[test]
fn what_may_not_go_stays() {
    let table = Table::<2>::new(1);
    (1..=7).for_each(|key| assert_eq!(add(&table, key, key), Inserted::Added));
    let only = |wanted: u64| move |places: &[u64; 2]| places[0] == wanted;
    assert_eq!(table.insert(9, 9, first_vacant, |_| false), Inserted::Full);
    assert_eq!(table.insert(9, 9, first_vacant, only(6)), Inserted::Added);
    assert_eq!(table.get(6), [0, 0]);
    table.clear();
    assert_eq!(table.counts(), (0, 0, 1));
}

#[test]
fn keys_spread_over_the_sets() {
    let table = Table::<2>::new(100);
    for (seed, namespace) in [(0, 0), (0, 1), (u64::from(u32::MAX), 0)] {
        let mut counts = vec![0; 100];
        for hash in 0..100_000_u64 {
            counts[table.set(table_key(seed, namespace, hash)) / Table::<2>::LINES] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }
}

#[test]
fn a_pinned_node_is_not_evicted_and_a_removed_one_is_gone() {
    let node = NodeCell::new(7, 0);
    assert!(!node.evict(|| 1) && node.keep());
    assert!(node.evict(|| 0) && !node.keep() && !node.is_live());
    assert!(!node.remove());
    let node = NodeCell::new(7, 0);
    assert!(node.remove() && !node.evict(|| 0) && !node.keep());
}

#[test]
fn a_reader_takes_the_mark_away() {
    let node = NodeCell::new(7, 0);
    let pins = std::cell::Cell::new(0);
    let evicted = node.evict(|| {
        // The second look comes with the mark set; a reader that pins now is not seen by it.
        pins.set(pins.get() + 1);
        assert!(pins.get() == 1 || node.keep());
        0
    });
    assert!(!evicted && node.is_live());
}

#[test]
fn another_seed_puts_what_shared_a_set_apart() {
    let table = Table::<2>::new(1000);
    let set = |seed, hash| table.set(table_key(seed, 7, hash));
    let together: Vec<u64> = (0..200_000)
        .filter(|&hash| set(0, hash) == set(0, 1))
        .collect();
    assert!(together.len() > 100);
    let still = together.iter().filter(|&&hash| set(1, hash) == set(1, 1));
    assert!(still.count() < 10);
}
