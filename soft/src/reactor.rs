//! The process's one thread: waits for sockets and for time, and calls whom it concerns.
//!
//! Started by the first user, with all signals blocked. Every descriptor is close-on-exec. After a fork the child has no
//! thread, and everything here answers ENODEV there.

use crate::descriptors::{self, Tracked};
use crate::uncancelled;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use once_cell::sync::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Who is called when a descriptor is ready; on the thread, with no lock held. May register, drop and start timers.
pub(crate) trait Source: Send + Sync {
    fn ready(&self, events: EpollFlags);
}

/// A descriptor that is waited for, as long as this lives. Level-triggered.
///
/// A call that has begun when this is dropped may still run.
pub(crate) struct Registration {
    fd: RawFd,
    token: u64,
}

impl Registration {
    /// Waits for other events from now on.
    pub(crate) fn modify(&self, events: EpollFlags) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: events.bits() as u32, u64: self.token };
        control(libc::EPOLL_CTL_MOD, self.fd, &mut event)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let _ = control(libc::EPOLL_CTL_DEL, self.fd, &mut event);
        if let Ok(reactor) = reactor() {
            reactor.waiting().sources.remove(&self.token);
        }
    }
}

/// Calls `source` whenever one of `events` is there. The descriptor must stay open while the registration lives.
pub(crate) fn register(fd: BorrowedFd<'_>, events: EpollFlags, source: Arc<dyn Source>) -> Result<Registration, Errno> {
    let reactor = reactor()?;
    let token = {
        let mut waiting = reactor.waiting();
        let token = waiting.next_token();
        waiting.sources.insert(token, source);
        token
    };
    let mut event = libc::epoll_event { events: events.bits() as u32, u64: token };
    if let Err(error) = control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) {
        reactor.waiting().sources.remove(&token);
        return Err(error);
    }
    Ok(Registration { fd: fd.as_raw_fd(), token })
}

/// A call that will come, unless this is dropped before.
pub(crate) struct Timer {
    at: Instant,
    token: u64,
}

impl Drop for Timer {
    fn drop(&mut self) {
        // What the call holds is dropped with no lock held.
        let _call = reactor().ok().and_then(|reactor| reactor.waiting().timers.remove(&(self.at, self.token)));
    }
}

/// Calls `then` once, on the thread, no earlier than after `delay`.
pub(crate) fn after(delay: Duration, then: impl FnOnce() + Send + 'static) -> Result<Timer, Errno> {
    let reactor = reactor()?;
    // A delay of ages is as good as a year.
    let at = Instant::now() + delay.min(Duration::from_secs(365 * 24 * 3600));
    let mut waiting = reactor.waiting();
    let token = waiting.next_token();
    waiting.timers.insert((at, token), Box::new(then));
    let wake = waiting.wakes_at.is_none_or(|wakes_at| at < wakes_at);
    drop(waiting);
    if wake {
        let _ = reactor.wake.write(1);
    }
    Ok(Timer { at, token })
}

/// Locks what a fork must not copy in the middle of a change. Before the list of descriptors.
pub(crate) fn hold() -> Option<uncancelled::Guard<'static, Waiting>> {
    REACTOR.get().map(Reactor::waiting)
}

struct Reactor {
    epoll: Tracked<Epoll2>,
    /// Written when a timer comes before everything that the thread knows of.
    wake: Tracked<EventFd>,
    waiting: Mutex<Waiting>,
}

/// nix's epoll gives its descriptor away only as a field.
struct Epoll2(Epoll);

impl AsRawFd for Epoll2 {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

#[derive(Default)]
pub(crate) struct Waiting {
    last_token: u64,
    sources: HashMap<u64, Arc<dyn Source>>,
    timers: BTreeMap<(Instant, u64), Box<dyn FnOnce() + Send>>,
    /// When the thread looks at the timers next at the latest; `None` if nothing but a descriptor wakes it.
    wakes_at: Option<Instant>,
}

impl Waiting {
    /// Never 0, which is the token of `wake`; never used again.
    fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }
}

static REACTOR: OnceCell<Reactor> = OnceCell::new();

fn reactor() -> Result<&'static Reactor, Errno> {
    if descriptors::in_child() {
        return Err(Errno::ENODEV);
    }
    REACTOR.get_or_try_init(Reactor::start)
}

fn control(operation: i32, fd: RawFd, event: &mut libc::epoll_event) -> Result<(), Errno> {
    let reactor = reactor()?;
    // SAFETY: two descriptors and an event; the kernel checks the descriptors.
    Errno::result(unsafe { libc::epoll_ctl(reactor.epoll.as_raw_fd(), operation, fd, event) }).map(drop)
}

