//! `rdma-verbs`: runs a program with `librdma_verbs_preload.so`.
//!
//! It turns its options into the library's variables, prepends the library to `LD_PRELOAD`, with `librdma_soft.so` where
//! that is asked for, and becomes the program.
#![cfg_attr(not(test), no_main)]

mod arguments;
mod library;
mod output;
mod program;

use arguments::Arguments;
use std::ffi::{OsString, c_int};
use std::io::Write as _;

/// The command line is wrong.
const USAGE: c_int = 2;
/// Something of the launcher's own does not work. This and the next two are those of env(1), nohup(1) and others.
const BROKEN: c_int = 125;
const NOT_EXECUTABLE: c_int = 126;
const NOT_FOUND: c_int = 127;

/// Why there is no program to become, in one line, and the exit status that says so.
struct Failure {
    status: c_int,
    why: String,
}

/// The C library's `main`, not Rust's: that one ignores SIGPIPE and opens closed standard descriptors, and a
/// program inherits both. (`std::env::args` works without it where the C library is glibc, as its documentation
/// promises.)
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main() -> c_int {
    match Arguments::read(std::env::args_os()).and_then(run) {
        Ok(()) => 0,
        Err(failure) => {
            say(&failure.why);
            failure.status
        }
    }
}

/// Returns only where there was something to print and no program to run, or a failure.
fn run(arguments: Option<Arguments>) -> Result<(), Failure> {
    let Some(arguments) = arguments else { return Ok(()) };
    let mut variables = vec![("LD_PRELOAD", preload(library::find(arguments.soft)?))];
    variables.extend(arguments.variables()?);
    if let Some(warning) = program::warning(arguments.program()) {
        say(&format!("warning: {}: {warning}", program::display(arguments.program())));
    }
    Err(program::execute(arguments.command, &variables))
}

/// The libraries before what is preloaded already.
fn preload(mut list: OsString) -> OsString {
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// One line on standard error by one write, which nothing can be done about if it fails.
fn say(what: &str) {
    let _ = std::io::stderr().write_all(format!("rdma-verbs: {what}\n").as_bytes());
}
