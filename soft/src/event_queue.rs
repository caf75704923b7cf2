//! Events that a program waits for through a descriptor: a queue, and an eventfd that is readable while there is one.
//!
//! Completion channels, asynchronous events and the event channels of connection management are all of this kind.

use crate::descriptors::Tracked;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct EventQueue<T> {
    /// Counts the events; each read takes one.
    ready: Tracked<EventFd>,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let ready = Tracked::open(|| EventFd::from_value_and_flags(0, flags))?;
        Ok(EventQueue { ready, events: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn push(&self, event: T) {
        self.events().push_back(event);
        // The counter cannot overflow: 2^64 events do not fit into memory.
        let _ = self.ready.write(1);
    }

    /// The oldest event. Waits as a read of the descriptor does: for ever, unless the program made it non-blocking
    /// (EAGAIN) or a signal comes (EINTR).
    pub(crate) fn pop(&self) -> Result<T, Errno> {
        self.pop_with(|_| {})
    }

    /// As [`EventQueue::pop`]; `note` sees the event before anyone can find that it is not in the queue any more.
    pub(crate) fn pop_with(&self, note: impl Fn(&T)) -> Result<T, Errno> {
        loop {
            self.ready.read()?;
            let mut events = self.events();
            // None where the event was withdrawn after it was counted.
            if let Some(event) = events.pop_front() {
                note(&event);
                return Ok(event);
            }
        }
    }

    /// Withdraws the events of an object that goes away.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut events = self.events();
        let before = events.len();
        events.retain(keep);
        for _ in events.len()..before {
            self.take_count();
        }
    }

    /// Takes a count, unless a waiter has done so already, who finds no event then and waits again. Never waits itself,
    /// though the descriptor may: that waiter needs the lock which is held here.
    fn take_count(&self) {
        let mut count = [0u8; 8];
        let place = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: a descriptor and one place with room.
        let taken = unsafe { libc::preadv2(self.fd(), &place, 1, -1, libc::RWF_NOWAIT) };
        if Errno::result(taken).is_ok_and(|taken| taken > 0) || Errno::last() == Errno::EAGAIN {
            return;
        }
        // Linux before 5.8 cannot do that.
        let mut poll = [nix::poll::PollFd::new(self.ready.as_fd(), nix::poll::PollFlags::POLLIN)];
        if nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO) == Ok(1) {
            let _ = self.ready.read();
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_is_withdrawn_is_not_counted() {
        let queue = EventQueue::new().unwrap();
        for event in [1, 2, 3] {
            queue.push(event);
        }
        queue.retain(|event| *event == 2);
        assert_eq!(queue.pop(), Ok(2));
        let mut poll = [nix::poll::PollFd::new(queue.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO), Ok(0));
    }

    /// A waiter may take the count of an event at the moment when that is withdrawn.
    #[test]
    fn withdrawing_never_waits() {
        const LAST: u32 = u32::MAX;
        let queue = Arc::new(EventQueue::new().unwrap());
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                std::thread::spawn(move || while queue.pop() != Ok(LAST) {})
            })
            .collect();
        for event in 0..20_000 {
            queue.push(event);
            queue.retain(|event| *event == LAST);
        }
        waiters.iter().for_each(|_| queue.push(LAST));
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    }
}
