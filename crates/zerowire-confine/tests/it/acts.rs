//! What a process must not be able to do when it is confined: each act once, harmless where it
//! succeeds, with the layer that refuses it behind the list of system calls.

use std::mem::size_of;
use std::ptr::null;

use zerowire_confine::Layer;

use crate::stage::Stage;

/// Tries an act. The error is the errno.
pub type Attempt = fn(&Stage) -> Result<(), i32>;

/// Something that a confined process must not be able to do.
pub struct Act {
    /// What it is.
    pub name: &'static str,
    /// Tries it.
    pub attempt: Attempt,
    /// The layer that refuses it where any system call may be made, and the errnos by which. None:
    /// the list of system calls alone refuses it everywhere.
    pub behind: Option<(Layer, &'static [i32])>,
}

const fn act(name: &'static str, attempt: Attempt, layer: Layer, errnos: &'static [i32]) -> Act {
    Act { name, attempt, behind: Some((layer, errnos)) }
}

const fn by_list(name: &'static str, attempt: Attempt) -> Act {
    Act { name, attempt, behind: None }
}

/// The act with this name.
pub fn named(name: &str) -> &'static Act {
    ACTS.iter().find(|a| a.name == name).unwrap_or_else(|| panic!("no act is named '{name}'"))
}

/// Makes a system call, or says the errno.
pub fn call(number: libc::c_long, arguments: &[usize]) -> Result<usize, i32> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: each act of this file passes numbers, or addresses of memory that lives until the
    // call returns and is as long as the call wants it.
    unsafe { zerowire_sys::syscall::call(number, all) }
}

fn done(number: libc::c_long, arguments: &[usize]) -> Result<(), i32> {
    call(number, arguments).map(drop)
}

fn text(text: &std::ffi::CStr) -> usize {
    text.as_ptr() as usize
}

const HERE: usize = libc::AT_FDCWD as usize;

const EPERM: &[i32] = &[libc::EPERM];
const NO_ENTRY: &[i32] = &[libc::ENOENT];
const NO_PROCESS: &[i32] = &[libc::ESRCH];
/// For calls that a kernel need not have.
const NOT_ALLOWED: &[i32] = &[libc::EPERM, libc::ENOSYS];