impl Reactor {
    fn start() -> Result<Reactor, Errno> {
        let epoll = Tracked::open(|| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Epoll2))?;
        let wake = Tracked::open(|| EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK))?;
        epoll.0.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        // The thread inherits the mask: signals are the program's.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = std::thread::Builder::new().name("rdma-soft".into()).spawn(|| REACTOR.wait().run());
        before.thread_set_mask()?;
        thread.map_err(|_| Errno::EAGAIN)?;
        Ok(Reactor { epoll, wake, waiting: Mutex::default() })
    }

    fn waiting(&self) -> uncancelled::Guard<'_, Waiting> {
        uncancelled::lock(&self.waiting)
    }

    fn run(&self) {
        ask_for_short_slices();
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let timeout = self.next_timeout();
            let count = match self.epoll.0.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                // The descriptor is gone: somebody closes what is not his. There is nothing left to wait for.
                Err(_) => return,
            };
            for event in &events[..count] {
                if event.data() == 0 {
                    let _ = self.wake.read();
                    continue;
                }
                let source = self.waiting().sources.get(&event.data()).cloned();
                if let Some(source) = source {
                    source.ready(event.events());
                }
            }
            self.expire();
        }
    }

    /// Until the next timer, in milliseconds, rounded up.
    fn next_timeout(&self) -> EpollTimeout {
        let mut waiting = self.waiting();
        waiting.wakes_at = waiting.timers.first_key_value().map(|((at, _), _)| *at);
        match waiting.wakes_at {
            None => EpollTimeout::NONE,
            Some(at) => {
                let micros = at.saturating_duration_since(Instant::now()).as_micros();
                EpollTimeout::try_from(micros.div_ceil(1000).min(60_000) as u32).unwrap_or(EpollTimeout::ZERO)
            }
        }
    }

    fn expire(&self) {
        let now = Instant::now();
        loop {
            let mut waiting = self.waiting();
            // What is started from now on is looked at before the next wait.
            waiting.wakes_at = Some(now);
            let Some(entry) = waiting.timers.first_entry().filter(|entry| entry.key().0 <= now) else { return };
            let call = entry.remove();
            drop(waiting);
            call();
        }
    }
}

/// Programs that wait for their memory to change never sleep, and the kernel lets the thread in between only where its
/// turns are shorter than theirs (Linux 6.12, sched_setattr(2); before, it means nothing).
fn ask_for_short_slices() {
    // SAFETY: all zeros is a value of it.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr);
    // SAFETY: the calling thread, and room for as many bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attr, size, 0) };
    // Others have been given their place by somebody who knows.
    if got == 0 && attr.sched_policy == libc::SCHED_OTHER as u32 {
        attr.sched_runtime = 100_000;
        // SAFETY: the calling thread, and attributes that the kernel has given, but for one.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attr, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Sender(mpsc::Sender<EpollFlags>);
    impl Source for Sender {
        fn ready(&self, events: EpollFlags) {
            let _ = self.0.send(events);
        }
    }

    #[test]
    fn timers_come_in_order_and_not_when_dropped() {
        let (sender, receiver) = mpsc::channel();
        let start = |delay, name| {
            let sender = sender.clone();
            after(Duration::from_millis(delay), move || sender.send((name, Instant::now())).unwrap()).unwrap()
        };
        let begin = Instant::now();
        let _late = start(60, "late");
        let _early = start(20, "early");
        drop(start(30, "dropped"));
        let first = receiver.recv().unwrap();
        assert_eq!(first.0, "early");
        assert!(first.1 - begin >= Duration::from_millis(20));
        let second = receiver.recv().unwrap();
        assert_eq!(second.0, "late");
        assert!(second.1 - begin >= Duration::from_millis(60));
    }

    #[test]
    fn a_source_is_called_while_it_is_registered() {
        let (sender, receiver) = mpsc::channel();
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
        let registration =
            register(std::os::fd::AsFd::as_fd(&event), EpollFlags::empty(), Arc::new(Sender(sender))).unwrap();
        event.write(1).unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        registration.modify(EpollFlags::EPOLLIN).unwrap();
        assert_eq!(receiver.recv().unwrap(), EpollFlags::EPOLLIN);
        registration.modify(EpollFlags::empty()).unwrap();
        drop(registration);
        // A call that had begun may still run.
        while receiver.recv_timeout(Duration::from_millis(50)).is_ok() {}
        event.write(1).unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
    }
}
