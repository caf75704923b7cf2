//! bindgen 0.72 under the version number that rdma-sys 0.3.0 asks for; see Cargo.toml.

pub use modern::*;