pub const ACTS: &[Act] = &[
    // Files.
    act("open a file", |_| done(libc::SYS_openat, &[HERE, text(c"/etc/passwd"), 0]), Layer::Files, NO_ENTRY),
    act("open by the old call", |_| done(libc::SYS_open, &[text(c"/etc/passwd"), 0]), Layer::Files, NO_ENTRY),
    act("open by openat2", openat2, Layer::Files, NO_ENTRY),
    act(
        "find processes in /proc",
        |_| done(libc::SYS_access, &[text(c"/proc/self"), 0]),
        Layer::Files,
        NO_ENTRY,
    ),
    act("reach a unix socket by its path", connect_path, Layer::Files, NO_ENTRY),
    act("run a program", run_program, Layer::Files, NO_ENTRY),
    act(
        "run a program relative to a folder",
        |_| done(libc::SYS_execveat, &[HERE, text(c"/bin/true"), 0, 0, 0]),
        Layer::Files,
        NO_ENTRY,
    ),
    act(
        "make a folder",
        |_| done(libc::SYS_mkdir, &[text(c"/zerowire"), 0o700]),
        Layer::Files,
        &[libc::EROFS, libc::EACCES],
    ),
    act("change a file of root's", change_file, Layer::User, EPERM),
    act(
        "make a device",
        |_| done(libc::SYS_mknod, &[text(c"/null"), (libc::S_IFCHR | 0o600) as usize, 0x103]),
        Layer::Capabilities,
        &[libc::EPERM, libc::EROFS, libc::EACCES],
    ),
    act("mount", mount, Layer::Capabilities, EPERM),
    act(
        "unmount",
        |_| done(libc::SYS_umount2, &[text(c"/"), libc::MNT_DETACH as usize]),
        Layer::Capabilities,
        EPERM,
    ),
    act("open a file system", |_| done(libc::SYS_fsopen, &[text(c"tmpfs"), 0]), Layer::Capabilities, EPERM),
    act("change the root", |_| done(libc::SYS_chroot, &[text(c"/")]), Layer::Capabilities, EPERM),
    act(
        "exchange the root",
        |_| done(libc::SYS_pivot_root, &[text(c"/"), text(c"/")]),
        Layer::Capabilities,
        EPERM,
    ),
    by_list("watch files", |_| done(libc::SYS_inotify_init1, &[0])),
    by_list("watch file systems", |_| done(libc::SYS_fanotify_init, &[0, 0])),
    by_list("open by a handle", |_| done(libc::SYS_open_by_handle_at, &[HERE, 0, 0])),
    // Other processes.
    act(
        "signal another process",
        |s| done(libc::SYS_kill, &[s.victim as usize, 0]),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "signal a thread of another process",
        |s| done(libc::SYS_tgkill, &[s.victim as usize, s.victim as usize, 0]),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "debug another process",
        |s| done(libc::SYS_ptrace, &[libc::PTRACE_SEIZE as usize, s.victim as usize, 0, 0]),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "read another process's memory",
        |s| copy_memory(libc::SYS_process_vm_readv, s),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "write another process's memory",
        |s| copy_memory(libc::SYS_process_vm_writev, s),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "hold another process",
        |s| done(libc::SYS_pidfd_open, &[s.victim as usize, 0]),
        Layer::Processes,
        NO_PROCESS,
    ),
    act(
        "limit another process",
        |s| done(libc::SYS_prlimit64, &[s.victim as usize, libc::RLIMIT_CORE as usize, 0, 0]),
        Layer::Processes,
        NO_PROCESS,
    ),
    by_list("take another process's descriptor", |_| done(libc::SYS_pidfd_getfd, &[usize::MAX, 0, 0])),
    by_list("start a process", start_process),
    by_list("start a process by clone3", start_by_clone3),
    by_list("start a process by fork", |_| exit_if_child(call(libc::SYS_fork, &[]))),
    // Namespaces.
    act(
        "make a mount namespace",
        |_| done(libc::SYS_unshare, &[libc::CLONE_NEWNS as usize]),
        Layer::Capabilities,
        EPERM,
    ),
    act(
        "make a network namespace",
        |_| done(libc::SYS_unshare, &[libc::CLONE_NEWNET as usize]),
        Layer::Capabilities,
        EPERM,
    ),
    by_list("make a user namespace", |_| done(libc::SYS_unshare, &[libc::CLONE_NEWUSER as usize])),
    by_list("enter a namespace", |_| done(libc::SYS_setns, &[usize::MAX, 0])),
    // The network.
    act("reach a program on the loopback", connect_tcp, Layer::Network, &[libc::ENETUNREACH]),
    act("reach an abstract unix socket", connect_abstract, Layer::Network, &[libc::ECONNREFUSED]),
    act("make a raw socket", |_| socket(libc::AF_INET, libc::SOCK_RAW, 1), Layer::Capabilities, EPERM),
    act("make a packet socket", |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0), Layer::Capabilities, EPERM),
    by_list("ask by netlink", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)),
    by_list("make a socket", |_| socket(libc::AF_INET, libc::SOCK_DGRAM, 0)),
    // The user and its rights.
    act("become root", |_| done(libc::SYS_setresuid, &[0, 0, 0]), Layer::User, EPERM),
    act("take a group", take_group, Layer::Capabilities, EPERM),
    act("gain rights by a program", gain_rights, Layer::NoNewPrivileges, EPERM),
    act("leave a core file", leave_core, Layer::Dumps, EPERM),
    act(
        "go before all others",
        |_| done(libc::SYS_setpriority, &[0, 0, -20_isize as usize]),
        Layer::Capabilities,
        &[libc::EACCES, libc::EPERM],
    ),
    act("attach another's shared memory", attach_memory, Layer::Ipc, &[libc::EINVAL, libc::EIDRM]),
    by_list("open a message queue", |_| done(libc::SYS_mq_open, &[text(c"zerowire"), 0, 0, 0])),
    by_list("ask for keys", |_| done(libc::SYS_keyctl, &[0, -3_isize as usize, 0])),
    by_list("add a key", |_| done(libc::SYS_add_key, &[0, 0, 0, 0, 0])),
    // The machine.
    act(
        "load a module",
        |_| done(libc::SYS_init_module, &[0, 0, text(c"")]),
        Layer::Capabilities,
        NOT_ALLOWED,
    ),
    act(
        "load a module's file",
        |_| done(libc::SYS_finit_module, &[usize::MAX, text(c""), 0]),
        Layer::Capabilities,
        NOT_ALLOWED,
    ),
    act("load a kernel", |_| done(libc::SYS_kexec_load, &[0, 0, 0, 0]), Layer::Capabilities, NOT_ALLOWED),
    // Its first argument would be refused as wrong, but rights are looked at before.
    act("end the machine", |_| done(libc::SYS_reboot, &[0, 0, 0, 0]), Layer::Capabilities, EPERM),
    act("use a swap file", |_| done(libc::SYS_swapon, &[0, 0]), Layer::Capabilities, NOT_ALLOWED),
    act("name the machine", |_| done(libc::SYS_sethostname, &[0, usize::MAX]), Layer::Capabilities, EPERM),
    act("use ports of devices", |_| done(libc::SYS_ioperm, &[0, 1, 1]), Layer::Capabilities, NOT_ALLOWED),
    by_list("set the clock", |_| done(libc::SYS_clock_settime, &[0, 0])),
    by_list("read the kernel's log", |_| done(libc::SYS_syslog, &[10, 0, 0])),
    by_list("load a BPF program", |_| done(libc::SYS_bpf, &[5, 0, 0])),
    by_list("count events", |_| done(libc::SYS_perf_event_open, &[0, 0, usize::MAX, usize::MAX, 0])),
    by_list("serve page faults", |_| done(libc::SYS_userfaultfd, &[1])),
    by_list("make an io_uring", make_io_uring),
    by_list("be another kind of program", |_| done(libc::SYS_personality, &[0xffff_ffff])),
    by_list("run a program from memory", run_from_memory),
    by_list("map code", |_| {
        let (len, code) = (4096, (libc::PROT_READ | libc::PROT_EXEC) as usize);
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        done(libc::SYS_mmap, &[0, len, code, flags, usize::MAX, 0])
    }),
    by_list("make memory code", |_| done(libc::SYS_mprotect, &[0, 0, libc::PROT_EXEC as usize])),
    by_list("type into a terminal", |_| done(libc::SYS_ioctl, &[0, libc::TIOCSTI as usize, text(c" ")])),
];

