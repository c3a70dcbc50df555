//! Signals: taken one at a time by the main thread, or where a fault raises them.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// A set of signals that are blocked in all threads and waited for.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks `signals`. Call this before threads are started: they inherit the mask.
    pub fn block(signals: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t is a valid value to initialise, which sigemptyset does.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a sigset_t of this function.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for s in signals {
                libc::sigaddset(&raw mut set, *s);
            }
        }
        // SAFETY: the set was initialised above.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(Self { set }),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }

    /// Waits for the next signal, at most for `timeout`; None where that passed.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<libc::c_int>> {
        let ts = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(t.subsec_nanos()),
        });
        let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the set is initialised, and `ts` is null or points to a timespec that lives until
        // the call returns.
        let n = unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), ts) };
        if n > 0 {
            return Ok(Some(n));
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(e),
        }
    }
}

/// What is done about a SIGBUS: for its si_code, and the address of the fault. False blocks the
/// signal: the kernel ends the process when the fault comes again.
pub type BusErrorHandler = fn(libc::c_int, usize) -> bool;

static BUS_ERROR: OnceLock<BusErrorHandler> = OnceLock::new();

/// Has `handler` decide about each SIGBUS from now on, on the thread that it came to.
///
/// # Safety
/// `handler` keeps to what is allowed in signal context: atomics, and functions that make system
/// calls and nothing else.
///
/// # Errors
/// EEXIST where a handler was given before: that one stays. Those of sigaction(2).
pub unsafe fn on_bus_error(handler: BusErrorHandler) -> io::Result<()> {
    BUS_ERROR.set(handler).map_err(|_| io::Error::from_raw_os_error(libc::EEXIST))?;
    // SAFETY: an all-zero sigaction is valid; its fields are set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = take_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler was set above, and the caller answers for it.
    crate::check(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }).map(drop)
}

extern "C" fn take_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, whose address field is set for
    // SIGBUS.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if !BUS_ERROR.get().is_some_and(|handler| handler(code, at)) {
        // SAFETY: with SA_SIGINFO the kernel passes the context to which the thread returns, with
        // the signals that are blocked from then on.
        unsafe { libc::sigaddset(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, signal) };
    }
}

/// Runs `start` with all signals blocked: a thread that it starts never takes one.
pub fn without<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero sigset_ts are valid values to fill, which the calls below do.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are of this function.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let started = start();
    // SAFETY: the call above filled the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started
}

/// Has a signal do from now on what it does without a handler.
pub fn restore_default_action(signal: libc::c_int) {
    // SAFETY: runs no code of this program any more.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Has a call that exceeds the limit of a file's size (RLIMIT_FSIZE, `ulimit -f`) fail with EFBIG
/// from now on. Without this the kernel ends the process. Programs that this one starts have the
/// default action, which they would not if the signal was ignored.
pub fn outlive_file_size_limit() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGXFSZ, do_nothing as *const () as libc::sighandler_t) };
}

/// Those of `signals` that this program was not started to ignore, as nohup(1) does with SIGHUP.
pub fn not_ignored(signals: &[libc::c_int]) -> Vec<libc::c_int> {
    let is_ignored = |signal: &libc::c_int| {
        // SAFETY: all zeros is a valid sigaction.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: no new action is given, and the old one is written to this function's memory.
        let result = unsafe { libc::sigaction(*signal, std::ptr::null(), &raw mut now) };
        result == 0 && now.sa_sigaction == libc::SIG_IGN
    };
    signals.iter().copied().filter(|s| !is_ignored(s)).collect()
}

/// What ends a command in good order: SIGINT, SIGTERM and, unless they are ignored, SIGHUP and
/// SIGQUIT.
pub fn ending() -> Vec<libc::c_int> {
    [vec![libc::SIGINT, libc::SIGTERM], not_ignored(&[libc::SIGHUP, libc::SIGQUIT])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_handler_of_bus_errors_is_refused() {
        // SAFETY: the handlers do nothing.
        let install = |handler| unsafe { on_bus_error(handler) };
        install(|_, _| false).expect("the first one");
        let error = install(|_, _| true).expect_err("there is another one");
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    }

    #[test]
    fn signals_that_are_ignored_stay_so() {
        // SAFETY: ignoring a signal that nobody uses runs no code.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        assert_eq!(not_ignored(&[libc::SIGUSR1, libc::SIGUSR2]), [libc::SIGUSR1]);
        assert!(ending().starts_with(&[libc::SIGINT, libc::SIGTERM]));
    }
}
