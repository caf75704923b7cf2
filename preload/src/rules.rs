//! The rules of the manual pages that need memory, reported as a sanitizer reports: what, where, which request, from
//! where. The program goes on.

use crate::device::Device;
use crate::output::Output;
use crate::record::{Posted, Record, State};
use crate::request::{INLINE, Request};
use libc::c_void;
use rdma_sys::{ibv_wc, ibv_wc_status};
use rdma_verbs_options::{Op, status_name};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy)]
#[repr(u32)]
enum Rule {
    UnregisteredBuffer,
    DeregisteredBuffer,
    DeregisteredInUse,
    TooManyEntries,
    InlineTooLong,
    NeverSignaled,
    ReceiveTooSmall,
    ReceiverNotReady,
    OutstandingAtDestroy,
    OutstandingAtExit,
}

impl Rule {
    /// In `State::reported`.
    fn bit(self) -> u32 {
        1 << self as u32
    }

    fn name(self) -> &'static str {
        match self {
            Rule::UnregisteredBuffer => "unregistered-buffer",
            Rule::DeregisteredBuffer => "deregistered-buffer",
            Rule::DeregisteredInUse => "deregistered-in-use",
            Rule::TooManyEntries => "too-many-entries",
            Rule::InlineTooLong => "inline-too-long",
            Rule::NeverSignaled => "never-signaled",
            Rule::ReceiveTooSmall => "receive-too-small",
            Rule::ReceiverNotReady => "receiver-not-ready",
            Rule::OutstandingAtDestroy => "outstanding-at-destroy",
            Rule::OutstandingAtExit => "outstanding-at-exit",
        }
    }
}

static REPORTS: AtomicU64 = AtomicU64::new(0);

/// Once for each queue and rule.
fn report(record: &Record, state: &mut State, rule: Rule, what: &str, request: &str) {
    if state.reported & rule.bit() != 0 {
        return;
    }
    state.reported |= rule.bit();
    REPORTS.fetch_add(1, Ordering::Relaxed);
    let mut text =
        format!("rdma-verbs: {}: {what}\n    where: {} {}", rule.name(), record.device.name(), record.place());
    if !request.is_empty() {
        text.push_str(", ");
        text.push_str(request);
    }
    text.push('\n');
    // At the end it is the C library that calls.
    if !matches!(rule, Rule::OutstandingAtExit)
        && let Some(caller) = caller()
    {
        writeln!(text, "    called from: {caller}").expect("a String takes every write");
    }
    Output::STDERR.write(&text);
}

fn describe(verb: &str, op: Op, wr_id: u64) -> String {
    format!("{verb} {op} wr_id {wr_id:#x}")
}

/// Looks at a request that is about to be posted.
pub(crate) fn before_post(record: &'static Record, request: &Request) {
    let mut state = record.lock();
    let post = describe("post", request.op, request.wr_id);
    if let Some(caps) = state.caps {
        let (max, limit) = match request.op {
            Op::Recv => (caps.max_recv_sge, "max_recv_sge"),
            _ => (caps.max_send_sge, "max_send_sge"),
        };
        if request.sges.len() > max as usize {
            let what = format!("{} entries, and the queue pair was created with {limit} {max}", request.sges.len());
            report(record, &mut state, Rule::TooManyEntries, &what, &post);
        }
        if request.flags & INLINE != 0 && request.bytes() > caps.max_inline_data.into() {
            let what = format!(
                "{} bytes inline, and the queue pair was created with max_inline_data {}",
                request.bytes(),
                caps.max_inline_data
            );
            report(record, &mut state, Rule::InlineTooLong, &what, &post);
        }
    }
    if request.flags & INLINE != 0 {
        return;
    }
    for (index, sge) in request.sges.iter().enumerate().filter(|(_, sge)| sge.length > 0) {
        // A key that was not seen being made is nothing to go by.
        let Some(region) = record.device.records.regions.get(sge.lkey) else { continue };
        let entry = format!("{post}, entry {index}: [{:#x}, +{}) lkey {:#x}", sge.addr, sge.length, sge.lkey);
        if !region.registered {
            let what = "the buffer's region was deregistered";
            report(record, &mut state, Rule::DeregisteredBuffer, what, &entry);
        } else if !region.covers(sge.addr, sge.length.into()) {
            let what = format!("the buffer is not inside its region, [{:#x}, +{})", region.iova, region.length);
            report(record, &mut state, Rule::UnregisteredBuffer, &what, &entry);
        }
    }
}

/// Looks at the send queue when a request is on it.
pub(crate) fn after_post(record: &Record, state: &mut State, request: &Request) {
    let Some(caps) = state.caps else { return };
    if request.op == Op::Recv || caps.max_send_wr == 0 {
        return;
    }
    let posted = state.send.iter().len();
    if posted >= caps.max_send_wr as usize && state.is_working() && state.send.iter().all(|posted| !posted.signaled) {
        let what = format!(
            "the send queue is full with {posted} requests and none of them is signaled, so that no completion will ever \
             free their places"
        );
        let post = describe("post", request.op, request.wr_id);
        report(record, state, Rule::NeverSignaled, &what, &post);
    }
}

pub(crate) fn completed(record: &Record, op: Op, posted: Option<&Posted>, wc: &ibv_wc) {
    let (rule, what) = match (op, wc.status) {
        (Op::Recv, ibv_wc_status::IBV_WC_LOC_LEN_ERR | ibv_wc_status::IBV_WC_LOC_QP_OP_ERR) => {
            let room = posted.map_or(String::new(), |posted| format!(" of {} bytes", posted.bytes));
            // What IBV_WC_LOC_LEN_ERR is made for; some devices have only the other one to say it with.
            let or = match wc.status {
                ibv_wc_status::IBV_WC_LOC_LEN_ERR => "",
                _ if is_buffer_reported(record) || !is_registered(record, posted) => return,
                _ => ", or its buffer cannot be written",
            };
            let status = status_name(wc.status);
            (Rule::ReceiveTooSmall, format!("the receive{room} is shorter than the message that came{or} ({status})"))
        }
        (_, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR) => {
            let what = "the peer had no receive posted when the message came, for as long as it was tried";
            (Rule::ReceiverNotReady, what.to_owned())
        }
        _ => return,
    };
    report(record, &mut record.lock(), rule, &what, &describe("completion of", op, wc.wr_id));
}

