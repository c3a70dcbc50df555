//! System calls that the kernel refuses to one thread of a test, as the profiles of containers do.

/// From now on this thread's system call `number` fails with `errno`.
pub fn refuse(number: libc::c_long, errno: i32) {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS, seccomp_data.nr at 0
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        code(LOAD_NUMBER, 0, 0, 0),
        code(JUMP_EQUAL, 0, 1, number as u32),
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
