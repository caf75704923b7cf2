//! Events that a program waits for through a descriptor: a queue, and an eventfd that is readable while there is one.
//!
//! Completion channels, asynchronous events and the event channels of connection management are all of this kind.

use crate::descriptors::Tracked;
use crate::uncancelled;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Mutex;

pub(crate) struct EventQueue<T> {
    /// Counts the events; each read takes one. Written, and read without waiting, with the lock of the events held: it is
    /// never readable where there is no event and nobody about to look for one.
    ready: Tracked<EventFd>,
    events: Mutex<Events<T>>,
}

/// As many as are counted, and as have been taken off the counter by those who look next, less those taken in vain.
struct Events<T> {
    queue: VecDeque<T>,
    taken_in_vain: usize,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        let ready = Tracked::open(|| EventFd::from_value_and_flags(0, flags))?;
        Ok(EventQueue { ready, events: Mutex::new(Events { queue: VecDeque::new(), taken_in_vain: 0 }) })
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = self.events();
        events.queue.push_back(event);
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
            if events.taken_in_vain > 0 {
                // The count was that of an event which has been withdrawn; those in the queue have counts of their own.
                events.taken_in_vain -= 1;
            } else if let Some(event) = events.queue.pop_front() {
                note(&event);
                return Ok(event);
            }
        }
    }

    /// Withdraws the events of an object that goes away.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut events = self.events();
        let before = events.queue.len();
        events.queue.retain(keep);
        for _ in events.queue.len()..before {
            if !self.uncount() {
                events.taken_in_vain += 1;
            }
        }
    }

    /// Takes one off the counter, and never waits for it: a waiter may have taken the count already, even at this moment.
    /// Whether there was one.
    fn uncount(&self) -> bool {
        let mut count = [0; size_of::<u64>()];
        let to = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: a descriptor, and room for what a read of it brings; it has no position, which -1 says.
        let read = Errno::result(unsafe { libc::preadv2(self.fd(), &to, 1, -1, libc::RWF_NOWAIT) });
        match read {
            Ok(_) => return true,
            Err(Errno::EAGAIN) => return false,
            // A kernel before 5.8, or a container that may not.
            Err(_) => {}
        }
        // What remains is a moment between these two.
        let mut poll = [nix::poll::PollFd::new(self.ready.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO) == Ok(1) && self.ready.read().is_ok()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }

    fn events(&self) -> uncancelled::Guard<'_, Events<T>> {
        uncancelled::lock(&self.events)
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
    use nix::poll::{PollFd, PollFlags, PollTimeout};
    use std::sync::atomic::{AtomicBool, Ordering};

    const ROUNDS: u32 = 50_000;
    const LAST: u32 = u32::MAX;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut poll = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut poll, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn what_is_withdrawn_while_others_push_leaves_nothing_to_read() {
        let queue = EventQueue::new().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..ROUNDS).for_each(|event| queue.push(event));
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                queue.retain(|_| false);
            }
        });
        queue.retain(|_| false);
        assert!(!readable(&queue));
    }

    #[test]
    fn withdrawing_does_not_wait_for_what_a_waiter_has_taken() {
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| while queue.pop().unwrap() != LAST {});
            for event in 0..ROUNDS {
                queue.push(event);
                queue.retain(|event| *event == LAST);
            }
            queue.push(LAST);
        });
        assert!(!readable(&queue));
    }
}
