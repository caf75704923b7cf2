//! The files that the library writes to.

use crate::{BROKEN, Failure};
use rdma_verbs_options::Sink;
use std::ffi::OsString;
use std::fs::{File, metadata};
use std::io;
use std::path::{Path, PathBuf, absolute};

/// The value of the variable for a sink: a file is named from the root, because the program may change its directory,
/// and emptied, because the library appends to it.
pub(crate) fn make(sink: &Sink) -> Result<OsString, Failure> {
    let Sink::File(path) = sink else { return Ok(sink.value().to_owned()) };
    match make_file(path) {
        Ok(path) => Ok(path.into()),
        Err(error) => Err(Failure { status: BROKEN, why: format!("{}: {error}", path.display()) }),
    }
}

fn make_file(path: &Path) -> io::Result<PathBuf> {
    // A pipe or a terminal has nothing to be emptied of; opening a pipe would wait for a reader.
    let special = metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir());
    if !special {
        File::create(path)?;
    }
    absolute(path)
}

/// A file that the library makes itself.
pub(crate) fn from_the_root(path: &Path) -> Result<PathBuf, Failure> {
    absolute(path).map_err(|error| Failure { status: BROKEN, why: format!("{}: {error}", path.display()) })
}
