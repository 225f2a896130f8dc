//! Token ids -> content-defined chunks -> fingerprints -> donors -> reuse plan.
//!
//! This crate is pure: it knows neither Python, nor torch, nor an engine, and does no I/O.
