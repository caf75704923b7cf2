//! The committed header is what cbindgen makes of the Rust source.

use std::fs;
use std::path::Path;

/// Writes the header instead of comparing it: `make header`.
const BLESS: &str = "BLESS";

fn generate(root: &Path) -> String {
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let number = |part: &str| part.parse::<u32>().expect("a version of numbers");
    let version_num = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"));
    let header = config.header.take().expect("a header in cbindgen.toml");
    config.header =
        Some(header.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("@VERSION_NUM@", &version_num.to_string()));
    let mut text = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/ffi.rs"))
        .generate()
        .expect("cbindgen reads src/ffi.rs")
        .write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn the_committed_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/rdma/rdma_verbs.h");
    let generated = generate(root);
    if std::env::var_os(BLESS).is_some() {
        fs::write(&path, &generated).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).expect("the header can be read");
    assert!(committed == generated, "include/rdma/rdma_verbs.h is out of date: run `make header`");
}
