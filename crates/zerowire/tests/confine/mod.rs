//! System calls that the kernel refuses to one thread of a test, as the profiles of containers do.
#![allow(dead_code, reason = "each test program uses a part of it")]

/// What an argument must be for a call to be refused; the lower 32 bits count.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// Anything.
    Any,
    /// This number.
    Is(u32),
    /// One that has some of these bits.
    Has(u32),
}

/// From now on this thread's system call `number` fails with `errno`.
pub fn refuse(number: libc::c_long, errno: i32) {
    refuse_if(number, 0, Argument::Any, errno);
}

/// As [`refuse`], where argument number `index`, counted from 0, is such.
pub fn refuse_if(number: libc::c_long, index: usize, argument: Argument, errno: i32) {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS: of seccomp_data nr is at 0, args[0] at 16
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const JUMP_NOT_LESS: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const JUMP_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (jump, operand) = match argument {
        Argument::Any => (JUMP_NOT_LESS, 0),
        Argument::Is(value) => (JUMP_EQUAL, value),
        Argument::Has(bits) => (JUMP_SET, bits),
    };
    let mut program = [
        code(LOAD, 0, 0, 0),
        code(JUMP_EQUAL, 0, 3, number as u32),
        code(LOAD, 0, 0, 16 + 8 * index as u32),
        code(jump, 0, 1, operand),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives across the calls, which copy it; they change this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}
