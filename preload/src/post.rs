//! The functions that stand in the operations tables for posting.
//!
//! At this level requests come as lists. Those before one that is refused or made to fail are posted, and `*bad_wr`
//! points at that one.

use crate::check::{self, Refusal};
use crate::clock;
use crate::config::{self, Config};
use crate::device::Device;
use crate::record::{Queue, Record, State};
use crate::request::WorkRequest;
use crate::rules;
use crate::stats;
use crate::trace::Outcome;
use libc::c_int;
use rdma_sys::{ibv_context, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use rdma_verbs_contract::errno::{self, Call, Errno};
use rdma_verbs_contract::view::{Qp, Srq};
use rdma_verbs_options::Check;
use std::ptr;

type Operation<O, W> = unsafe extern "C" fn(*mut O, *mut W, *mut *mut W) -> c_int;

/// A queue that lists of requests are posted to.
trait Target: Copy {
    type Object;
    type Wr: WorkRequest;
    fn object(self) -> *mut Self::Object;
    fn context(self) -> *mut ibv_context;
    fn real(device: &Device) -> Option<Operation<Self::Object, Self::Wr>>;
    /// Whether a request has nothing in it that [`Target::refuse`] would have to look at closely.
    fn is_plain(self, wr: &Self::Wr) -> bool;
    /// # Safety
    /// * The request's list is an array of its number of entries.
    unsafe fn refuse(self, wr: &Self::Wr) -> Result<(), Refusal>;
    fn is_ud(self) -> bool;
    fn record(self, device: &'static Device) -> &'static Record;
    fn queue(state: &mut State) -> &mut Queue;
}

#[derive(Clone, Copy)]
struct SendQueue(Qp);
#[derive(Clone, Copy)]
struct RecvQueue(Qp);
#[derive(Clone, Copy)]
struct SharedQueue(Srq);

impl Target for SendQueue {
    type Object = ibv_qp;
    type Wr = ibv_send_wr;
    fn object(self) -> *mut ibv_qp {
        self.0.as_ptr()
    }
    fn context(self) -> *mut ibv_context {
        self.0.context().as_ptr()
    }
    fn real(device: &Device) -> Option<Operation<ibv_qp, ibv_send_wr>> {
        device.post_send.get()
    }
    #[inline]
    fn is_plain(self, wr: &ibv_send_wr) -> bool {
        check::is_plain_send(self.0, wr)
    }
    unsafe fn refuse(self, wr: &ibv_send_wr) -> Result<(), Refusal> {
        // SAFETY: the caller's promise.
        unsafe { check::send(self.0, wr) }
    }
    fn is_ud(self) -> bool {
        check::is_ud(self.0)
    }
    fn record(self, device: &'static Device) -> &'static Record {
        device.records.qp(device, self.0.qp_num())
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.send
    }
}

impl Target for RecvQueue {
    type Object = ibv_qp;
    type Wr = ibv_recv_wr;
    fn object(self) -> *mut ibv_qp {
        self.0.as_ptr()
    }
    fn context(self) -> *mut ibv_context {
        self.0.context().as_ptr()
    }
    fn real(device: &Device) -> Option<Operation<ibv_qp, ibv_recv_wr>> {
        device.post_recv.get()
    }
    #[inline]
    fn is_plain(self, wr: &ibv_recv_wr) -> bool {
        check::recv(self.0, wr).is_ok()
    }
    unsafe fn refuse(self, wr: &ibv_recv_wr) -> Result<(), Refusal> {
        check::recv(self.0, wr)
    }
    fn is_ud(self) -> bool {
        false
    }
    fn record(self, device: &'static Device) -> &'static Record {
        device.records.qp(device, self.0.qp_num())
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.recv
    }
}

impl Target for SharedQueue {
    type Object = ibv_srq;
    type Wr = ibv_recv_wr;
    fn object(self) -> *mut ibv_srq {
        self.0.as_ptr()
    }
    fn context(self) -> *mut ibv_context {
        self.0.context().as_ptr()
    }
    fn real(device: &Device) -> Option<Operation<ibv_srq, ibv_recv_wr>> {
        device.post_srq_recv.get()
    }
    #[inline]
    fn is_plain(self, wr: &ibv_recv_wr) -> bool {
        check::shared_recv(wr).is_ok()
    }
    unsafe fn refuse(self, wr: &ibv_recv_wr) -> Result<(), Refusal> {
        check::shared_recv(wr)
    }
    fn is_ud(self) -> bool {
        false
    }
    fn record(self, device: &'static Device) -> &'static Record {
        device.records.srq(device, self.0.as_ptr())
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.recv
    }
}

/// What the tables of the devices hold while only the refusals are on.
pub(crate) mod checked {
    use super::*;

    /// # Safety
    /// * As for `ibv_post_send(3)`.
    pub(crate) unsafe extern "C" fn post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: a queue pair, by the caller's promise.
        let queue = unsafe { Qp::new(qp) }.map(SendQueue);
        // SAFETY: the caller's promise.
        unsafe { checked(queue, wr, bad) }
    }

    /// # Safety
    /// * As for `ibv_post_recv(3)`.
    pub(crate) unsafe extern "C" fn post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: a queue pair, by the caller's promise.
        let queue = unsafe { Qp::new(qp) }.map(RecvQueue);
        // SAFETY: the caller's promise.
        unsafe { checked(queue, wr, bad) }
    }

    /// # Safety
    /// * As for `ibv_post_srq_recv(3)`.
    pub(crate) unsafe extern "C" fn post_srq_recv(
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: a shared receive queue, by the caller's promise.
        let queue = unsafe { Srq::new(srq) }.map(SharedQueue);
        // SAFETY: the caller's promise.
        unsafe { checked(queue, wr, bad) }
    }
}

/// What they hold while posts are traced, counted, made to fail or remembered.
pub(crate) mod observed {
    use super::*;

    /// # Safety
    /// * As for `ibv_post_send(3)`.
    pub(crate) unsafe extern "C" fn post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: a queue pair, by the caller's promise.
        let queue = unsafe { Qp::new(qp) }.map(SendQueue);
        // SAFETY: the caller's promise.
        unsafe { observed(queue, wr, bad) }
    }

    /// # Safety
    /// * As for `ibv_post_recv(3)`.
    pub(crate) unsafe extern "C" fn post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: a queue pair, by the caller's promise.
        let queue = unsafe { Qp::new(qp) }.map(RecvQueue);
        // SAFETY: the caller's promise.
        unsafe { observed(queue, wr, bad) }
    }

    /// # Safety
    /// * As for `ibv_post_srq_recv(3)`.
    pub(crate) unsafe extern "C" fn post_srq_recv(
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: a shared receive queue, by the caller's promise.
        let queue = unsafe { Srq::new(srq) }.map(SharedQueue);
        // SAFETY: the caller's promise.
        unsafe { observed(queue, wr, bad) }
    }
}

/// A request that the provider does not get to see, and the one before it.
struct Stop<W> {
    previous: *mut W,
    at: *mut W,
    outcome: Outcome,
}

/// # Safety
/// * `first` is NULL or a list of requests, as for `ibv_post_send(3)`, and `bad` NULL or room for a pointer.
#[inline(always)]
unsafe fn checked<T: Target>(target: Option<T>, first: *mut T::Wr, bad: *mut *mut T::Wr) -> c_int {
    let Some((target, real)) = target.and_then(|target| Some((target, T::real(Device::of(target.context())?)?))) else {
        return errno::verb(Err(Errno::EINVAL));
    };
    // What nearly all posts are: one request with nothing special in it.
    // SAFETY: a request of the caller's list.
    if let Some(wr) = unsafe { first.as_mut() }
        && wr.next().is_null()
        && target.is_plain(wr)
    {
        let call = Call::begin();
        // SAFETY: the caller's promise.
        let result = unsafe { real(target.object(), first, bad) };
        return errno::verb(call.check(result, Errno::ENOMEM));
    }
    // SAFETY: the caller's promise.
    unsafe { checked_list(target, real, first, bad) }
}

/// # Safety
/// * As for [`checked`].
#[inline(never)]
unsafe fn checked_list<T: Target>(
    target: T,
    real: Operation<T::Object, T::Wr>,
    first: *mut T::Wr,
    bad: *mut *mut T::Wr,
) -> c_int {
    let mut stop = None;
    let (mut previous, mut at) = (ptr::null_mut(), first);
    // SAFETY: requests of the caller's list.
    while let Some(wr) = unsafe { at.as_mut() } {
        // SAFETY: the caller's promise.
        if let Err(refusal) = unsafe { target.refuse(wr) } {
            stop = Some(Stop { previous, at, outcome: refusal.into() });
            break;
        }
        (previous, at) = (at, *wr.next());
    }
    // SAFETY: the caller's promise.
    let result = unsafe { forward(target, real, first, stop.as_ref(), bad) };
    errno::verb(result.map_err(|failure| failure.errno))
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Outcome {
        Outcome { errno: refusal.errno.get(), refused: Some(refusal.reason), injected: false }
    }
}

/// How a post failed.
#[derive(Clone, Copy)]
struct Failure {
    errno: Errno,
    /// What the provider returned, if it was the provider that failed.
    result: Option<c_int>,
}

impl Failure {
    fn of_provider(errno: Errno, result: c_int) -> Failure {
        Failure { errno, result: Some(result) }
    }
}

/// Posts the part of the list before `stop`, or all of it; `*bad` points at the request that failed.
///
/// # Safety
/// * As for [`checked`]; `stop` is in the list.
unsafe fn forward<T: Target>(
    target: T,
    real: Operation<T::Object, T::Wr>,
    first: *mut T::Wr,
    stop: Option<&Stop<T::Wr>>,
    bad: *mut *mut T::Wr,
) -> Result<(), Failure> {
    let Some(stop) = stop else {
        let call = Call::begin();
        // SAFETY: the caller's promise.
        let result = unsafe { real(target.object(), first, bad) };
        return call.check(result, Errno::ENOMEM).map_err(|errno| Failure::of_provider(errno, result));
    };
    // SAFETY: a request of the caller's list, or NULL where the first one is not to be posted.
    if let Some(previous) = unsafe { stop.previous.as_mut() } {
        *previous.next() = ptr::null_mut();
        let call = Call::begin();
        // SAFETY: the caller's promise, for a shorter list.
        let result = unsafe { real(target.object(), first, bad) };
        // SAFETY: as above.
        if let Some(previous) = unsafe { stop.previous.as_mut() } {
            *previous.next() = stop.at;
        }
        call.check(result, Errno::ENOMEM).map_err(|errno| Failure::of_provider(errno, result))?;
    }
    // SAFETY: room for a pointer, or NULL.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = stop.at;
    }
    Err(Failure { errno: Errno::from_positive(stop.outcome.errno), result: None })
}

