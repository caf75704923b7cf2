//! `RDMA_SOFT_PCAP`: what is sent and received, into a file.

use rdma_verbs_wire::{cm::MAD_BYTES, pcap, pcap::Way};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::descriptors::{self, Tracked};

static FILE: OnceLock<Tracked<File>> = OnceLock::new();

/// Makes the file, if the variable names one: one for a process, `%p` in its name is the process's number.
pub(crate) fn open() -> std::io::Result<()> {
    let Some(name) = rdma_verbs_contract::environment::value(c"RDMA_SOFT_PCAP").filter(|_| FILE.get().is_none()) else {
        return Ok(());
    };
    let pid = std::process::id().to_string();
    let mut path = Vec::new();
    let mut rest = name.as_bytes();
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        path.extend_from_slice(&rest[..at]);
        path.extend_from_slice(pid.as_bytes());
        rest = &rest[at + 2..];
    }
    path.extend_from_slice(rest);
    let path = OsString::from_vec(path);
    let file = Tracked::open(|| File::create(&path))?;
    (&*file).write_all(&pcap::file_header())?;
    let _ = FILE.set(file);
    Ok(())
}

/// Whether there is a capture at all; asked before anything is prepared.
#[inline]
pub(crate) fn on() -> bool {
    FILE.get().is_some() && !descriptors::in_child()
}

/// A packet of a reliable connection: headers (without the frame's length) and payload.
pub(crate) fn packet(way: Way, packet: &[u8]) {
    append(|| pcap::packet(way, SystemTime::now(), packet));
}

pub(crate) fn mad(way: Way, mad: &[u8; MAD_BYTES]) {
    append(|| pcap::mad(way, SystemTime::now(), mad));
}

/// One write for a record, so that those of several threads do not mix. A full disk costs the capture, not the program.
fn append(record: impl FnOnce() -> Vec<u8>) {
    if let Some(file) = FILE.get().filter(|_| on()) {
        let _ = (&**file).write(&record());
    }
}
