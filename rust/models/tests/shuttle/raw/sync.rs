//! As the crate's `sync`, on shuttle.

pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(crate) const FIRST_BUCKET: u32 = 2;

pub(crate) fn spin(_: u32) {
    shuttle::thread::yield_now();
}

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
