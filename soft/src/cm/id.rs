//! Communication identifiers: what a program holds, and what stands behind it.

use super::channel::{self, Channel, Notice, Params, Queue};
use super::connect::Attempt;
use super::connection::{Connection, State as Phase};
use super::device::{self, Device};
use super::link::Link;
use super::listen;
use super::port::Port;
use crate::addresses;
use crate::engine;
use crate::reactor::{self, Timer};
use crate::uncancelled;
use libc::sockaddr_storage;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type::{self as event, Type as EventKind};
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type, ibv_sa_path_rec,
    ibv_srq, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_port_space,
};
use socket2::SockAddr;
use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What a program holds as `struct rdma_cm_id *`.
#[repr(C)]
pub(super) struct Id {
    public: rdma_cm_id,
    core: Arc<Core>,
    /// rdma_create_ep(3): what queue pairs of requests are made with.
    qp_init_attr: Option<Box<ibv_qp_init_attr>>,
    /// rdma_resolve_addrinfo(3): found, and not fetched yet.
    resolved: *mut rdma_addrinfo,
}

/// An identifier, where the sockets and their callbacks know it.
pub(super) struct Core {
    /// The program's object; NULL before there is one.
    pub(super) handle: AtomicPtr<Id>,
    state: Mutex<State>,
    acknowledged: Condvar,
}

/// How far an identifier has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Connecting,
    Disconnected,
    Listening,
    Destroyed,
}

/// rdma_set_option(3).
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse_address: bool,
    pub(super) only_v6: bool,
    pub(super) ack_timeout: Option<u8>,
}

pub(super) struct State {
    pub(super) stage: Stage,
    /// None while nobody has fetched the request that the identifier stands for.
    pub(super) queue: Option<Arc<Queue>>,
    /// The channel is the identifier's own, and calls wait for their events.
    pub(super) synchronous: bool,
    pub(super) options: Options,
    pub(super) port_space: rdma_port_space::Type,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    pub(super) port: Option<Port>,
    pub(super) attempt: Option<Attempt>,
    pub(super) link: Option<Link>,
    pub(super) connection: Connection,
    /// A connection was asked for, and the program has not said anything to that.
    pub(super) unanswered: bool,
    /// Requests that may wait to be fetched, and those that do.
    pub(super) backlog: usize,
    pub(super) waiting: usize,
    /// What rdma_accept(3) makes of "as many as the peer asks for".
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// rdma_create_ep(3): goes in front of the private data of the next request.
    pub(super) connect_data: Vec<u8>,
    pub(super) connect_error: bool,
    pub(super) resolving: bool,
    timer: Option<(u64, Timer)>,
    timers: u64,
    /// Events that are neither acknowledged nor withdrawn, and how many were acknowledged ever.
    pending: u64,
    acknowledged: u64,
    /// What goes away with the lock: a registration may wait for its callback, which may wait for the lock.
    garbage: Vec<Box<dyn Any + Send>>,
}

/// The state, locked.
pub(super) struct Guard<'a> {
    /// Taken by drop only.
    state: Option<uncancelled::Guard<'a, State>>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().expect("taken by drop only")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("taken by drop only")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let garbage = std::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
    }
}

impl Core {
    pub(super) fn new(port_space: rdma_port_space::Type, queue: Option<Arc<Queue>>) -> Arc<Core> {
        Arc::new(Core {
            handle: AtomicPtr::new(ptr::null_mut()),
            state: Mutex::new(State {
                stage: Stage::Idle,
                queue,
                synchronous: false,
                options: Options::default(),
                port_space,
                source: None,
                destination: None,
                port: None,
                attempt: None,
                link: None,
                connection: Connection::default(),
                unanswered: false,
                backlog: 0,
                waiting: 0,
                responder_resources: 0,
                initiator_depth: 0,
                connect_data: Vec::new(),
                connect_error: false,
                resolving: false,
                timer: None,
                timers: 0,
                pending: 0,
                acknowledged: 0,
                garbage: Vec::new(),
            }),
            acknowledged: Condvar::new(),
        })
    }

