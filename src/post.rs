//! Posting: the checks in their order, the work request, the provider.

use crate::errno::Errno;
use crate::provider::Provider;
use crate::refusal::{self, Buffer, ReceiveQueue};
use crate::sys::{RDMA_UDP_QKEY, ibv_ah, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use crate::view::{self, CmId, Qp};
use libc::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// The peer's memory that a read or write names.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
}

/// What a send-side request does.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Send,
    Read(Remote),
    Write(Remote),
    UdSend(Datagram),
}

/// Posts a receive into a list of buffers.
#[inline]
pub(crate) fn recvv(id: Option<CmId>, context: *mut c_void, sgl: *mut ibv_sge, nsge: c_int) -> Result<(), Errno> {
    let queue = refusal::receive_queue(id)?;
    refusal::entries(sgl, nsge)?;
    submit_receive(queue, context, sgl, nsge)
}

/// Posts a receive into one buffer.
#[inline]
pub(crate) fn recv(id: Option<CmId>, context: *mut c_void, buffer: Buffer) -> Result<(), Errno> {
    let queue = refusal::receive_queue(id)?;
    let mut sge = buffer.registered()?;
    submit_receive(queue, context, &mut sge, 1)
}

/// Posts a send, read or write with a list of buffers.
#[inline(always)]
pub(crate) fn vectored(
    id: Option<CmId>,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    operation: Operation,
) -> Result<(), Errno> {
    let qp = refusal::send_queue(id)?;
    refusal::entries(sgl, nsge)?;
    refusal::addressed(qp, operation.ah())?;
    submit_send(qp, context, sgl, nsge, flags, operation)
}

/// Posts a send, read or write with one buffer.
#[inline(always)]
pub(crate) fn single(
    id: Option<CmId>,
    context: *mut c_void,
    buffer: Buffer,
    flags: c_int,
    operation: Operation,
) -> Result<(), Errno> {
    let qp = refusal::send_queue(id)?;
    let mut sge = match operation {
        Operation::Read(_) => buffer.registered()?,
        Operation::Send | Operation::Write(_) | Operation::UdSend(_) => buffer.outgoing(flags)?,
    };
    refusal::addressed(qp, operation.ah())?;
    submit_send(qp, context, &mut sge, 1, flags, operation)
}

impl Operation {
    /// The address handle that the request carries.
    #[inline]
    fn ah(self) -> *mut ibv_ah {
        match self {
            Operation::UdSend(to) => to.ah,
            Operation::Send | Operation::Read(_) | Operation::Write(_) => ptr::null_mut(),
        }
    }
}

// `always`, here and above: on its own the compiler keeps one copy for several entries, and a request's arguments go
// through memory to it.
#[inline(always)]
fn submit_receive(queue: ReceiveQueue, context: *mut c_void, sgl: *mut ibv_sge, nsge: c_int) -> Result<(), Errno> {
    let mut place = MaybeUninit::<ibv_recv_wr>::uninit();
    let wr = view::zeroed(&mut place);
    wr.wr_id = context.expose_provenance() as u64;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    let provider = Provider::get()?;
    match queue {
        ReceiveQueue::Srq(srq) => provider.post_srq_recv(srq, wr),
        ReceiveQueue::Qp(qp) => provider.post_recv(qp, wr),
    }
}

#[inline(always)]
fn submit_send(
    qp: Qp,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    operation: Operation,
) -> Result<(), Errno> {
    let mut place = MaybeUninit::<ibv_send_wr>::uninit();
    let wr = view::zeroed(&mut place);
    wr.wr_id = context.expose_provenance() as u64;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.send_flags = flags as c_uint;
    // Field by field: assigning a whole union member could copy padding over the zeros.
    match operation {
        Operation::Send => wr.opcode = ibv_wr_opcode::IBV_WR_SEND,
        Operation::Read(remote) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = remote.addr;
            wr.wr.rdma.rkey = remote.rkey;
        }
        Operation::Write(remote) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = remote.addr;
            wr.wr.rdma.rkey = remote.rkey;
        }
        Operation::UdSend(to) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
            wr.wr.ud.ah = to.ah;
            wr.wr.ud.remote_qpn = to.remote_qpn;
            wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
        }
    }
    Provider::get()?.post_send(qp, wr)
}
