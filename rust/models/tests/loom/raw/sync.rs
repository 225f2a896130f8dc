//! As the crate's `sync`, on loom.

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(crate) const FIRST_BUCKET: u32 = 2;

pub(crate) fn spin(_: u32) {
    loom::thread::yield_now();
}

#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T: Default> Default for UnsafeCell<T> {
    fn default() -> Self {
        Self(loom::cell::UnsafeCell::new(T::default()))
    }
}

impl<T> UnsafeCell<T> {
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.0.with(read)
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}
