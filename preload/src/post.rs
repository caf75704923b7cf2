//! The functions that stand in the operations tables for posting.
//!
//! At this level requests come as lists. Those before one that is refused or made to fail are posted, and `*bad_wr`
//! points at that one.

use crate::check::{self, Refusal};
use crate::clock;
use crate::config::{self, Config};
use crate::device::Device;
use crate::record::{Queue, Record, State};
use crate::request::{Request, WorkRequest};
use crate::rules;
use crate::stats;
use crate::trace::Outcome;
use libc::c_int;
use rdma_sys::{ibv_context, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};
use rdma_verbs_contract::errno::{self, Call, Errno};
use rdma_verbs_contract::view::{Qp, Srq};
use rdma_verbs_options::Check;
use std::ops::Range;
use std::ptr;

type Operation<O, W> = unsafe extern "C" fn(*mut O, *mut W, *mut *mut W) -> c_int;

/// The object that requests are posted to.
pub(crate) trait Object: Copy {
    type Pointee;
    /// # Safety
    /// * `object` is a valid object.
    unsafe fn new(object: *mut Self::Pointee) -> Option<Self>;
    fn as_ptr(self) -> *mut Self::Pointee;
    fn context(self) -> *mut ibv_context;
    fn is_ud(self) -> bool;
    fn record(self, device: &'static Device) -> &'static Record;
}

impl Object for Qp {
    type Pointee = ibv_qp;
    #[inline]
    unsafe fn new(qp: *mut ibv_qp) -> Option<Qp> {
        // SAFETY: the caller's promise.
        unsafe { Qp::new(qp) }
    }
    #[inline]
    fn as_ptr(self) -> *mut ibv_qp {
        self.as_ptr()
    }
    #[inline]
    fn context(self) -> *mut ibv_context {
        self.context().as_ptr()
    }
    fn is_ud(self) -> bool {
        check::is_ud(self)
    }
    fn record(self, device: &'static Device) -> &'static Record {
        device.records.qp(device, self.qp_num())
    }
}

impl Object for Srq {
    type Pointee = ibv_srq;
    #[inline]
    unsafe fn new(srq: *mut ibv_srq) -> Option<Srq> {
        // SAFETY: the caller's promise.
        unsafe { Srq::new(srq) }
    }
    #[inline]
    fn as_ptr(self) -> *mut ibv_srq {
        self.as_ptr()
    }
    #[inline]
    fn context(self) -> *mut ibv_context {
        self.context().as_ptr()
    }
    fn is_ud(self) -> bool {
        false
    }
    fn record(self, device: &'static Device) -> &'static Record {
        device.records.srq(device, self.as_ptr())
    }
}

/// A queue of such an object: what its requests are, what is refused, and where they are put on record.
pub(crate) trait Target {
    type Object: Object;
    type Wr: WorkRequest;
    fn real(device: &Device) -> Option<OperationOf<Self>>;
    /// Whether a request has nothing in it that [`Target::refuse`] would have to look at closely.
    fn is_plain(object: Self::Object, wr: &Self::Wr) -> bool;
    /// # Safety
    /// * The request's list is an array of its number of entries.
    unsafe fn refuse(object: Self::Object, wr: &Self::Wr) -> Result<(), Refusal>;
    fn queue(state: &mut State) -> &mut Queue;
}

type PointeeOf<T> = <<T as Target>::Object as Object>::Pointee;
type OperationOf<T> = Operation<PointeeOf<T>, <T as Target>::Wr>;

pub(crate) struct SendQueue;
pub(crate) struct RecvQueue;
pub(crate) struct SharedQueue;

impl Target for SendQueue {
    type Object = Qp;
    type Wr = ibv_send_wr;
    #[inline]
    fn real(device: &Device) -> Option<OperationOf<Self>> {
        device.post_send.get()
    }
    #[inline]
    fn is_plain(qp: Qp, wr: &ibv_send_wr) -> bool {
        check::is_plain_send(qp, wr)
    }
    unsafe fn refuse(qp: Qp, wr: &ibv_send_wr) -> Result<(), Refusal> {
        // SAFETY: the caller's promise.
        unsafe { check::send(qp, wr) }
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.send
    }
}

impl Target for RecvQueue {
    type Object = Qp;
    type Wr = ibv_recv_wr;
    #[inline]
    fn real(device: &Device) -> Option<OperationOf<Self>> {
        device.post_recv.get()
    }
    #[inline]
    fn is_plain(qp: Qp, wr: &ibv_recv_wr) -> bool {
        check::recv(qp, wr).is_ok()
    }
    unsafe fn refuse(qp: Qp, wr: &ibv_recv_wr) -> Result<(), Refusal> {
        check::recv(qp, wr)
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.recv
    }
}

impl Target for SharedQueue {
    type Object = Srq;
    type Wr = ibv_recv_wr;
    #[inline]
    fn real(device: &Device) -> Option<OperationOf<Self>> {
        device.post_srq_recv.get()
    }
    #[inline]
    fn is_plain(_: Srq, wr: &ibv_recv_wr) -> bool {
        check::shared_recv(wr).is_ok()
    }
    unsafe fn refuse(_: Srq, wr: &ibv_recv_wr) -> Result<(), Refusal> {
        check::shared_recv(wr)
    }
    fn queue(state: &mut State) -> &mut Queue {
        &mut state.recv
    }
}

/// A request that the provider does not get to see, and the one before it.
struct Stop<W> {
    previous: *mut W,
    at: *mut W,
    outcome: Outcome,
}

/// An object whose context is open, and the provider's function.
///
/// # Safety
/// * `object` is NULL or a valid object.
#[inline(always)]
unsafe fn find<T: Target>(object: *mut PointeeOf<T>) -> Option<(T::Object, &'static Device, OperationOf<T>)> {
    // SAFETY: the caller's promise.
    let object = unsafe { T::Object::new(object) }?;
    let device = Device::of(object.context())?;
    Some((object, device, T::real(device)?))
}

/// What the tables of the devices hold while only the refusals are on.
///
/// # Safety
/// * As for `ibv_post_send(3)`, `ibv_post_recv(3)` or `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn checked<T: Target>(
    object: *mut PointeeOf<T>,
    first: *mut T::Wr,
    bad: *mut *mut T::Wr,
) -> c_int {
    // Before all else: so there is least to be kept over the call that finds errno.
    let call = Call::begin();
    // SAFETY: the caller's promise.
    let Some((object, _, real)) = (unsafe { find::<T>(object) }) else { return errno::verb(Err(Errno::EINVAL)) };
    // What nearly all posts are: one request with nothing special in it.
    // SAFETY: a request of the caller's list.
    if let Some(wr) = unsafe { first.as_mut() }
        && wr.next().is_null()
        && T::is_plain(object, wr)
    {
        // SAFETY: the caller's promise.
        let result = unsafe { real(object.as_ptr(), first, bad) };
        return errno::verb(call.check(result, Errno::ENOMEM));
    }
    call.restore();
    // SAFETY: the caller's promise.
    unsafe { checked_list::<T>(object, real, first, bad) }
}

/// # Safety
/// * As for [`checked`].
#[inline(never)]
unsafe fn checked_list<T: Target>(
    object: T::Object,
    real: OperationOf<T>,
    first: *mut T::Wr,
    bad: *mut *mut T::Wr,
) -> c_int {
    let mut stop = None;
    let (mut previous, mut at) = (ptr::null_mut(), first);
    // SAFETY: requests of the caller's list.
    while let Some(wr) = unsafe { at.as_mut() } {
        // SAFETY: the caller's promise.
        if let Err(refusal) = unsafe { T::refuse(object, wr) } {
            stop = Some(Stop { previous, at, outcome: refusal.into() });
            break;
        }
        (previous, at) = (at, *wr.next());
    }
    // SAFETY: the caller's promise.
    let result = unsafe { forward::<T>(object, real, first, stop.as_ref(), bad) };
    errno::verb(result.map_err(|failure| failure.errno))
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Outcome {
        Outcome { errno: refusal.errno.get(), refused: Some(refusal.reason), injected: false }
    }
}

/// How a post failed.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// What the provider returned, if it was the provider that failed.
    result: Option<c_int>,
}

impl Failure {
    /// The provider never saw it.
    pub(crate) fn of_ours(outcome: &Outcome) -> Failure {
        Failure { errno: Errno::from_positive(outcome.errno), result: None }
    }
}

/// Calls the provider, and says what its result means.
pub(crate) fn ask(provider: impl FnOnce() -> c_int) -> Result<(), Failure> {
    let call = Call::begin();
    let result = provider();
    call.check(result, Errno::ENOMEM).map_err(|errno| Failure { errno, result: Some(result) })
}

/// Posts the part of the list before `stop`, or all of it; `*bad` points at the request that failed.
///
/// # Safety
/// * As for [`checked`]; `stop` is in the list.
unsafe fn forward<T: Target>(
    object: T::Object,
    real: OperationOf<T>,
    first: *mut T::Wr,
    stop: Option<&Stop<T::Wr>>,
    bad: *mut *mut T::Wr,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise, also for a shorter list.
    let post = || ask(|| unsafe { real(object.as_ptr(), first, bad) });
    let Some(stop) = stop else { return post() };
    // SAFETY: a request of the caller's list, or NULL where the first one is not to be posted.
    if let Some(previous) = unsafe { stop.previous.as_mut() } {
        *previous.next() = ptr::null_mut();
        let result = post();
        // SAFETY: as above.
        if let Some(previous) = unsafe { stop.previous.as_mut() } {
            *previous.next() = stop.at;
        }
        result?;
    }
    // SAFETY: room for a pointer, or NULL.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = stop.at;
    }
    Err(Failure::of_ours(&stop.outcome))
}

