//! The program: what is known of it beforehand, and becoming it.

use crate::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use elf::ElfStream;
use elf::abi::PT_INTERP;
use elf::endian::AnyEndian;
use nix::errno::Errno;
use nix::unistd::{execvpe, getgid, getuid};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata, metadata};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// Why the library will not be loaded into the program, if that can be told. A script is left alone: it is its
/// interpreter that runs, and mostly starts others.
pub(crate) fn warning(name: &OsStr) -> Option<&'static str> {
    let path = locate(name)?;
    let about = metadata(&path).ok()?;
    let segments = ElfStream::<AnyEndian, _>::open_stream(File::open(&path).ok()?).ok()?;
    if !segments.segments().iter().any(|segment| segment.p_type == PT_INTERP) {
        Some("a static program loads no library, so nothing of it will be seen")
    } else if changes_identity(&about) {
        Some("a set-user-ID or set-group-ID program does not load the library, so nothing of it will be seen")
    } else {
        None
    }
}

/// Whether the program will run as somebody else: its owner runs it as himself.
fn changes_identity(about: &Metadata) -> bool {
    let mode = about.mode();
    let user = mode & SET_UID != 0 && about.uid() != getuid().as_raw();
    // Without the right to execute, the other bit used to mean locking.
    let group = mode & SET_GID != 0 && mode & GROUP_EXECUTES != 0 && about.gid() != getgid().as_raw();
    user || group
}

/// The file that is executed by that name.
pub(crate) fn locate(name: &OsStr) -> Option<PathBuf> {
    candidates(name)
        .into_iter()
        .find(|path| metadata(path).is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0))
}

/// What the name can mean, whether it is there or not.
fn candidates(name: &OsStr) -> Vec<PathBuf> {
    let directories = if is_path(name) {
        OsString::new()
    } else {
        std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())
    };
    // The empty list has one element, the empty path, which stands for the current directory.
    std::env::split_paths(&directories).map(|directory| directory.join(name)).collect()
}

fn is_path(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/')
}

pub(crate) fn display(name: &OsStr) -> impl std::fmt::Display {
    Path::new(name).display()
}

/// Returns only if that fails.
pub(crate) fn execute(command: Vec<OsString>, variables: &[(&str, OsString)]) -> Failure {
    let name = command[0].clone();
    let command: Vec<_> = command.into_iter().map(c_string).collect();
    let Err(errno) = execvpe(&command[0], &command, &environment(variables));
    let there = candidates(&name).iter().any(|path| path.is_file());
    let (status, why) = match errno {
        Errno::ENOENT if there => (NOT_FOUND, "the interpreter that it names is not found"),
        Errno::ENOENT => (NOT_FOUND, "not found"),
        // A directory of PATH that may not be searched. A shell does not tell of it either.
        Errno::EACCES if !there && !is_path(&name) => (NOT_FOUND, "not found"),
        _ => (NOT_EXECUTABLE, errno.desc()),
    };
    Failure { status, why: format!("{}: {why}", display(&name)) }
}

/// The environment with these variables in it.
fn environment(variables: &[(&str, OsString)]) -> Vec<CString> {
    let kept = std::env::vars_os().filter(|(name, _)| !variables.iter().any(|(set, _)| name == set));
    let set = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    kept.chain(set)
        .map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            c_string(entry)
        })
        .collect()
}

fn c_string(text: OsString) -> CString {
    CString::new(text.into_vec()).expect("what came in C strings has no NUL")
}
