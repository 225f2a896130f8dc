//! Slots, slab, holds and zeroed lines: the registry's memory that threads share without a lock.
//!
//! Knows nothing of tokens or runs. The only folder of the registry with `unsafe`; the models in
//! `rust/models` compile these very files against a checker of interleavings.

mod current;
mod holds;
mod lines;
mod slab;
mod slots;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use current::Current;
pub(crate) use holds::Holds;
pub(crate) use lines::Lines;
pub use slab::{Pin, Slab};
pub use slots::{Handle, Slots};
pub(crate) use sync::{AtomicU64, Ordering, fence, spin};