/// What they hold while posts are traced, counted, made to fail or remembered.
///
/// # Safety
/// * As for [`checked`].
pub(crate) unsafe extern "C" fn observed<T: Target>(
    object: *mut PointeeOf<T>,
    first: *mut T::Wr,
    bad: *mut *mut T::Wr,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some((object, device, real)) = (unsafe { find::<T>(object) }) else { return errno::verb(Err(Errno::EINVAL)) };
    if config::in_forked_child() {
        // SAFETY: the caller's promise.
        let result = unsafe { forward::<T>(object, real, first, None, bad) };
        return errno::verb(result.map_err(|failure| failure.errno));
    }
    let call = Call::begin();
    let config = config::get();
    let record = object.record(device);
    // SAFETY: the caller's promise.
    let stop = unsafe { find_stop::<T>(config, object, record, first) };
    let end = stop.as_ref().map_or(ptr::null_mut(), |stop| stop.at);
    // SAFETY: the caller's promise.
    let requests = unsafe { requests(first, end, object.is_ud()) };
    // Before the post: the completion may be polled before the post returns.
    let sequences = remember(config, record, T::queue, requests);

    let mut failed = ptr::null_mut();
    // SAFETY: the caller's promise.
    let result = unsafe { forward::<T>(object, real, first, stop.as_ref(), &mut failed) };
    if !failed.is_null()
        // SAFETY: room for a pointer, or NULL.
        && let Some(bad) = unsafe { bad.as_mut() }
    {
        *bad = failed;
    }
    let outcome = match (&stop, &result) {
        (_, Ok(())) => Outcome::ACCEPTED,
        (Some(stop), Err(_)) if failed == stop.at => stop.outcome,
        (_, Err(failure)) => Outcome::failed(failure.errno),
    };
    let left_by_provider = Call::begin();
    if result.is_err() || config.trace.is_some() {
        // SAFETY: the caller's promise.
        unsafe { tell_list::<T>(config, object, record, first, failed, outcome, sequences) };
    }
    // Writing a trace uses errno.
    call.restore();
    answer(config, result, left_by_provider)
}

