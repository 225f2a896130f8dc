//! Values -> handles; a pinned value stays where it is until the last unpin.
//!
//! Knows nothing of the values. Each is immutable from publication on.

use std::fmt;
use std::ops::Deref;

use super::slots::{Handle, Slots};
use super::sync::UnsafeCell;

/// Values behind pins.
pub struct Slab<T> {
    slots: Slots<Cell<T>>,
}

#[derive(Debug)]
struct Cell<T>(UnsafeCell<Option<T>>);

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Self(UnsafeCell::default())
    }
}

// Safety: the cell is written only by who owns its slot (between `claim` and `publish`, and between
// the end of a life and `recycle`), and read only under a pin, which excludes both; the words order
// the two. A value is shared by readers and dropped by whoever unpins last: hence both bounds.
unsafe impl<T: Send + Sync> Sync for Cell<T> {}
unsafe impl<T: Send> Send for Cell<T> {}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            slots: Slots::default(),
        }
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").finish_non_exhaustive()
    }
}

impl<T> Slab<T> {
    /// Publishes a value; gives it back when all 2^32 slots are taken.
    ///
    /// # Errors
    /// The value, when there is no slot for it.
    pub fn insert(&self, value: T) -> Result<Handle, T> {
        let Some(slot) = self.slots.claim() else {
            return Err(value);
        };
        // Safety: a claimed slot is ours alone until it is published.
        self.slots
            .extra(slot)
            .0
            .with_mut(|cell| unsafe { *cell = Some(value) });
        Ok(self.slots.publish(slot))
    }

    /// The value of this very handle, if it lives.
    pub fn pin(&self, handle: Handle) -> Option<Pin<'_, T>> {
        let pin = Pin {
            slab: self,
            slot: handle.slot(),
        };
        if self.slots.pin(handle) {
            Some(pin)
        } else {
            std::mem::forget(pin);
            None
        }
    }

    /// Ends a value's life; the last unpin frees it. Only one thread may do so for a handle.
    pub fn retire(&self, handle: Handle) {
        if self.slots.retire(handle) {
            self.free(handle.slot());
        }
    }

    /// Ends a value's life unless someone pins it.
    pub fn evict(&self, handle: Handle) -> bool {
        let evicted = self.slots.evict(handle);
        if evicted {
            self.free(handle.slot());
        }
        evicted
    }

    fn free(&self, slot: u32) {
        let cell = &self.slots.extra(slot).0;
        // Safety: the life has ended and nobody pins it, so the slot is ours until it is recycled.
        let value = cell.with_mut(|cell| unsafe { (*cell).take() });
        self.slots.recycle(slot);
        drop(value);
    }
}

/// A value that cannot be freed while this exists.
#[derive(Debug)]
pub struct Pin<'a, T> {
    slab: &'a Slab<T>,
    slot: u32,
}

impl<T> Deref for Pin<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let cell = &self.slab.slots.extra(self.slot).0;
        // Safety: pinned, so no one writes to the cell as long as `self` exists.
        let value = cell.with(|cell| unsafe { (*cell).as_ref() });
        value.unwrap_or_else(|| unreachable!("a pinned slot holds a value"))
    }
}

impl<T> Drop for Pin<'_, T> {
    fn drop(&mut self) {
        if self.slab.slots.unpin(self.slot) {
            self.slab.free(self.slot);
        }
    }
}
