//! The verbs below: which library they come from, and how they are called.
//!
//! The data path (posting, polling, arming) lives in the operations table of an object's device context, as
//! libibverbs's own inlines find it; a provider library may export it under its usual names and then comes
//! first. The control functions are exported by libibverbs, or by whatever library stands in for it.

use crate::environment;
use crate::errno::{Call, Errno};
use crate::output;
use crate::sys::{ibv_comp_channel, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};
use crate::view::{Cq, Mr, Qp, Srq};
use libc::{c_int, c_uint, c_void, size_t};
use once_cell::sync::OnceCell;
use std::cell::LazyCell;
use std::ffi::CStr;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
type GetCqEvent = unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
type AckCqEvents = unsafe extern "C" fn(*mut ibv_cq, c_uint);

/// The environment variable that names the provider library, by path or soname. Empty counts as unset.
const VARIABLE: &CStr = c"RDMA_VERBS_PROVIDER";
/// Where the process's own verbs come from when no definition is visible yet.
const LIBIBVERBS: &CStr = c"libibverbs.so.1";

/// The functions of the provider.
pub(crate) struct Provider {
    // None: the object's operations table has it.
    post_send: Option<PostSend>,
    post_recv: Option<PostRecv>,
    post_srq_recv: Option<PostSrqRecv>,
    poll_cq: Option<PollCq>,
    req_notify_cq: Option<ReqNotifyCq>,
    // Err: what a call that needs it is answered.
    reg_mr: Result<RegMr, Errno>,
    dereg_mr: Result<DeregMr, Errno>,
    get_cq_event: Result<GetCqEvent, Errno>,
    ack_cq_events: Result<AckCqEvents, Errno>,
}

/// The outcome of loading, good or bad: a failure is not tried again on every post.
static PROVIDER: OnceCell<Result<Provider, Errno>> = OnceCell::new();

