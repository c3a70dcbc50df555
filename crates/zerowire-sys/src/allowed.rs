//! System calls that a confined process may make. Lists of them stand beside the code that makes
//! the calls.

/// A system call that is allowed, with what its arguments may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedCall {
    /// `SYS_…`.
    pub number: libc::c_long,
    /// What its arguments may be.
    pub only: Only,
    /// Where it stands, its first argument is a descriptor with a number below this one.
    pub below: Option<u32>,
}

impl AllowedCall {
    const fn new(number: libc::c_long, only: Only) -> Self {
        Self { number, only, below: None }
    }

    /// The same, for descriptors with numbers below `number`.
    #[must_use]
    pub const fn on_descriptors_below(self, number: u32) -> Self {
        Self { below: Some(number), ..self }
    }
}

/// What the arguments of an allowed call may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Anything.
    Any,
    /// Argument number `index`, counted from 0, is one of these; its lower 32 bits count.
    Values {
        /// Which one.
        index: u8,
        /// What it may be.
        values: &'static [u32],
    },
    /// Of the bits in `mask`, argument number `index` has exactly those in `set`.
    Bits {
        /// Which one.
        index: u8,
        /// The bits that count.
        mask: u64,
        /// Those of them that it has.
        set: u64,
    },
    /// Nothing: it fails with ENOSYS, for callers that know another way.
    Absent,
}

/// Allows a call with any arguments.
pub const fn any(number: libc::c_long) -> AllowedCall {
    AllowedCall::new(number, Only::Any)
}

/// Allows a call if argument number `index` is one of `values`.
pub const fn values(number: libc::c_long, index: u8, values: &'static [u32]) -> AllowedCall {
    AllowedCall::new(number, Only::Values { index, values })
}

/// Allows a call if argument number `index` has none of these bits.
pub const fn without(number: libc::c_long, index: u8, bits: libc::c_int) -> AllowedCall {
    AllowedCall::new(number, Only::Bits { index, mask: bits as u64, set: 0 })
}

/// Has a call fail with ENOSYS.
pub const fn absent(number: libc::c_long) -> AllowedCall {
    AllowedCall::new(number, Only::Absent)
}

/// Flags of clone(2) that make a process, or a namespace.
const APART: libc::c_int = libc::CLONE_THREAD
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;

/// What every program needs that starts threads, waits, allocates and logs. It opens nothing and
/// starts no process.
pub const OF_A_PROGRAM: &[AllowedCall] = &[
    any(libc::SYS_read),
    any(libc::SYS_write),
    any(libc::SYS_close),
    any(libc::SYS_brk),
    any(libc::SYS_munmap),
    // Without it the C library copies what grows.
    absent(libc::SYS_mremap),
    any(libc::SYS_madvise),
    // No memory is code.
    without(libc::SYS_mmap, 2, libc::PROT_EXEC),
    without(libc::SYS_mprotect, 2, libc::PROT_EXEC),
    // Threads. What clone3 would do cannot be seen, and the C library goes on with clone.
    absent(libc::SYS_clone3),
    AllowedCall::new(
        libc::SYS_clone,
        Only::Bits { index: 0, mask: APART as u64, set: libc::CLONE_THREAD as u64 },
    ),
    any(libc::SYS_futex),
    // The C library ends a process whose threads lose it.
    any(libc::SYS_rseq),
    // No mutex is robust.
    absent(libc::SYS_set_robust_list),
    // Spin loops of std then spin a little longer.
    absent(libc::SYS_sched_yield),
    // The C library counts processors by it, and does without.
    absent(libc::SYS_sched_getaffinity),
    // A thread's name.
    values(libc::SYS_prctl, 0, &[libc::PR_SET_NAME as u32]),
    // std asks for these when a thread starts and in its reports, and goes on without.
    absent(libc::SYS_sigaltstack),
    absent(libc::SYS_gettid),
    // Handlers are installed before. The C library's own one is for a change of the user.
    absent(libc::SYS_rt_sigaction),
    any(libc::SYS_rt_sigprocmask),
    any(libc::SYS_rt_sigreturn),
    any(libc::SYS_exit),
    any(libc::SYS_exit_group),
    // Time. Clocks are read without a call where the kernel's clock allows it.
    any(libc::SYS_clock_gettime),
    // Threads wait for a time by futex(2), or by ppoll(2) without descriptors.
    any(libc::SYS_restart_syscall),
    any(libc::SYS_ppoll),
    any(libc::SYS_getrandom),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_stands_once_in_a_list() {
        let mut numbers: Vec<_> = OF_A_PROGRAM.iter().map(|call| call.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), OF_A_PROGRAM.len());
    }

    #[test]
    fn clone_makes_threads_only() {
        let clone = OF_A_PROGRAM.iter().find(|call| call.number == libc::SYS_clone).expect("clone");
        let Only::Bits { index: 0, mask, set } = clone.only else { panic!("{clone:?}") };
        let allowed = |flags: libc::c_int| flags as u64 & mask == set;
        // Those of glibc's pthread_create.
        assert!(allowed(0x003d_0f00));
        assert!(!allowed(libc::SIGCHLD));
        assert!(!allowed(0x003d_0f00 | libc::CLONE_NEWNET));
    }
}