/// What the program gets.
pub(crate) fn answer(config: &Config, result: Result<(), Failure>, left_by_provider: Call) -> c_int {
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
    object: T::Object,
    record: &'static Record,
    first: *mut T::Wr,
) -> Option<Stop<T::Wr>> {
    let (mut previous, mut at) = (ptr::null_mut(), first);
    // SAFETY: requests of the caller's list.
    while let Some(wr) = unsafe { at.as_mut() } {
        if config.check != Check::Off {
            // SAFETY: the caller's promise.
            if let Err(refusal) = unsafe { T::refuse(object, wr) } {
                return Some(Stop { previous, at, outcome: refusal.into() });
            }
        }
        if config.faults.any() || config.check == Check::Full {
            // SAFETY: the caller's promise.
            let request = unsafe { wr.describe(object.is_ud()) };
            if let Some(errno) = config.faults.post(request.op, record.qp_number()) {
                return Some(Stop { previous, at, outcome: Outcome::injected(errno) });
            }
            if config.check == Check::Full {
                rules::before_post(record, &request);
            }
        }
        (previous, at) = (at, *wr.next());
    }
    None
}

/// The requests of a list from `first` up to `end`.
///
/// # Safety
/// * As for [`checked`], for as long as the iterator is used; `end` is NULL or in the list.
unsafe fn requests<'a, W: WorkRequest + 'a>(
    first: *mut W,
    end: *mut W,
    is_ud: bool,
) -> impl Iterator<Item = Request<'a>> {
    let mut at = first;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        // SAFETY: a request of the caller's list.
        let wr = unsafe { at.as_mut() }?;
        at = *wr.next();
        // SAFETY: the caller's promise.
        Some(unsafe { wr.describe(is_ud) })
    })
}

