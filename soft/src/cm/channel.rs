//! Event channels, and the way of an event from where it happens to the program.
//!
//! What happens becomes a [`Notice`] in the channel's queue. The thread that fetches it makes the C event of it, and does
//! what is due first, as librdmacm does: it fills in the identifier's fields, makes the identifier of a connection
//! request, moves the queue pair. So no code of the verbs ever runs on the reactor's thread on behalf of an event.

use super::id::{Core, Id, IdRef};
use super::qp;
use crate::engine;
use crate::event_queue::EventQueue;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type::{self as event, Type as EventKind};
use rdma_sys::{param_t, rdma_cm_event, rdma_conn_param, rdma_event_channel};
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `RDMA_CM_EVENT_ADDRINFO_RESOLVED` and `RDMA_CM_EVENT_USER` of librdmacm 1.4, which older headers lack.
pub(super) const EVENT_ADDRINFO_RESOLVED: EventKind = 16;
pub(super) const EVENT_ADDRINFO_ERROR: EventKind = 17;
pub(super) const EVENT_USER: EventKind = 18;

pub(super) type Queue = EventQueue<Notice>;

/// What a program holds as `struct rdma_event_channel *`.
#[repr(C)]
pub(super) struct Channel {
    public: rdma_event_channel,
    queue: Arc<Queue>,
}

impl Channel {
    pub(super) fn create() -> Result<NonNull<rdma_event_channel>, Errno> {
        engine::get()?;
        let queue = Arc::new(Queue::new()?);
        let channel = Box::new(Channel { public: rdma_event_channel { fd: queue.fd() }, queue });
        Ok(NonNull::from(Box::leak(channel)).cast())
    }

    /// # Safety
    /// * `channel` came from `create`, and nobody uses it any more.
    pub(super) unsafe fn destroy(channel: NonNull<rdma_event_channel>) {
        // SAFETY: `create` leaked it, by the caller's promise.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>().as_ptr()) });
    }

    /// # Safety
    /// * `channel` came from `create` and lives.
    pub(super) unsafe fn queue(channel: NonNull<rdma_event_channel>) -> Arc<Queue> {
        // SAFETY: a valid object, by the caller's promise.
        let channel = unsafe { channel.cast::<Channel>().as_ref() };
        Arc::clone(&channel.queue)
    }
}

/// Something that has happened to an identifier. The identifier stays until it is acknowledged or withdrawn.
#[derive(Clone)]
pub(super) struct Notice {
    pub(super) id: Arc<Core>,
    pub(super) kind: EventKind,
    /// 0, a negative errno value, or the reason of a REJ.
    pub(super) status: c_int,
    pub(super) params: Params,
    /// Of a connection request: the connection that it asks for.
    pub(super) request: Option<Arc<Core>>,
}

/// `rdma_cm_event.param`, owned.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Params {
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
    /// Of `RDMA_CM_EVENT_USER`.
    pub(super) arg: u64,
}

/// What a program holds as `struct rdma_cm_event *`.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    /// Where `param.conn.private_data` points to.
    private_data: Vec<u8>,
    /// Who is waiting for the acknowledgement.
    id: Arc<Core>,
}

/// The next event, ready for the program. Waits as the channel's descriptor does: EAGAIN, EINTR.
pub(super) fn next(queue: &Queue) -> Result<NonNull<rdma_cm_event>, Errno> {
    loop {
        engine::get()?;
        if let Some(event) = prepare(queue.pop()?) {
            return Ok(event);
        }
    }
}

