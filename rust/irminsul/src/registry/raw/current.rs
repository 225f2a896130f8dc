//! A word that names the present value of something -> that value, pinned.
//!
//! Knows nothing of the values. One writer publishes; readers never wait for it.

use super::slab::{Pin, Slab};
use super::slots::Handle;
use super::sync::{AtomicU64, Ordering, fence};

/// Handle of the present value; 0 when there is none.
#[derive(Debug, Default)]
pub(crate) struct Current(AtomicU64);

impl Current {
    /// The value as it is at some moment of this call.
    pub(crate) fn pin<'a, T>(&self, slab: &'a Slab<T>) -> Option<Pin<'a, T>> {
        loop {
            // Acquire pairs with the release in `publish`.
            let handle = self.0.load(Ordering::Acquire);
            if handle == 0 {
                return None;
            }
            let pin = slab.pin(Handle::from_bits(handle));
            if pin.is_some() {
                return pin;
            }
            // The value has been followed by another, or by none: the writer moved on. The fence pairs
            // with the release in `Slots::retire`, which comes after the swap in `replace`: having seen
            // the end of the value, the next load sees what followed it.
            fence(Ordering::Acquire);
        }
    }

    /// Puts a value in the place of the one before, which readers keep until they are done; false, and
    /// nothing changes, when there is no slot for it.
    pub(crate) fn publish<T>(&self, slab: &Slab<T>, value: T) -> bool {
        let Ok(handle) = slab.insert(value) else {
            return false;
        };
        self.replace(slab, handle.bits());
        true
    }

    /// Leaves no value.
    pub(crate) fn clear<T>(&self, slab: &Slab<T>) {
        self.replace(slab, 0);
    }

    fn replace<T>(&self, slab: &Slab<T>, handle: u64) {
        // Release pairs with the acquire in `pin`. The value before is this writer's own: no acquire.
        let before = self.0.swap(handle, Ordering::Release);
        if before != 0 {
            slab.retire(Handle::from_bits(before));
        }
    }
}