    pub(super) fn lock(&self) -> Guard<'_> {
        Guard { state: Some(uncancelled::lock(&self.state)) }
    }

    pub(super) fn acknowledge(&self) {
        let mut state = self.lock();
        state.pending -= 1;
        state.acknowledged += 1;
        self.acknowledged.notify_all();
    }

    /// Waits until `done`, which acknowledgements bring about.
    fn wait(&self, done: impl Fn(&State) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !done(&state) {
            state = self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The end, as the peer sees it: says the last word and lets go of all sockets. Nothing happens to the identifier
    /// from then on.
    pub(super) fn abandon(self: &Arc<Core>) {
        let mut state = self.lock();
        if let Some(message) = state.connection.abandon() {
            state.say(message);
        }
        state.stage = Stage::Destroyed;
        state.close();
        state.attempt = None;
        state.stop_timer();
        let port = state.port.take();
        state.discard(port);
        let withdrawn = state.withdraw(self);
        drop(state);
        listen::stop(self);
        for notice in withdrawn {
            if let Some(request) = notice.request {
                request.abandon();
            }
        }
    }
}

impl State {
    /// Keeps `thing` until the lock is released.
    pub(super) fn discard(&mut self, thing: impl Any + Send) {
        self.garbage.push(Box::new(thing));
    }

    /// Takes the identifier's events out of the queue.
    fn withdraw(&mut self, core: &Arc<Core>) -> Vec<Notice> {
        let mut withdrawn = Vec::new();
        let Some(queue) = &self.queue else { return withdrawn };
        queue.retain(|notice| {
            let other = !Arc::ptr_eq(&notice.id, core);
            if !other {
                withdrawn.push(notice.clone());
            }
            other
        });
        self.pending -= withdrawn.len() as u64;
        withdrawn
    }

    pub(super) fn close(&mut self) {
        let link = self.link.take();
        self.discard(link);
    }

    /// Sends a message on the stream, if there is one. Where that fails the stream has ended, which is heard of there.
    pub(super) fn say(&mut self, message: rdma_verbs_wire::cm::Message) {
        let mad = self.connection.mad(message);
        if let Some(link) = &mut self.link {
            link.send(&mad);
        }
    }

    /// Tells the program. Not of a request that it has not accepted, nor of anything after the end.
    pub(super) fn notify(&mut self, core: &Arc<Core>, kind: EventKind, status: c_int, params: Params) {
        let Some(queue) = self.queue.as_ref().filter(|_| self.stage != Stage::Destroyed && !self.unanswered) else {
            return;
        };
        self.pending += 1;
        queue.push(Notice { id: Arc::clone(core), kind, status, params, request: None });
    }

    /// Tells the program of a connection that is asked for. `false` where too many wait already.
    pub(super) fn notify_request(&mut self, core: &Arc<Core>, params: Params, request: Arc<Core>) -> bool {
        let room = self.stage == Stage::Listening && self.waiting < self.backlog;
        let Some(queue) = self.queue.as_ref().filter(|_| room) else { return false };
        self.waiting += 1;
        self.pending += 1;
        let kind = event::RDMA_CM_EVENT_CONNECT_REQUEST;
        queue.push(Notice { id: Arc::clone(core), kind, status: 0, params, request: Some(request) });
        true
    }

    /// What the state machine has made of a message or of the stream's end.
    pub(super) fn happened(&mut self, core: &Arc<Core>, what: (EventKind, c_int, Params)) {
        let (kind, status, params) = what;
        if kind == event::RDMA_CM_EVENT_DISCONNECTED {
            if self.stage != Stage::Connecting {
                return;
            }
            self.stage = Stage::Disconnected;
        }
        self.notify(core, kind, status, params);
        if self.connection.state() == Phase::Timewait {
            self.wait_out(core);
        }
    }

    /// `RDMA_CM_EVENT_TIMEWAIT_EXIT` in its time.
    pub(super) fn wait_out(&mut self, core: &Arc<Core>) {
        let delay = self.connection.timewait();
        self.start_timer(core, delay, |core, state| {
            state.notify(core, event::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Params::default());
        });
    }

    /// Calls `then` after `delay`, unless the timer is stopped or started anew before.
    pub(super) fn start_timer(
        &mut self,
        core: &Arc<Core>,
        delay: Duration,
        then: impl FnOnce(&Arc<Core>, &mut State) + Send + 'static,
    ) {
        self.stop_timer();
        self.timers += 1;
        let number = self.timers;
        let core: Weak<Core> = Arc::downgrade(core);
        let timer = reactor::after(delay, move || {
            let Some(core) = core.upgrade() else { return };
            let mut state = core.lock();
            if state.timer.as_ref().is_some_and(|(current, _)| *current == number) {
                state.stop_timer();
                then(&core, &mut state);
            }
        });
        // Without the thread no socket works either.
        self.timer = timer.ok().map(|timer| (number, timer));
    }

    pub(super) fn stop_timer(&mut self) {
        let timer = self.timer.take();
        self.discard(timer.map(|(_, timer)| timer));
    }
}

/// The addresses of all identifiers that programs have. The kernel has such a table, too, and so librdmacm answers
/// instead of crashing where a program goes on with an identifier that it has destroyed, as perftest does.
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn live() -> uncancelled::Guard<'static, BTreeSet<usize>> {
    uncancelled::lock(&LIVE)
}