impl Provider {
    /// The provider of this process, loaded by the first call.
    #[inline]
    pub(crate) fn get() -> Result<&'static Provider, Errno> {
        match PROVIDER.get() {
            Some(outcome) => outcome.as_ref().map_err(|reason| *reason),
            None => Provider::first(),
        }
    }

    #[cold]
    fn first() -> Result<&'static Provider, Errno> {
        // The loader uses errno.
        let call = Call::begin();
        // Not get_or_init: constructors that the loader runs may come back here, on this thread or behind its lock, and
        // so may the child of a fork. Of several threads that load at once, which is harmless, one is heard.
        let (outcome, complaint) = match load() {
            Ok(provider) => (Ok(provider), None),
            Err(complaint) => (Err(Errno::ELIBACC), Some(complaint)),
        };
        let outcome = match PROVIDER.try_insert(outcome) {
            Ok(ours) => {
                if let Some(complaint) = complaint {
                    output::write(libc::STDERR_FILENO, &complaint);
                }
                ours
            }
            Err((theirs, _)) => theirs,
        };
        call.restore();
        outcome.as_ref().map_err(|reason| *reason)
    }

    #[inline]
    pub(crate) fn post_send(&self, qp: Qp, wr: &mut ibv_send_wr) -> Result<(), Errno> {
        // SAFETY: `ops` is plain data that drivers fill before a program sees the context.
        let table = || unsafe { (*qp.context().as_ptr()).ops.post_send };
        let post = self.post_send.or_else(table).ok_or(Errno::EOPNOTSUPP)?;
        let mut bad = MaybeUninit::uninit();
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the queue pair and the list; the request is complete.
        let result = unsafe { post(qp.as_ptr(), wr, bad.as_mut_ptr()) };
        call.check(result, Errno::ENOMEM)
    }

    #[inline]
    pub(crate) fn post_recv(&self, qp: Qp, wr: &mut ibv_recv_wr) -> Result<(), Errno> {
        // SAFETY: `ops` is plain data that drivers fill before a program sees the context.
        let table = || unsafe { (*qp.context().as_ptr()).ops.post_recv };
        let post = self.post_recv.or_else(table).ok_or(Errno::EOPNOTSUPP)?;
        let mut bad = MaybeUninit::uninit();
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the queue pair and the list; the request is complete.
        let result = unsafe { post(qp.as_ptr(), wr, bad.as_mut_ptr()) };
        call.check(result, Errno::ENOMEM)
    }

    #[inline]
    pub(crate) fn post_srq_recv(&self, srq: Srq, wr: &mut ibv_recv_wr) -> Result<(), Errno> {
        // SAFETY: `ops` is plain data that drivers fill before a program sees the context.
        let table = || unsafe { (*srq.context().as_ptr()).ops.post_srq_recv };
        let post = self.post_srq_recv.or_else(table).ok_or(Errno::EOPNOTSUPP)?;
        let mut bad = MaybeUninit::uninit();
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the queue and the list; the request is complete.
        let result = unsafe { post(srq.as_ptr(), wr, bad.as_mut_ptr()) };
        call.check(result, Errno::ENOMEM)
    }

    /// Asks for one completion; the provider's own answer, which is no errno convention.
    #[inline]
    pub(crate) fn poll_cq(&self, cq: Cq, wc: NonNull<ibv_wc>) -> Result<c_int, Errno> {
        // SAFETY: `ops` is plain data that drivers fill before a program sees the context.
        let table = || unsafe { (*cq.context().as_ptr()).ops.poll_cq };
        let poll = self.poll_cq.or_else(table).ok_or(Errno::EOPNOTSUPP)?;
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the queue and for room for one completion.
        let result = unsafe { poll(cq.as_ptr(), 1, wc.as_ptr()) };
        call.restore();
        Ok(result)
    }

    /// Arms the queue for its next completion of any kind.
    #[inline]
    pub(crate) fn req_notify_cq(&self, cq: Cq) -> Result<(), Errno> {
        // SAFETY: `ops` is plain data that drivers fill before a program sees the context.
        let table = || unsafe { (*cq.context().as_ptr()).ops.req_notify_cq };
        let arm = self.req_notify_cq.or_else(table).ok_or(Errno::EOPNOTSUPP)?;
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the queue.
        let result = unsafe { arm(cq.as_ptr(), 0) };
        call.check(result, Errno::EIO)
    }

    /// Waits for an event of any queue on `channel` and acknowledges it to the queue that it belongs to.
    pub(crate) fn wait_for_cq_event(&self, channel: NonNull<ibv_comp_channel>) -> Result<(), Errno> {
        // Both, before the wait: an event that cannot be acknowledged would keep its queue from being destroyed.
        let get = self.get_cq_event?;
        let ack = self.ack_cq_events?;
        let mut cq = ptr::null_mut();
        let mut context = ptr::null_mut();
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the channel.
        let result = unsafe { get(channel.as_ptr(), &mut cq, &mut context) };
        call.check(result, Errno::EIO)?;
        if cq.is_null() {
            return Err(Errno::EIO);
        }
        let call = Call::begin();
        // SAFETY: the queue that the provider has just named.
        unsafe { ack(cq, 1) };
        call.restore();
        Ok(())
    }

    pub(crate) fn reg_mr(
        &self,
        pd: NonNull<ibv_pd>,
        addr: *mut c_void,
        length: size_t,
        access: c_int,
    ) -> Result<*mut ibv_mr, Errno> {
        let register = self.reg_mr?;
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the protection domain; a bad range is the kernel's to refuse.
        let mr = unsafe { register(pd.as_ptr(), addr, length, access) };
        call.object(mr, Errno::EIO)
    }

    pub(crate) fn dereg_mr(&self, mr: Mr) -> Result<(), Errno> {
        let deregister = self.dereg_mr?;
        let call = Call::begin();
        // SAFETY: the entry's caller vouches for the region.
        let result = unsafe { deregister(mr.as_ptr()) };
        call.check(result, Errno::EIO)
    }
}

/// A handle of `dlsym`. It is never closed: functions found in it stay for the life of the process.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    /// Whatever is visible in the process, interposers first.
    const PROCESS: Library = Library(libc::RTLD_DEFAULT);

    fn open(name: &CStr) -> Option<Library> {
        // SAFETY: a C string; the constructors that run are those of the library that was asked for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(|handle| Library(handle.as_ptr()))
    }

    /// The default version of a function, which is the one whose structs the headers describe.
    ///
    /// # Safety
    /// * `F` is the function pointer type of every function of that name.
    unsafe fn function<F>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a C string, and a handle that is never closed.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: POSIX lets dlsym's result be used as a function pointer; its type is the caller's promise.
        (!symbol.is_null()).then(|| unsafe { mem::transmute_copy(&symbol) })
    }
}

/// Where the functions of a provider are found.
struct Source {
    /// Asked for every function.
    library: Option<Library>,
    /// Opened and asked for the control functions that `library` does not have; or what is answered for them.
    behind: LazyCell<Result<Library, Errno>>,
}