/// Whether there was a report on a buffer of this queue pair's receives, which is why they fail.
fn is_buffer_reported(record: &Record) -> bool {
    let buffers = Rule::UnregisteredBuffer.bit() | Rule::DeregisteredBuffer.bit() | Rule::DeregisteredInUse.bit();
    let state = record.lock();
    let shared = state.shared.map_or(0, |shared| shared.lock().reported);
    (state.reported | shared) & buffers != 0
}

/// Whether all regions of a request are known and there, so that they are not why it fails.
fn is_registered(record: &Record, posted: Option<&Posted>) -> bool {
    let is_there = |lkey: &u32| record.device.records.regions.get(*lkey).is_some_and(|region| region.registered);
    posted.is_some_and(|posted| posted.lkeys.iter().all(is_there))
}

/// A region goes: is a request that uses it still on a queue?
pub(crate) fn before_deregistration(device: &'static Device, lkey: u32) {
    let records = device.records.all();
    // A shared receive queue is worked on for queue pairs.
    let is_shared_by =
        |record: &'static Record, qp: &State| qp.shared.is_some_and(|shared| std::ptr::eq(shared, record));
    for &record in &records {
        let is_working = match record.qp_number() {
            Some(_) => record.lock().is_working(),
            None => records.iter().any(|qp| {
                let qp = qp.lock();
                is_shared_by(record, &qp) && qp.is_working()
            }),
        };
        if !is_working {
            continue;
        }
        let mut state = record.lock();
        let user = state.send.outstanding().chain(state.recv.outstanding()).find(|posted| posted.lkeys.contains(&lkey));
        if let Some(request) = user.map(|posted| describe("posted", posted.op, posted.wr_id)) {
            let what = format!("the region of lkey {lkey:#x} is deregistered while a request uses it");
            report(record, &mut state, Rule::DeregisteredInUse, &what, &request);
        }
    }
}

pub(crate) fn before_destroy(record: &'static Record) {
    outstanding(record, &mut record.lock(), Rule::OutstandingAtDestroy, "the queue pair is destroyed");
}

pub(crate) fn at_exit() {
    for record in Device::all().flat_map(|device| device.records.all()) {
        if let Some(mut state) = record.lock_at_exit() {
            outstanding(record, &mut state, Rule::OutstandingAtExit, "the program ends");
        }
    }
    let reports = REPORTS.load(Ordering::Relaxed);
    if reports > 0 {
        let s = if reports == 1 { "" } else { "s" };
        Output::STDERR.write(&format!("rdma-verbs: {reports} report{s}\n"));
    }
}

/// Sends whose completion nobody has waited for. Receives are left on their queues by every program, and an
/// unsignaled request has no completion to wait for.
fn outstanding(record: &'static Record, state: &mut State, rule: Rule, when: &str) {
    if !state.is_working() {
        return;
    }
    let mut outstanding = state.send.outstanding();
    if let Some(first) = outstanding.next() {
        let request = describe("posted", first.op, first.wr_id);
        let count = 1 + outstanding.count();
        let what = format!("{when} with {count} signaled request(s) whose completion was not taken");
        report(record, state, rule, &what, &request);
    }
}

/// The innermost function on the stack that belongs to the program: not to this library, to the RDMA libraries, or to
/// the inline functions of their headers.
fn caller() -> Option<String> {
    let mut caller = None;
    backtrace::trace(|frame| {
        let ip = frame.ip();
        let Some((object, base)) = object_of(ip) else { return true };
        let name = object.rsplit('/').next().unwrap_or_default();
        if ["librdma_verbs", "libibverbs", "librdmacm"].iter().any(|ours| name.starts_with(ours))
            || name.contains("-rdmav")
        {
            return true;
        }
        let mut is_named = false;
        // The address after the call; the call itself is what people look for.
        backtrace::resolve(ip.wrapping_byte_sub(1), |symbol| {
            let Some(function) = symbol.name().map(|name| name.to_string()) else { return };
            is_named = true;
            if caller.is_some() || is_of_a_header(&function, symbol.filename()) {
                return;
            }
            let place = match (symbol.filename(), symbol.lineno()) {
                (Some(file), Some(line)) => format!("{}:{line}", file.display()),
                _ => object.clone(),
            };
            caller = Some(format!("{function} ({place})"));
        });
        if !is_named {
            caller = Some(format!("{object}+{:#x}", ip.addr() - base.addr()));
        }
        caller.is_none()
    });
    caller
}

/// Whether a function of the program is one that it has from <infiniband/verbs.h> or <rdma/rdma_verbs.h>.
fn is_of_a_header(function: &str, file: Option<&Path>) -> bool {
    match file {
        Some(file) => file.ends_with("infiniband/verbs.h") || file.ends_with("rdma/rdma_verbs.h"),
        None => function.starts_with("ibv_") || function.starts_with("rdma_"),
    }
}

/// The file that an address of code was loaded from, and where it begins in memory.
fn object_of(address: *mut c_void) -> Option<(String, *mut c_void)> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, with room for the answer.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: integers and pointers, for which 0 is a value.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string of the loader.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((name.to_string_lossy().into_owned(), info.dli_fbase))
}