/// A program's identifier that is valid while the call lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct IdRef(NonNull<Id>);

macro_rules! fields {
    ($($field:ident, $set:ident: $type:ty;)*) => {
        impl IdRef {
            $(
                pub(super) fn $field(self) -> $type {
                    // SAFETY: a valid object, by `new`.
                    unsafe { (*self.0.as_ptr()).public.$field }
                }

                pub(super) fn $set(self, value: $type) {
                    // SAFETY: a valid object, by `new`; what other threads do to it meanwhile is the program's affair.
                    unsafe { (*self.0.as_ptr()).public.$field = value };
                }
            )*
        }
    };
}

fields! {
    verbs, set_verbs: *mut ibv_context;
    channel, set_channel: *mut rdma_event_channel;
    context, set_context: *mut c_void;
    qp, set_qp: *mut ibv_qp;
    ps, set_ps: rdma_port_space::Type;
    port_num, set_port_num: u8;
    event, set_event: *mut rdma_cm_event;
    send_cq_channel, set_send_cq_channel: *mut ibv_comp_channel;
    send_cq, set_send_cq: *mut ibv_cq;
    recv_cq_channel, set_recv_cq_channel: *mut ibv_comp_channel;
    recv_cq, set_recv_cq: *mut ibv_cq;
    srq, set_srq: *mut ibv_srq;
    pd, set_pd: *mut ibv_pd;
    qp_type, set_qp_type: ibv_qp_type::Type;
}

impl IdRef {
    /// # Safety
    /// * `id` is NULL or came from this library, and lives while the result is used.
    pub(super) unsafe fn new(id: *mut rdma_cm_id) -> Option<IdRef> {
        NonNull::new(id.cast::<Id>()).map(IdRef)
    }

    /// `None` for NULL, and for what is no identifier or no longer one.
    pub(super) fn find(id: *mut rdma_cm_id) -> Option<IdRef> {
        NonNull::new(id.cast::<Id>()).filter(|id| live().contains(&id.addr().get())).map(IdRef)
    }

    pub(super) fn as_ptr(self) -> *mut rdma_cm_id {
        self.0.cast().as_ptr()
    }

    pub(super) fn core(self) -> Arc<Core> {
        // SAFETY: a valid object, by `new`; the field is never written again.
        let core = unsafe { &(*self.0.as_ptr()).core };
        Arc::clone(core)
    }

