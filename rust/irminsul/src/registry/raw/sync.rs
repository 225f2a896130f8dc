//! The primitives that threads meet on -> the standard library's; the models put a checker's here.
//!
//! Knows nothing of what is built from them.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Slots of the first bucket; each further one holds twice as many as the one before.
pub(crate) const FIRST_BUCKET: u32 = 64;

/// Waits a little in a loop that another thread will end.
pub(crate) fn spin(round: u32) {
    if round < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A cell whose accesses the models check for races.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
