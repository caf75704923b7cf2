//! Linker arguments of the shared object that cargo builds; the Makefile links the installed one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A thread may be waiting inside the library when the program calls dlclose.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
