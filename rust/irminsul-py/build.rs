//! The interpreter found by PyO3 -> `cfg` flags for its version and ABI.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