fn openat2(_: &Stage) -> Result<(), i32> {
    let how = [0_u64; 3];
    done(libc::SYS_openat2, &[HERE, text(c"/etc/passwd"), how.as_ptr() as usize, size_of::<[u64; 3]>()])
}

fn run_program(_: &Stage) -> Result<(), i32> {
    let arguments = [text(c"/bin/true"), 0];
    done(libc::SYS_execve, &[text(c"/bin/true"), arguments.as_ptr() as usize, 0])
}

fn run_from_memory(_: &Stage) -> Result<(), i32> {
    let file = call(libc::SYS_memfd_create, &[text(c"program"), 0])?;
    done(libc::SYS_execveat, &[file, text(c""), 0, 0, libc::AT_EMPTY_PATH as usize])
}

fn change_file(stage: &Stage) -> Result<(), i32> {
    done(libc::SYS_fchmod, &[stage.descriptor() as usize, 0o600])
}

fn mount(_: &Stage) -> Result<(), i32> {
    done(libc::SYS_mount, &[text(c"none"), text(c"/"), text(c"tmpfs"), 0, 0])
}

fn copy_memory(number: libc::c_long, stage: &Stage) -> Result<(), i32> {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: 4096 as *mut libc::c_void, iov_len: 1 };
    let (here, there) = (&raw const here as usize, &raw const there as usize);
    done(number, &[stage.victim as usize, here, 1, there, 1, 0])
}

/// The child of a clone that went through ends here.
fn exit_if_child(result: Result<usize, i32>) -> Result<(), i32> {
    if result == Ok(0) {
        // SAFETY: ends the process that the act has started.
        unsafe { libc::_exit(0) };
    }
    result.map(drop)
}

fn start_process(_: &Stage) -> Result<(), i32> {
    exit_if_child(call(libc::SYS_clone, &[libc::SIGCHLD as usize, 0, 0, 0, 0]))
}

fn start_by_clone3(_: &Stage) -> Result<(), i32> {
    // struct clone_args of its first version: exit_signal is the fifth field.
    let mut arguments = [0_u64; 8];
    arguments[4] = libc::SIGCHLD as u64;
    exit_if_child(call(libc::SYS_clone3, &[arguments.as_ptr() as usize, size_of::<[u64; 8]>()]))
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<(), i32> {
    done(libc::SYS_socket, &[family as usize, kind as usize, protocol as usize])
}

/// Connects a new socket to an address of so many bytes.
fn connect(family: i32, address: &[u8]) -> Result<(), i32> {
    let fd = call(libc::SYS_socket, &[family as usize, libc::SOCK_STREAM as usize, 0])?;
    done(libc::SYS_connect, &[fd, address.as_ptr() as usize, address.len()])
}

fn connect_tcp(stage: &Stage) -> Result<(), i32> {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&stage.tcp_port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    connect(libc::AF_INET, &address)
}

fn connect_abstract(stage: &Stage) -> Result<(), i32> {
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    connect(libc::AF_UNIX, &[&family, &[0_u8][..], stage.abstract_name.as_bytes()].concat())
}

fn connect_path(stage: &Stage) -> Result<(), i32> {
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    connect(libc::AF_UNIX, &[&family, stage.unix_path.as_bytes_with_nul()].concat())
}

fn take_group(_: &Stage) -> Result<(), i32> {
    let groups = [0_u32];
    done(libc::SYS_setgroups, &[1, groups.as_ptr() as usize])
}

/// Whether a program with more rights than this one would get them.
fn gain_rights(_: &Stage) -> Result<(), i32> {
    match call(libc::SYS_prctl, &[libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0])? {
        0 => Ok(()),
        _ => Err(libc::EPERM),
    }
}

/// Whether the kernel would write this process's memory down, or let others read it.
fn leave_core(_: &Stage) -> Result<(), i32> {
    match call(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as usize])? {
        1 => Ok(()),
        _ => Err(libc::EPERM),
    }
}

fn attach_memory(stage: &Stage) -> Result<(), i32> {
    done(libc::SYS_shmat, &[stage.memory as usize, null::<u8>() as usize, 0])
}

fn make_io_uring(_: &Stage) -> Result<(), i32> {
    let parameters = [0_u32; 30];
    done(libc::SYS_io_uring_setup, &[1, parameters.as_ptr() as usize])
}