/// Puts requests on record and counts them; returns their sequence numbers.
pub(crate) fn remember<'a>(
    config: &Config,
    record: &'static Record,
    queue: fn(&mut State) -> &mut Queue,
    requests: impl Iterator<Item = Request<'a>>,
) -> Range<u64> {
    let now = if config.timing { clock::monotonic() } else { 0 };
    let full = config.check == Check::Full;
    let mut state = record.lock();
    let start = queue(&mut state).next_sequence();
    for request in requests {
        let signaled = state.is_signaled(&request);
        queue(&mut state).push(&request, signaled, now, full);
        if config.stats.is_some() {
            state.stats(request.op).posted(&request);
        }
        if full {
            rules::after_post(record, &mut state, &request);
        }
    }
    start..queue(&mut state).next_sequence()
}

/// Takes requests off the record that the provider did not accept.
pub(crate) fn withdraw(
    config: &Config,
    record: &'static Record,
    queue: fn(&mut State) -> &mut Queue,
    sequences: Range<u64>,
) {
    let mut state = record.lock();
    let withdrawn = queue(&mut state).withdraw(sequences);
    if config.stats.is_some() {
        withdrawn.iter().for_each(|posted| state.stats(posted.op).withdrawn(posted));
    }
}

/// Traces what became of a request, and counts it if it failed.
pub(crate) fn tell(config: &Config, record: &'static Record, request: &Request, outcome: Outcome) {
    if config.stats.is_some() && outcome.errno != 0 {
        record.lock().stats(request.op).failed(stats::Failure::Errno(outcome.errno));
    }
    if let Some(trace) = &config.trace {
        trace.post(record.device.name(), record.place(), request, outcome);
    }
}

/// Tells of the requests up to the one that failed, and takes that and the rest off the record.
///
/// # Safety
/// * As for [`checked`]; `failed` is NULL or in the list.
unsafe fn tell_list<T: Target>(
    config: &Config,
    object: T::Object,
    record: &'static Record,
    first: *mut T::Wr,
    failed: *mut T::Wr,
    outcome: Outcome,
    sequences: Range<u64>,
) {
    // A failure that does not say where is one of the first.
    let failed = if outcome.errno != 0 && failed.is_null() { first } else { failed };
    let mut accepted = 0;
    // SAFETY: the caller's promise.
    for request in unsafe { requests(first, failed, object.is_ud()) } {
        tell(config, record, &request, Outcome::ACCEPTED);
        accepted += 1;
    }
    if outcome.errno != 0 {
        // SAFETY: a request of the caller's list; NULL if that was empty.
        if let Some(wr) = unsafe { failed.as_ref() } {
            // SAFETY: the caller's promise.
            tell(config, record, &unsafe { wr.describe(object.is_ud()) }, outcome);
        }
        withdraw(config, record, T::queue, sequences.start + accepted..sequences.end);
    }
}