/// # Safety
/// * As for [`checked`].
unsafe fn observed<T: Target>(target: Option<T>, first: *mut T::Wr, bad: *mut *mut T::Wr) -> c_int {
    let call = Call::begin();
    let found = target.and_then(|target| {
        let device = Device::of(target.context())?;
        Some((target, device, T::real(device)?))
    });
    let Some((target, device, real)) = found else { return errno::verb(Err(Errno::EINVAL)) };
    if config::in_forked_child() {
        // SAFETY: the caller's promise.
        let result = unsafe { forward(target, real, first, None, bad) };
        return errno::verb(result.map_err(|failure| failure.errno));
    }
    let config = config::get();
    let record = target.record(device);
    // SAFETY: the caller's promise.
    let stop = unsafe { find_stop(config, target, record, first) };
    let end = stop.as_ref().map_or(ptr::null_mut(), |stop| stop.at);
    // Before the post: the completion may be polled before the post returns.
    // SAFETY: the caller's promise.
    let sequences = unsafe { remember(config, target, record, first, end) };

    let mut failed = ptr::null_mut();
    // SAFETY: the caller's promise.
    let result = unsafe { forward(target, real, first, stop.as_ref(), &mut failed) };
    if result.is_err() {
        // SAFETY: room for a pointer, or NULL.
        if let Some(bad) = unsafe { bad.as_mut() } {
            *bad = failed;
        }
    }
    let outcome = match (&stop, &result) {
        (_, Ok(())) => Outcome::ACCEPTED,
        (Some(stop), Err(_)) if failed == stop.at => stop.outcome,
        (_, Err(failure)) => Outcome { errno: failure.errno.get(), refused: None, injected: false },
    };
    let left_by_provider = Call::begin();
    if result.is_err() || config.trace.is_some() {
        // SAFETY: the caller's promise.
        unsafe { tell(config, target, record, first, failed, outcome, sequences) };
    }
    // Writing a trace uses errno.
    call.restore();
    match result {
        // Without the checks the provider's answer is the program's.
        Err(Failure { result: Some(result), .. }) if config.check == Check::Off => {
            left_by_provider.restore();
            result
        }
        result => errno::verb(result.map_err(|failure| failure.errno)),
    }
}

