//! What was asked for, read when the first device is opened, and what has to be done at the end.

use crate::clock;
use crate::completion;
use crate::cq_ex;
use crate::device::Operations;
use crate::exports;
use crate::fault::Faults;
use crate::output::Output;
use crate::post::{RecvQueue, SendQueue, SharedQueue, checked, observed};
use crate::rules;
use crate::stats;
use crate::trace::Trace;
use libc::{c_int, sem_t};
use rdma_verbs_contract::environment;
use rdma_verbs_options::{Check, Format, Options, variable};
use std::cell::UnsafeCell;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Config {
    pub(crate) check: Check,
    pub(crate) trace: Option<Trace>,
    pub(crate) stats: Option<Statistics>,
    pub(crate) faults: Faults,
    /// Whether requests are remembered: for the trace, the statistics, the faults or the rules.
    pub(crate) observing: bool,
    /// Whether somebody wants to know how long a request took.
    pub(crate) timing: bool,
    pub(crate) operations: Operations,
}

pub(crate) struct Statistics {
    output: Output,
    format: Format,
    started: u64,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// A child shares nothing with its parent's device, and its copy of our records is nobody's.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Run by the dynamic loader when the program ends: after its own exit handlers and static destructors, which may still
/// take completions and destroy what there is.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(read)
}

#[inline]
pub(crate) fn in_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

fn variable_value(name: &str) -> Option<OsString> {
    environment::value(&CString::new(name).ok()?).map(|value| OsString::from_vec(value.into_bytes()))
}

/// One line on standard error.
fn complain(line: &str) {
    Output::STDERR.write(&format!("librdma_verbs_preload: {line}\n"));
}

fn read() -> Config {
    let (options, refused) = Options::read(variable_value);
    for refused in refused {
        complain(&format!("{refused}; not used"));
    }
    let open = |variable: &str, sink: &rdma_verbs_options::Sink| match Output::open(sink) {
        Ok(output) => Some(output),
        Err(error) => {
            let value: &OsStr = sink.value();
            complain(&format!("{variable}={}: {error}; not used", value.to_string_lossy().escape_debug()));
            None
        }
    };
    let trace =
        options.trace.and_then(|to| Some(Trace { output: open(variable::TRACE, &to.sink)?, format: to.format }));
    let statistics = options.stats.and_then(|to| {
        Some(Statistics { output: open(variable::STATS, &to.sink)?, format: to.format, started: clock::monotonic() })
    });
    let full = options.check == Check::Full;
    let observing = full || trace.is_some() || statistics.is_some() || options.fault.is_some();
    let config = Config {
        check: options.check,
        timing: trace.is_some() || statistics.is_some(),
        faults: options.fault.map(Faults::new).unwrap_or_default(),
        observing,
        operations: operations(options.check, observing),
        trace,
        stats: statistics,
    };
    if observing {
        // SAFETY: a function without preconditions; the C library calls it in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    if config.stats.is_some()
        && let Err(error) = answer_sigusr2()
    {
        complain(&format!("no statistics on SIGUSR2: {error}"));
    }
    config
}

fn operations(check: Check, observing: bool) -> Operations {
    let none = Operations {
        post_send: None,
        post_recv: None,
        post_srq_recv: None,
        poll_cq: None,
        create_qp_ex: None,
        create_cq_ex: None,
    };
    if observing {
        Operations {
            post_send: Some(observed::<SendQueue>),
            post_recv: Some(observed::<RecvQueue>),
            post_srq_recv: Some(observed::<SharedQueue>),
            poll_cq: Some(completion::poll_cq),
            create_qp_ex: Some(exports::create_qp_ex),
            create_cq_ex: Some(cq_ex::create_cq_ex),
        }
    } else if check == Check::Off {
        none
    } else {
        Operations {
            post_send: Some(checked::<SendQueue>),
            post_recv: Some(checked::<RecvQueue>),
            post_srq_recv: Some(checked::<SharedQueue>),
            ..none
        }
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    // The thread that our handler wakes is the parent's.
    if handler_of_sigusr2() == Some(wake as *const () as usize) {
        // SAFETY: signal() may be called in the child of a fork.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
    }
}

extern "C" fn at_exit() {
    if in_forked_child() {
        return;
    }
    let Some(config) = CONFIG.get() else { return };
    if config.check == Check::Full {
        rules::at_exit();
    }
    if let Some(statistics) = &config.stats {
        statistics.write();
    }
}

impl Statistics {
    fn write(&self) {
        let seconds = (clock::monotonic() - self.started) as f64 / 1e9;
        self.output.write(&stats::render(self.format, &program_name(), seconds));
    }
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or(OsStr::new("?")).to_string_lossy().into_owned()
}

/// Posted by each SIGUSR2. Unlike a pipe it has no descriptors, which a program may close.
struct Semaphore(UnsafeCell<sem_t>);

// SAFETY: sem_post and sem_wait are for several threads.
unsafe impl Sync for Semaphore {}

static SIGUSR2_CAME: Semaphore = {
    // SAFETY: room that is initialised before it is used.
    let room = unsafe { MaybeUninit::zeroed().assume_init() };
    Semaphore(UnsafeCell::new(room))
};

extern "C" fn wake(_signal: c_int) {
    // SAFETY: initialised before this became a handler, which may call it.
    unsafe { libc::sem_post(SIGUSR2_CAME.0.get()) };
}

fn handler_of_sigusr2() -> Option<usize> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only asks, with room for the answer.
    let result = unsafe { libc::sigaction(libc::SIGUSR2, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: filled where the call succeeded.
    (result == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}

/// Writes the statistics whenever SIGUSR2 comes, unless the program has a use for the signal.
fn answer_sigusr2() -> io::Result<()> {
    if handler_of_sigusr2() != Some(libc::SIG_DFL) {
        return Ok(());
    }
    // SAFETY: room for a semaphore, which nobody uses yet.
    unsafe { libc::sem_init(SIGUSR2_CAME.0.get(), 0, 0) };
    with_signals_blocked(|| std::thread::Builder::new().name("rdma-verbs".into()).spawn(statistics_thread).map(drop))?;
    // SAFETY: integers and a function pointer, for which 0 is a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = wake as *const () as usize;
    // The program's system calls do not notice.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a handler that does what handlers may, and no room for the old action.
    match unsafe { libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn statistics_thread() {
    loop {
        // SAFETY: a semaphore that stays.
        if unsafe { libc::sem_wait(SIGUSR2_CAME.0.get()) } == 0
            && let Some(statistics) = CONFIG.get().and_then(|config| config.stats.as_ref())
        {
            statistics.write();
        }
    }
}

/// Runs `start` so that a thread it starts never takes a signal that is meant for the program.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: room for a set.
    let _: c_int = unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: a filled set, and room for another.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
    let result = start();
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}
