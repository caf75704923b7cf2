//! Completions, from `ibv_poll_cq` and from the extended completion queues.

use crate::clock;
use crate::config::{self, Config};
use crate::device::Device;
use crate::rules;
use libc::c_int;
use rdma_sys::{ibv_cq, ibv_wc};
use rdma_verbs_contract::errno::Call;
use rdma_verbs_options::{Check, Op};

/// What the operations tables hold for polling.
///
/// # Safety
/// * As for `ibv_poll_cq(3)`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a completion queue, by the caller's promise.
    let context = unsafe { (*cq).context };
    let Some(device) = Device::of(context) else { return -libc::EINVAL };
    let Some(real) = device.poll_cq.get() else { return -libc::EOPNOTSUPP };
    // SAFETY: the caller's promise.
    let count = unsafe { real(cq, num_entries, wc) };
    if count > 0 && count <= num_entries && !config::in_forked_child() {
        // SAFETY: the provider filled so many.
        let completions = unsafe { std::slice::from_raw_parts_mut(wc, count as usize) };
        let config = config::get();
        // Writing a trace uses errno.
        let call = Call::begin();
        for wc in completions {
            completed(config, device, cq.addr(), wc);
        }
        call.restore();
    }
    count
}

/// Matches a completion with its request, and tells whoever wants to know.
pub(crate) fn completed(config: &Config, device: &'static Device, cq: usize, wc: &mut ibv_wc) {
    let record = device.records.qp(device, wc.qp_num);
    let posted = record.complete(cq, wc);
    let op = match &posted {
        Some(posted) if wc.status != 0 || posted.op != Op::Recv => posted.op,
        _ => Op::completed(wc.opcode),
    };
    if config.check == Check::Full {
        rules::completed(record, op, posted.as_ref(), wc);
    }
    let fault = config.faults.completion(op, wc.qp_num);
    if let Some(status) = fault {
        wc.status = status;
        wc.vendor_err = 0;
    }
    let is_recv = matches!(op, Op::Recv | Op::RecvWriteImm);
    let bytes = match &posted {
        Some(posted) if !is_recv => posted.bytes,
        _ if wc.status == 0 && is_recv => wc.byte_len.into(),
        _ => 0,
    };
    let latency = posted.as_ref().filter(|_| config.timing).map(|posted| clock::monotonic().saturating_sub(posted.at));
    if config.stats.is_some() {
        let mut state = record.lock();
        // The row of the request, so that its posts and completions stand in one line.
        let stats = state.stats(if is_recv { Op::Recv } else { op });
        stats.completed(wc.status, if is_recv { bytes } else { 0 });
        if let Some(latency) = latency {
            stats.took(latency);
        }
    }
    if let Some(trace) = &config.trace {
        trace.completion(device.name(), op, bytes, wc, latency, fault.is_some());
    }
}