/// The first request that is refused or made to fail. The rules of the manual pages are looked at on the way.
///
/// # Safety
/// * As for [`checked`].
unsafe fn find_stop<T: Target>(
    config: &Config,
    target: T,
    record: &'static Record,
    first: *mut T::Wr,
) -> Option<Stop<T::Wr>> {
    let (mut previous, mut at) = (ptr::null_mut(), first);
    // SAFETY: requests of the caller's list.
    while let Some(wr) = unsafe { at.as_mut() } {
        if config.check != Check::Off {
            // SAFETY: the caller's promise.
            if let Err(refusal) = unsafe { target.refuse(wr) } {
                return Some(Stop { previous, at, outcome: refusal.into() });
            }
        }
        if config.faults.any() || config.check == Check::Full {
            // SAFETY: the caller's promise.
            let request = unsafe { wr.describe(target.is_ud()) };
            if let Some(errno) = config.faults.post(request.op, record.qp_number()) {
                return Some(Stop { previous, at, outcome: Outcome { errno, refused: None, injected: true } });
            }
            if config.check == Check::Full {
                rules::before_post(record, &request);
            }
        }
        (previous, at) = (at, *wr.next());
    }
    None
}

/// Puts the requests from `first` up to `end` on record and counts them; returns their sequence numbers.
///
/// # Safety
/// * As for [`checked`]; `end` is NULL or in the list.
unsafe fn remember<T: Target>(
    config: &Config,
    target: T,
    record: &'static Record,
    first: *mut T::Wr,
    end: *mut T::Wr,
) -> std::ops::Range<u64> {
    let now = if config.timing { clock::monotonic() } else { 0 };
    let keep_lkeys = config.check == Check::Full;
    let mut state = record.lock();
    let start = T::queue(&mut state).next_sequence();
    let mut at = first;
    while at != end {
        // SAFETY: a request of the caller's list.
        let Some(wr) = (unsafe { at.as_mut() }) else { break };
        // SAFETY: the caller's promise.
        let request = unsafe { wr.describe(target.is_ud()) };
        let signaled = state.is_signaled(&request);
        T::queue(&mut state).push(&request, signaled, now, keep_lkeys);
        if config.stats.is_some() {
            state.stats(request.op).posted(&request);
        }
        if keep_lkeys {
            rules::after_post(record, &mut state, &request);
        }
        at = *wr.next();
    }
    start..T::queue(&mut state).next_sequence()
}