/// Does what an event of this kind calls for. `None` where it turns out to be none of the program's business.
fn prepare(mut notice: Notice) -> Option<NonNull<rdma_cm_event>> {
    let core = Arc::clone(&notice.id);
    let owner = core.handle.load(Ordering::Acquire);
    // SAFETY: an identifier lives until its events are acknowledged, which this one is not.
    let id = unsafe { IdRef::new(owner.cast()) }?;
    let mut about = id;
    match notice.kind {
        event::RDMA_CM_EVENT_CONNECT_REQUEST => {
            match notice.request.take().and_then(|request| Id::requested(id, request)) {
                Some(request) => about = request,
                None => {
                    core.acknowledge();
                    return None;
                }
            }
        }
        event::RDMA_CM_EVENT_ADDR_RESOLVED => {
            if let Err(reason) = id.show_addresses() {
                notice.kind = event::RDMA_CM_EVENT_ADDR_ERROR;
                notice.status = -(reason as c_int);
            }
        }
        event::RDMA_CM_EVENT_ROUTE_RESOLVED => {
            if let Err(reason) = id.show_path() {
                notice.kind = event::RDMA_CM_EVENT_ROUTE_ERROR;
                notice.status = -(reason as c_int);
            }
        }
        event::RDMA_CM_EVENT_CONNECT_RESPONSE if !id.qp().is_null() => match qp::connect(id) {
            Ok(()) => notice.kind = event::RDMA_CM_EVENT_ESTABLISHED,
            Err(reason) => {
                notice.kind = event::RDMA_CM_EVENT_CONNECT_ERROR;
                notice.status = -(reason as c_int);
                core.lock().connect_error = true;
            }
        },
        // After a connect error the program has heard enough.
        event::RDMA_CM_EVENT_REJECTED | event::RDMA_CM_EVENT_DISCONNECTED if core.lock().connect_error => {
            core.acknowledge();
            return None;
        }
        event::RDMA_CM_EVENT_REJECTED => {
            // Whether it worked is told by the queue pair.
            let _ = qp::error(id);
        }
        _ => {}
    }
    let listener = if about == id { ptr::null_mut() } else { id.as_ptr() };
    Some(Event::create(notice, about, listener))
}

impl Event {
    fn create(notice: Notice, about: IdRef, listen_id: *mut rdma_sys::rdma_cm_id) -> NonNull<rdma_cm_event> {
        let Params { private_data, arg, .. } = &notice.params;
        let conn = rdma_conn_param {
            private_data: if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() },
            // No message of connection management has more than 255 bytes of it.
            private_data_len: private_data.len() as u8,
            responder_resources: notice.params.responder_resources,
            initiator_depth: notice.params.initiator_depth,
            flow_control: notice.params.flow_control,
            retry_count: notice.params.retry_count,
            rnr_retry_count: notice.params.rnr_retry_count,
            srq: notice.params.srq,
            qp_num: notice.params.qp_num,
        };
        // SAFETY: numbers and pointers, for all of which zero is a value.
        let mut param: param_t = unsafe { std::mem::zeroed() };
        if notice.kind == EVENT_USER {
            // SAFETY: the union of librdmacm 1.4 has an integer of this size as one of its members.
            unsafe { (&raw mut param).cast::<u64>().write(*arg) };
        } else {
            param.conn = conn;
        }
        let public = rdma_cm_event { id: about.as_ptr(), listen_id, event: notice.kind, status: notice.status, param };
        // The bytes stay where they are when the vector moves.
        let event = Box::new(Event { public, private_data: notice.params.private_data, id: notice.id });
        NonNull::from(Box::leak(event)).cast()
    }
}

/// Takes an event back, and whoever waits for that goes on.
///
/// # Safety
/// * `event` came from [`next`], and nobody uses it any more.
pub(super) unsafe fn acknowledge(event: NonNull<rdma_cm_event>) {
    // SAFETY: `create` leaked it, by the caller's promise.
    let event = unsafe { Box::from_raw(event.cast::<Event>().as_ptr()) };
    event.id.acknowledge();
}

/// rdma_event_str(3).
pub(super) fn name(kind: EventKind) -> &'static std::ffi::CStr {
    match kind {
        event::RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        event::RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        event::RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        event::RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        event::RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        event::RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        event::RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        event::RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        event::RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        event::RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        event::RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        event::RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        event::RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        event::RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        event::RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        event::RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        _ => c"UNKNOWN EVENT",
    }
}
