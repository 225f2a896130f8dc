//! Token ids -> content-defined chunks -> fingerprints -> donors -> reuse plan.
//!
//! This crate is pure: it knows neither Python, nor torch, nor an engine, and does no I/O.

#![deny(unsafe_code)]

mod chunk;
mod chunker;
mod error;
mod fingerprint;
pub mod gear;
mod matching;
mod namespace;
mod params;
mod plan;
mod policy;
mod quota;
mod registry;
mod scan;
#[allow(unsafe_code)]
mod simd;
mod sizes;
mod window;

pub use chunk::{Chunk, Chunks, Cut, Cutter, chunk, chunk_bounds};
pub use chunker::Chunker;
pub use error::{Error, Result};
pub use fingerprint::fingerprint;
pub use namespace::Namespace;
pub use params::ChunkParams;
pub use plan::{Compute, Piece, Reuse, ReusePlan, Segment};
pub use policy::Policy;
pub use quota::{Quota, Usage};
pub use registry::{Entry, Registry, Stats};
#[doc(hidden)]
pub use registry::{fork, parts};
#[doc(hidden)]
pub use simd::Vectors;