    pub(super) fn qp_init_attr(self) -> Option<ibv_qp_init_attr> {
        // SAFETY: a valid object, by `new`; written before the program has it.
        let attr = unsafe { &(*self.0.as_ptr()).qp_init_attr };
        attr.as_deref().copied()
    }

    pub(super) fn set_qp_init_attr(self, attr: ibv_qp_init_attr) {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).qp_init_attr = Some(Box::new(attr)) };
    }

    /// Swaps in what rdma_resolve_addrinfo(3) has found.
    pub(super) fn replace_resolved(self, found: *mut rdma_addrinfo) -> *mut rdma_addrinfo {
        // SAFETY: a valid object, by `new`; the caller holds the lock of `core`.
        let resolved = unsafe { &mut (*self.0.as_ptr()).resolved };
        std::mem::replace(resolved, found)
    }

    /// The next event of the identifier's channel.
    pub(super) fn next_event(self) -> Result<NonNull<rdma_cm_event>, Errno> {
        let queue = self.core().lock().queue.clone();
        channel::next(&*queue.ok_or(Errno::EINVAL)?)
    }

    /// Binds the identifier to the device.
    pub(super) fn show_device(self) -> Result<&'static Device, Errno> {
        let device = device::get()?;
        if self.verbs().is_null() {
            self.set_verbs(device.context);
            self.set_pd(device.pd);
            self.set_port_num(device::PORT);
        }
        Ok(device)
    }

    fn show_source(self, source: SocketAddr) {
        // SAFETY: a valid object, by `new`.
        let to = unsafe { &raw mut (*self.0.as_ptr()).public.route.addr.src_addr_union.src_storage };
        // SAFETY: room for an address of any family.
        unsafe { write_address(to, source) };
    }

    pub(super) fn show_destination(self, destination: SocketAddr) {
        // SAFETY: a valid object, by `new`.
        let to = unsafe { &raw mut (*self.0.as_ptr()).public.route.addr.dst_addr_union.dst_storage };
        // SAFETY: room for an address of any family.
        unsafe { write_address(to, destination) };
    }

    /// Fills in the addresses as far as they are known, and the device that goes with them.
    pub(super) fn show_addresses(self) -> Result<(), Errno> {
        let core = self.core();
        let (source, destination) = {
            let state = core.lock();
            (state.source, state.destination)
        };
        if let Some(destination) = destination {
            self.show_destination(destination);
        }
        let Some(source) = source else { return Ok(()) };
        self.show_source(source);
        // An identifier that listens everywhere is on no device.
        if source.ip().is_unspecified() {
            return Ok(());
        }
        self.show_device()?;
        // SAFETY: a valid object, by `new`.
        let to = unsafe { &raw mut (*self.0.as_ptr()).public.route.addr.addr.ibaddr };
        let gid = |address: Option<SocketAddr>| ibv_gid { raw: address.map_or([0; 16], |a| addresses::gid(a.ip())) };
        // An Ethernet interface has no P_Key in its address.
        let ib = rdma_sys::rdma_ib_addr { sgid: gid(Some(source)), dgid: gid(destination), pkey: 0 };
        // SAFETY: a field of a valid object.
        unsafe { to.write(ib) };
        Ok(())
    }

    /// Fills in the one path that there is.
    pub(super) fn show_path(self) -> Result<(), Errno> {
        let device = self.show_device()?;
        let (source, destination, options) = {
            let core = self.core();
            let state = core.lock();
            (state.source, state.destination, state.options)
        };
        let (Some(source), Some(destination)) = (source, destination) else { return Err(Errno::EINVAL) };
        let path = device.path(addresses::gid(source.ip()), addresses::gid(destination.ip()), &options);
        // SAFETY: one object of this size, which `free` takes back.
        let room = unsafe { libc::calloc(1, size_of::<ibv_sa_path_rec>()) }.cast::<ibv_sa_path_rec>();
        if room.is_null() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: just allocated.
        unsafe { room.write(path) };
        self.forget_path();
        // SAFETY: a valid object, by `new`.
        let route = unsafe { &mut (*self.0.as_ptr()).public.route };
        route.path_rec = room;
        route.num_paths = 1;
        Ok(())
    }

    fn forget_path(self) {
        // SAFETY: a valid object, by `new`.
        let route = unsafe { &mut (*self.0.as_ptr()).public.route };
        route.num_paths = 0;
        let path = std::mem::replace(&mut route.path_rec, ptr::null_mut());
        // SAFETY: from `calloc`, or NULL.
        unsafe { libc::free(path.cast()) };
    }

    /// Takes back the last event of a synchronous identifier.
    pub(super) fn acknowledge_event(self) {
        let event = self.event();
        self.set_event(ptr::null_mut());
        if let Some(event) = NonNull::new(event) {
            // SAFETY: it came from `channel::next`, and the program's part in it ends here.
            unsafe { channel::acknowledge(event) };
        }
    }

    /// A synchronous identifier waits for what the call has begun; the event stays in `id->event`. Any other may be gone
    /// by now: the thread that gets its events may have destroyed it. So `core` is that of `self`, taken before.
    pub(super) fn complete(self, core: &Core) -> Result<(), Errno> {
        if !core.lock().synchronous {
            return Ok(());
        }
        self.acknowledge_event();
        let event = self.next_event()?;
        self.set_event(event.as_ptr());
        event_outcome(event)
    }
}