impl Source {
    /// The library of that name, and nothing else.
    fn named(library: Library) -> Source {
        Source { library: Some(library), behind: LazyCell::new(|| Err(Errno::EOPNOTSUPP)) }
    }

    /// The process's own verbs.
    fn process() -> Source {
        Source {
            library: Some(Library::PROCESS),
            behind: LazyCell::new(|| Library::open(LIBIBVERBS).ok_or(Errno::ELIBACC)),
        }
    }

    /// The operations tables alone. In a static program dlopen would bring a second libibverbs, and the
    /// program's objects belong to the first.
    fn tables() -> Source {
        Source { library: None, behind: LazyCell::new(|| Err(Errno::ELIBACC)) }
    }

    /// # Safety
    /// * As for [`Library::function`].
    unsafe fn data_path<F>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller's promise.
        self.library.and_then(|library| unsafe { library.function(name) })
    }

    /// # Safety
    /// * As for [`Library::function`].
    unsafe fn control<F>(&self, name: &CStr) -> Result<F, Errno> {
        // SAFETY: the caller's promise.
        if let Some(function) = self.library.and_then(|library| unsafe { library.function(name) }) {
            return Ok(function);
        }
        let library = (*self.behind)?;
        // SAFETY: the caller's promise.
        unsafe { library.function(name) }.ok_or(Errno::EOPNOTSUPP)
    }
}

/// Finds the provider, or says on one line why the one that was named does not load.
fn load() -> Result<Provider, String> {
    let is_static = program_is_static();
    let source = match environment::value(VARIABLE) {
        None if is_static => Source::tables(),
        None => Source::process(),
        Some(name) if is_static => return Err(complaint(&name, "a static program cannot load a library")),
        Some(name) => match Library::open(&name) {
            Some(library) => Source::named(library),
            None => return Err(complaint(&name, &loader_error())),
        },
    };
    Ok(Provider {
        // SAFETY: the type of this verb in <infiniband/verbs.h>; so in the lines below.
        post_send: unsafe { source.data_path(c"ibv_post_send") },
        // SAFETY: as above.
        post_recv: unsafe { source.data_path(c"ibv_post_recv") },
        // SAFETY: as above.
        post_srq_recv: unsafe { source.data_path(c"ibv_post_srq_recv") },
        // SAFETY: as above.
        poll_cq: unsafe { source.data_path(c"ibv_poll_cq") },
        // SAFETY: as above.
        req_notify_cq: unsafe { source.data_path(c"ibv_req_notify_cq") },
        // SAFETY: as above.
        reg_mr: unsafe { source.control(c"ibv_reg_mr") },
        // SAFETY: as above.
        dereg_mr: unsafe { source.control(c"ibv_dereg_mr") },
        // SAFETY: as above.
        get_cq_event: unsafe { source.control(c"ibv_get_cq_event") },
        // SAFETY: as above.
        ack_cq_events: unsafe { source.control(c"ibv_ack_cq_events") },
    })
}

#[cfg(target_pointer_width = "32")]
type ProgramHeader = libc::Elf32_Phdr;
#[cfg(target_pointer_width = "64")]
type ProgramHeader = libc::Elf64_Phdr;

/// Whether the program was linked without a dynamic loader, which its program headers would name.
fn program_is_static() -> bool {
    // SAFETY: has no preconditions; so below.
    let table = unsafe { libc::getauxval(libc::AT_PHDR) };
    // SAFETY: as above.
    let count = unsafe { libc::getauxval(libc::AT_PHNUM) };
    let table = ptr::with_exposed_provenance::<ProgramHeader>(table as usize);
    if table.is_null() {
        return false;
    }
    // SAFETY: where the kernel, or the loader that was run as a command, put the program's own headers.
    let headers = unsafe { slice::from_raw_parts(table, count as usize) };
    !headers.iter().any(|header| header.p_type == libc::PT_INTERP)
}

/// Why the last dlopen failed.
fn loader_error() -> String {
    // SAFETY: has no preconditions.
    match NonNull::new(unsafe { libc::dlerror() }) {
        // SAFETY: a C string that stays until this thread's next call of the loader.
        Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned(),
        None => "unknown error of the loader".to_owned(),
    }
}

fn complaint(name: &CStr, why: &str) -> String {
    let [variable, name] = [VARIABLE, name].map(CStr::to_string_lossy);
    format!("librdma_verbs: {variable}={name} does not load: {why}").replace(char::is_control, " ") + "\n"
}
