//! Where trace, statistics and reports go: whole lines, each in one write.

use rdma_verbs_contract::output;
use rdma_verbs_options::Sink;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// An open sink.
pub(crate) struct Output {
    fd: RawFd,
    /// The file that was opened. A program may close descriptors that it did not open, and get the number for a file
    /// of its own: nothing of ours must be written there.
    file: Option<(libc::dev_t, libc::ino_t)>,
    is_regular: bool,
}

impl Output {
    pub(crate) const STDERR: Output = Output { fd: libc::STDERR_FILENO, file: None, is_regular: false };

    pub(crate) fn open(sink: &Sink) -> io::Result<Output> {
        let path = match sink {
            Sink::Stderr => return Ok(Output::STDERR),
            Sink::File(path) => path,
        };
        // Appending keeps the lines of several processes apart. std opens close-on-exec.
        let file = OpenOptions::new().append(true).create(true).mode(0o666).open(path)?;
        let metadata = file.metadata()?;
        let file_id = (metadata.dev(), metadata.ino());
        let is_regular = metadata.is_file();
        Ok(Output { fd: above_the_usual(file.into()).into_raw_fd(), file: Some(file_id), is_regular })
    }

    /// Writes `text`, whole lines, at once.
    pub(crate) fn write(&self, text: &str) {
        if self.file.is_some_and(|file| identity(self.fd) != Some(file)) {
            return;
        }
        if self.is_regular {
            // Nothing there can raise SIGPIPE.
            // A full disk is not the program's business.
            let _ = output::write_all(self.fd, text.as_bytes());
        } else {
            output::write(self.fd, text);
        }
    }
}

/// A descriptor of a higher number for the same file: programs expect to get the low ones.
fn above_the_usual(fd: OwnedFd) -> OwnedFd {
    // SAFETY: a descriptor that is ours.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 200) };
    if high < 0 {
        return fd;
    }
    // SAFETY: new, and nobody else knows the number.
    unsafe { OwnedFd::from_raw_fd(high) }
}

fn identity(fd: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for a `stat`.
    let result = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: fstat has filled it.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}
