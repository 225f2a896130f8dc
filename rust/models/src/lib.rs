//! Nothing: this crate is its tests, which compile the registry's concurrent files against checkers.
