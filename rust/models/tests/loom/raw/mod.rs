//! The registry's `raw` folder, on loom's primitives.

#[path = "../../../../irminsul/src/registry/raw/current.rs"]
mod current;
mod lines;
#[path = "../../../../irminsul/src/registry/raw/slab.rs"]
mod slab;
#[path = "../../../../irminsul/src/registry/raw/slots.rs"]
mod slots;
mod sync;

pub(crate) use current::Current;
pub(crate) use lines::Lines;
pub(crate) use slab::{Pin, Slab};
pub(crate) use slots::{Handle, Slots};
pub(crate) use sync::{AtomicU64, Ordering, fence, spin};
