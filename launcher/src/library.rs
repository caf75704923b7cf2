//! Where the libraries are, seen from the launcher's own executable.

use crate::{BROKEN, Failure, program};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const FILE: &str = "rdma_verbs/librdma_verbs_preload.so";
/// Beside it: the software device.
const SOFT: &str = "librdma_soft.so";

/// The way from the directory of programs to that of libraries, as installed.
const LIBDIR_FROM_BINDIR: &str = match option_env!("RDMA_VERBS_LIBDIR_FROM_BINDIR") {
    Some(way) => way,
    None => "../lib",
};

/// Where else distributions have their libraries: what is built with one `libdir` may be installed with another.
fn usual() -> [String; 3] {
    ["../lib".into(), "../lib64".into(), format!("../lib/{}-linux-gnu", std::env::consts::ARCH)]
}

/// What is put into `LD_PRELOAD`: the library, and behind it the software device, if there is to be one.
pub(crate) fn find(soft: bool) -> Result<OsString, Failure> {
    let executable = executable()?;
    let places = places(executable.parent().unwrap_or(Path::new("/")));
    let Some(library) = places.iter().find_map(|place| place.canonicalize().ok()) else {
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(broken(format!("the library is not installed: there is no {}", places.join(" and no "))));
    };
    if !can_be_listed(library.as_os_str()) {
        return Err(broken(format!(
            "{}: LD_PRELOAD cannot hold a path with a blank or a colon; move the installation to another directory",
            library.display()
        )));
    }
    let device = library.with_file_name(SOFT);
    let mut list = OsString::from(library);
    if soft {
        if !device.exists() {
            return Err(broken(format!("the software device is not installed: there is no {}", device.display())));
        }
        list.push(":");
        list.push(device);
    }
    Ok(list)
}

/// The launcher's own. Without `/proc` its name tells, as it told who executed it.
fn executable() -> Result<PathBuf, Failure> {
    let by_name = || program::locate(&std::env::args_os().next()?)?.canonicalize().ok();
    let why = "no /proc, and no file of the name that it was called by, tells where it is installed";
    std::env::current_exe().ok().or_else(by_name).ok_or_else(|| broken(why.into()))
}

fn broken(why: String) -> Failure {
    Failure { status: BROKEN, why }
}

/// In the order in which they are looked at: the build tree, if the launcher is in one, and the installation as it was
/// built for, or as is usual.
fn places(bindir: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if bindir.ends_with("release") || bindir.ends_with("dist") {
        places.push(bindir.with_file_name("dist").join(FILE));
    }
    places.push(bindir.join(LIBDIR_FROM_BINDIR).join(FILE));
    places.extend(usual().iter().filter(|way| *way != LIBDIR_FROM_BINDIR).map(|way| bindir.join(way).join(FILE)));
    places
}

/// The dynamic loader takes both for the end of a path, and knows no way to quote them.
fn can_be_listed(path: &OsStr) -> bool {
    !path.as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_order(bindir: &str) -> Vec<String> {
        places(Path::new(bindir)).iter().map(|place| place.display().to_string()).collect()
    }

    #[test]
    fn an_installed_launcher_looks_beside_its_directory() {
        let there = format!("/usr/local/bin/{LIBDIR_FROM_BINDIR}/{FILE}");
        assert_eq!(in_order("/usr/local/bin")[0], there);
        let debian = format!("/usr/bin/../lib/{}-linux-gnu/{FILE}", std::env::consts::ARCH);
        assert!(in_order("/usr/bin").contains(&debian));
    }

    #[test]
    fn a_built_launcher_looks_into_the_build_tree_first() {
        for bindir in ["/src/target/release", "/src/target/dist"] {
            assert_eq!(in_order(bindir)[0], format!("/src/target/dist/{FILE}"));
            assert_ne!(in_order(bindir)[1], in_order(bindir)[0]);
        }
    }

    #[test]
    fn what_separates_paths_cannot_be_in_one() {
        assert!(can_be_listed("/opt/rdma-verbs_1.0/ü\t".as_ref()));
        assert!(!can_be_listed("/opt/rdma verbs".as_ref()));
        assert!(!can_be_listed("/opt/rdma:verbs".as_ref()));
    }
}
