//! System calls that the kernel refuses to one thread of a test, as the profiles of containers do.

use std::io;

/// What an argument must be for a call to be refused; the lower 32 bits count.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// This number.
    Is(u32),
    /// One that has some of these bits.
    Has(u32),
}

/// From now on this thread's system call `number` fails with `errno`.
pub fn refuse(number: libc::c_long, errno: i32) {
    refuse_syscall(number, &[], errno).unwrap_or_else(|e| panic!("no filter: {e}"));
}

/// As [`refuse`], where argument number `index`, counted from 0, is such.
pub fn refuse_if(number: libc::c_long, index: usize, argument: Argument, errno: i32) {
    refuse_syscall(number, &[(index, argument)], errno).unwrap_or_else(|e| panic!("no filter: {e}"));
}

/// The most arguments that a filter looks at: a call has six.
const MOST: usize = 6;

/// As [`refuse`], where all of these arguments, whose numbers count from 0, are such. Makes system
/// calls only, so that a child may call it before it becomes a program.
///
/// # Errors
/// The filter was refused.
pub fn refuse_syscall(number: libc::c_long, arguments: &[(usize, Argument)], errno: i32) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Of struct seccomp_data the call's number is at 0; the arguments of 8 bytes begin at 16.
    let mut program =
        [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }; 4 + 2 * MOST];
    let len = 4 + 2 * arguments.len();
    let tests = [(0, EQUAL, number as u32)].into_iter().chain(arguments.iter().map(|&(index, argument)| {
        let at = 16 + 8 * index as u32;
        match argument {
            Argument::Is(value) => (at, EQUAL, value),
            Argument::Has(bits) => (at, ANY_BIT, bits),
        }
    }));
    for (n, (at, jump, operand)) in tests.enumerate() {
        // A test that fails leads to the last instruction, which allows the call.
        let to_the_last = (len - 1 - (2 * n + 1) - 1) as u8;
        program[2 * n] = libc::sock_filter { code: LOAD, jt: 0, jf: 0, k: at };
        program[2 * n + 1] = libc::sock_filter { code: jump, jt: 0, jf: to_the_last, k: operand };
    }
    program[len - 2].k = libc::SECCOMP_RET_ERRNO | errno as u32;
    let filter = libc::sock_fprog { len: len as u16, filter: program.as_mut_ptr() };
    let check = |r: libc::c_int| if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: takes numbers only, and changes this thread only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program lives until the call returns, which copies it; it changes this thread
    // only.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) })
}

#[cfg(test)]
mod tests;