/// What the status of an event means to a call that waited for it.
pub(super) fn event_outcome(event: NonNull<rdma_cm_event>) -> Result<(), Errno> {
    // SAFETY: a valid object, from `channel::next`.
    let kind = unsafe { (*event.as_ptr()).event };
    // SAFETY: as above.
    let status = unsafe { (*event.as_ptr()).status };
    match status {
        0 => Ok(()),
        _ if kind == event::RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
        status => Err(Errno::from_raw(status.saturating_abs())),
    }
}

/// # Safety
/// * `to` is room for an address.
unsafe fn write_address(to: *mut sockaddr_storage, address: SocketAddr) {
    let address = SockAddr::from(address);
    // SAFETY: no longer than the room, which no `SockAddr` exceeds.
    unsafe { ptr::copy_nonoverlapping(address.as_ptr().cast::<u8>(), to.cast(), address.len() as usize) };
}

impl Id {
    fn allocate(core: Arc<Core>, channel: *mut rdma_event_channel) -> IdRef {
        // SAFETY: numbers and pointers, for all of which zero is a value.
        let public: rdma_cm_id = unsafe { std::mem::zeroed() };
        let id = Box::new(Id { public, core: Arc::clone(&core), qp_init_attr: None, resolved: ptr::null_mut() });
        let id = IdRef(NonNull::from(Box::leak(id)));
        id.set_channel(channel);
        core.handle.store(id.0.as_ptr(), Ordering::Release);
        live().insert(id.0.addr().get());
        id
    }