/// Traces the requests up to the one that failed, and takes that and the rest off the record.
///
/// # Safety
/// * As for [`checked`]; `failed` is NULL or in the list.
unsafe fn tell<T: Target>(
    config: &Config,
    target: T,
    record: &'static Record,
    first: *mut T::Wr,
    failed: *mut T::Wr,
    outcome: Outcome,
    sequences: std::ops::Range<u64>,
) {
    let mut accepted = 0;
    let mut at = first;
    // SAFETY: requests of the caller's list.
    while let Some(wr) = unsafe { at.as_mut() } {
        // A failure that does not say where is one of the first.
        let is_failed = outcome.errno != 0 && (at == failed || failed.is_null());
        // SAFETY: the caller's promise.
        let request = unsafe { wr.describe(target.is_ud()) };
        let outcome = if is_failed { outcome } else { Outcome::ACCEPTED };
        if config.stats.is_some() && is_failed {
            record.lock().stats(request.op).failed(stats::Failure::Errno(outcome.errno));
        }
        if let Some(trace) = &config.trace {
            trace.post(record.device.name(), record.place(), &request, outcome);
        }
        if is_failed {
            break;
        }
        accepted += 1;
        at = *wr.next();
    }
    if outcome.errno != 0 {
        let mut state = record.lock();
        let withdrawn = T::queue(&mut state).withdraw(sequences.start + accepted..sequences.end);
        if config.stats.is_some() {
            withdrawn.iter().for_each(|posted| state.stats(posted.op).withdrawn(posted));
        }
    }
}
