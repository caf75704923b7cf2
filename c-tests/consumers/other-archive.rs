// SPDX-License-Identifier: MIT OR Apache-2.0

//! A static library in Rust, with the standard library in it, as a second one in a program.

use std::collections::HashMap;

#[unsafe(no_mangle)]
pub extern "C" fn other_archive() -> i32 {
    let words: HashMap<String, usize> = "a bc def".split(' ').map(|word| (word.to_string(), word.len())).collect();
    std::panic::catch_unwind(|| words["def"] as i32).unwrap_or(-1)
}