    /// rdma_create_id(3); EINVAL for a port space that there is none of, EOPNOTSUPP for one without connections.
    ///
    /// # Safety
    /// * `channel` is NULL or a valid object.
    pub(super) unsafe fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space::Type,
        qp_type: ibv_qp_type::Type,
    ) -> Result<IdRef, Errno> {
        engine::get()?;
        match ps {
            rdma_port_space::RDMA_PS_TCP | rdma_port_space::RDMA_PS_IB => {}
            rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        }
        if qp_type != ibv_qp_type::IBV_QPT_RC {
            return Err(Errno::EOPNOTSUPP);
        }
        let synchronous = channel.is_null();
        let channel = match NonNull::new(channel) {
            Some(channel) => channel,
            None => Channel::create()?,
        };
        // SAFETY: a valid object, by the caller's promise or just made.
        let queue = unsafe { Channel::queue(channel) };
        let core = Core::new(ps, Some(queue));
        core.lock().synchronous = synchronous;
        let id = Id::allocate(core, channel.as_ptr());
        id.set_context(context);
        id.set_ps(ps);
        id.set_qp_type(qp_type);
        Ok(id)
    }

    /// The identifier of a connection that `listener` is asked for. Where it cannot be made the peer is told so.
    pub(super) fn requested(listener: IdRef, core: Arc<Core>) -> Option<IdRef> {
        let (synchronous, queue) = {
            let listener = listener.core();
            let mut state = listener.lock();
            state.waiting -= 1;
            (state.synchronous, state.queue.clone())
        };
        let own = match synchronous.then(Channel::create).transpose() {
            Ok(own) => own,
            Err(_) => {
                core.abandon();
                return None;
            }
        };
        let id = {
            let mut state = core.lock();
            state.synchronous = synchronous;
            state.queue = match own {
                // SAFETY: just made.
                Some(channel) => Some(unsafe { Channel::queue(channel) }),
                None => queue,
            };
            Id::allocate(Arc::clone(&core), own.map_or(listener.channel(), NonNull::as_ptr))
        };
        id.set_context(listener.context());
        id.set_ps(listener.ps());
        id.set_qp_type(listener.qp_type());
        if id.show_addresses().and_then(|()| id.show_path()).is_ok() {
            return Some(id);
        }
        // It fails only where the device is gone, as after a fork.
        // SAFETY: made here, and nobody else's.
        let _ = unsafe { Id::destroy(id) };
        None
    }

    /// rdma_destroy_id(3): waits until the program has acknowledged what it knows of the identifier. EINVAL where
    /// another thread destroys it already.
    ///
    /// # Safety
    /// * The program does not use the identifier any more, but for acknowledging its events.
    pub(super) unsafe fn destroy(id: IdRef) -> Result<(), Errno> {
        engine::get()?;
        if !live().remove(&id.0.addr().get()) {
            return Err(Errno::EINVAL);
        }
        let core = id.core();
        core.abandon();
        id.acknowledge_event();
        core.wait(|state| state.pending == 0);
        id.forget_path();
        let resolved = id.replace_resolved(ptr::null_mut());
        // SAFETY: from `addrinfo::get`, or NULL.
        unsafe { super::addrinfo::free(resolved) };
        if core.lock().synchronous
            && let Some(channel) = NonNull::new(id.channel())
        {
            // SAFETY: the identifier's own, from `Channel::create`.
            unsafe { Channel::destroy(channel) };
        }
        // SAFETY: leaked by `allocate`; no event refers to it, and the program does not use it.
        drop(unsafe { Box::from_raw(id.0.as_ptr()) });
        Ok(())
    }

    /// rdma_migrate_id(3): events of the identifier come on `channel` from now on, also those that wait. Waits until
    /// the program has acknowledged those of the old channel.
    ///
    /// # Safety
    /// * `channel` is NULL or a valid object.
    pub(super) unsafe fn migrate(id: IdRef, channel: *mut rdma_event_channel) -> Result<(), Errno> {
        engine::get()?;
        let core = id.core();
        let was_synchronous = core.lock().synchronous;
        if was_synchronous && channel.is_null() {
            return Err(Errno::EINVAL);
        }
        let synchronous = channel.is_null();
        let channel = match NonNull::new(channel) {
            Some(channel) => channel,
            None => Channel::create()?,
        };
        // SAFETY: a valid object, by the caller's promise or just made.
        let queue = unsafe { Channel::queue(channel) };
        if was_synchronous {
            id.acknowledge_event();
        }
        let goal = {
            let mut state = core.lock();
            let moved = state.withdraw(&core);
            let goal = state.acknowledged + state.pending;
            state.queue = Some(Arc::clone(&queue));
            state.synchronous = synchronous;
            state.pending += moved.len() as u64;
            for notice in moved {
                queue.push(notice);
            }
            goal
        };
        let old = id.channel();
        id.set_channel(channel.as_ptr());
        core.wait(|state| state.acknowledged >= goal);
        if was_synchronous && let Some(old) = NonNull::new(old) {
            // SAFETY: the identifier's own, and no longer its channel.
            unsafe { Channel::destroy(old) };
        }
        Ok(())
    }
}
