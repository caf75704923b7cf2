//! Completion queues.

use super::{AsyncEvent, AsyncEvents, Channel, Cookie, limit};
use nix::errno::Errno;
use rdma_sys::{ibv_event_type, ibv_wc, ibv_wc_status};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Completion queues, of all the process, whose next completion makes an event: programs that wait.
static ARMED: AtomicUsize = AtomicUsize::new(0);

/// Whether some program waits for an event of a completion queue.
pub(super) fn any_armed() -> bool {
    ARMED.load(Ordering::SeqCst) > 0
}

/// A completion queue.
pub(crate) struct Cq {
    ring: Mutex<Ring>,
    /// What a poll would find, an overrun included; read without the lock.
    found: AtomicUsize,
    channel: Option<Arc<Channel>>,
    events: Arc<AsyncEvents>,
    cookie: Cookie,
    /// Queues of queue pairs.
    pub(super) users: AtomicU32,
}

struct Ring {
    entries: VecDeque<ibv_wc>,
    capacity: usize,
    armed: Armed,
    overrun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What has happened to completion queues while the engine was locked.
#[derive(Default)]
pub(super) struct News {
    /// One has overrun, and its queue pairs do not know yet.
    pub(super) overrun: bool,
    /// Completions that a program waits for.
    events: Vec<(Arc<Channel>, Cookie)>,
}

impl News {
    /// Wakes the programs. They may end at once: what they have received must be acknowledged.
    pub(super) fn tell(&mut self) {
        for (channel, cookie) in self.events.drain(..) {
            channel.push(cookie);
        }
    }
}

impl Cq {
    pub(super) fn new(
        cqe: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<AsyncEvents>,
        cookie: Cookie,
    ) -> Result<Cq, Errno> {
        let ring = Ring { entries: VecDeque::new(), capacity: checked(cqe)?, armed: Armed::No, overrun: false };
        let (found, users) = (AtomicUsize::new(0), AtomicU32::new(0));
        Ok(Cq { ring: Mutex::new(ring), found, channel, events, cookie, users })
    }

    /// Completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring().capacity as u32
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn resize(&self, cqe: u32) -> Result<(), Errno> {
        let capacity = checked(cqe)?;
        let mut ring = self.ring();
        if ring.entries.len() > capacity {
            return Err(Errno::EINVAL);
        }
        ring.capacity = capacity;
        Ok(())
    }

    /// Nothing of it will be seen any more.
    pub(super) fn withdraw(&self) {
        self.set_armed(&mut self.ring(), Armed::No);
        if let Some(channel) = &self.channel {
            channel.retain(|cookie| *cookie != self.cookie);
        }
        self.events.retain(|event| event.kind != ibv_event_type::IBV_EVENT_CQ_ERR || event.element != self.cookie);
    }

    pub(super) fn push(&self, wc: ibv_wc, solicited: bool, news: &mut News) {
        let mut ring = self.ring();
        if ring.overrun {
            // Said already.
            return;
        }
        let urgent = solicited || wc.status != ibv_wc_status::IBV_WC_SUCCESS;
        let fits = ring.entries.len() < ring.capacity;
        if fits {
            ring.entries.push_back(wc);
        } else {
            ring.overrun = true;
            news.overrun = true;
            self.events.push(AsyncEvent { kind: ibv_event_type::IBV_EVENT_CQ_ERR, element: self.cookie });
        }
        self.found.store(ring.found(), Ordering::Release);
        if ring.armed == Armed::Any || ring.armed == Armed::Solicited && (urgent || !fits) {
            self.set_armed(&mut ring, Armed::No);
            if let Some(channel) = &self.channel {
                news.events.push((channel.clone(), self.cookie));
            }
        }
    }

    /// Takes the oldest completions. `Err` where there is nothing left but the news of an overrun.
    pub(super) fn take(&self, to: &mut [MaybeUninit<ibv_wc>]) -> Result<usize, Errno> {
        if self.found.load(Ordering::Acquire) == 0 || to.is_empty() {
            return Ok(0);
        }
        let mut ring = self.ring();
        let count = to.len().min(ring.entries.len());
        if count == 0 && ring.overrun {
            return Err(Errno::EIO);
        }
        for (to, wc) in to.iter_mut().zip(ring.entries.drain(..count)) {
            to.write(wc);
        }
        self.found.store(ring.found(), Ordering::Release);
        Ok(count)
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.ring().overrun
    }

    /// Takes away what a queue pair has left here.
    pub(super) fn forget(&self, qp_num: u32) {
        let mut ring = self.ring();
        ring.entries.retain(|wc| wc.qp_num != qp_num);
        self.found.store(ring.found(), Ordering::Release);
    }

    /// A queue without a channel is never armed: there is nobody to tell.
    pub(super) fn arm(&self, solicited_only: bool) {
        if self.channel.is_some() {
            let mut ring = self.ring();
            let armed = if solicited_only && ring.armed != Armed::Any { Armed::Solicited } else { Armed::Any };
            self.set_armed(&mut ring, armed);
        }
    }

    fn set_armed(&self, ring: &mut Ring, armed: Armed) {
        match (ring.armed, armed) {
            (Armed::No, Armed::No) => {}
            (Armed::No, _) => drop(ARMED.fetch_add(1, Ordering::SeqCst)),
            (_, Armed::No) => drop(ARMED.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        ring.armed = armed;
    }
}

impl Ring {
    fn found(&self) -> usize {
        self.entries.len() + usize::from(self.overrun)
    }
}

fn checked(cqe: u32) -> Result<usize, Errno> {
    if (1..=limit::MAX_CQE).contains(&cqe) { Ok(cqe as usize) } else { Err(Errno::EINVAL) }
}
