//! Binding AF_XDP sockets: what is refused and how that is said, memory limits, sharing, the
//! caller's own memory.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use zerowire_sys::map::Mapping;
use zerowire_sys::xdp::{
    Descriptor, Mode, OwnSockets, RingSizes, Socket, SocketOptions, Umem, UmemOptions, XdpError, address,
};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{HERE, frame, in_lab};
use zerowire_testkit::net::run;
use zerowire_testkit::own_process;

const CHUNK: usize = 4096;

fn umem(chunks: usize) -> Umem {
    Umem::new(chunks * CHUNK, UmemOptions::default(), false).unwrap_or_else(|e| panic!("{e}"))
}

fn options(interface: &str) -> SocketOptions {
    SocketOptions { busy_timeout: Duration::from_millis(50), ..SocketOptions::new(interface) }
}

fn refused(umem: &Umem, options: &SocketOptions) -> XdpError {
    match Socket::bind(umem, options) {
        Ok(_) => panic!("bound: {options:?}"),
        Err(e) => e,
    }
}

/// Sends what was published, and waits until `count` pieces came back.
fn send(socket: &mut Socket, count: usize) -> Vec<u64> {
    socket.transmit().expect("a ring").publish();
    let mut back = Vec::new();
    let begin = std::time::Instant::now();
    while begin.elapsed() < zerowire_testkit::PATIENCE {
        match socket.wake_transmit() {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
        while let Some(address) = socket.completion().pop() {
            back.push(address);
        }
        socket.completion().release();
        if back.len() >= count {
            return back;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} of {count} pieces came back", back.len());
}

#[test]
fn each_refusal_names_its_cause() {
    in_lab(|lab| {
        run("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        run("ip", &["link", "set", "v1", "up"]);
        let umem = umem(16);

        let error = refused(&umem, &options("nothere"));
        assert!(matches!(&error, XdpError::NoInterface { interface } if interface == "nothere"), "{error}");
        let error = refused(&umem, &options("a name that is too long"));
        assert!(matches!(error, XdpError::NoInterface { .. }), "{error}");

        run("ip", &["link", "set", "v0", "up"]);
        let error = refused(&umem, &SocketOptions { mode: Mode::ZeroCopy, ..options("v0") });
        assert!(matches!(error, XdpError::NoZeroCopy { .. }), "{error}");
        assert!(error.to_string().contains("v0") && error.to_string().contains("auto"), "{error}");

        let error = refused(&umem, &SocketOptions { queue: 7, ..options("v0") });
        assert!(matches!(error, XdpError::NoQueue { queue: 7, queues: Some(1), .. }), "{error}");
        // An interface whose driver doesn't tell its queues.
        lab.ifb("ifb0", false);
        let error = refused(&umem, &SocketOptions { queue: 9, ..options("ifb0") });
        assert!(error.to_string().contains("no queue 9"), "{error}");

        let rings = RingSizes { transmit: 3, ..RingSizes::default() };
        let error = refused(&umem, &SocketOptions { rings, ..options("v0") });
        assert!(error.to_string().contains("transmit ring is 3"), "{error}");
        let rings = RingSizes { transmit: 0, receive: 0, ..RingSizes::default() };
        assert!(matches!(refused(&umem, &SocketOptions { rings, ..options("v0") }), XdpError::Value { .. }));

        // After all of these the memory is as good as new.
        let socket = Socket::bind(&umem, &options("v0")).unwrap_or_else(|e| panic!("{e}"));
        assert!(!socket.zero_copy());
    });
}

#[test]
fn an_interface_that_is_down_is_named() {
    in_lab(|_| {
        run("ip", &["link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        let umem = umem(4);
        match Socket::bind(&umem, &options("v0")) {
            Err(e) => assert!(matches!(e, XdpError::Down { .. }), "{e}"),
            Ok(socket) => {
                // Copy mode binds, and tells when it shall send.
                let error = socket.wake_transmit().expect_err("down");
                assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
            }
        }
    });
}

#[test]
fn a_queue_has_one_memory_and_is_free_again_soon() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let (one, two) = (umem(4), umem(4));
        let first = Socket::bind(&one, &options("ifb0")).expect("bound");
        let error = refused(&two, &options("ifb0"));
        assert!(matches!(error, XdpError::Busy { queue: 0, .. }), "{error}");
        let error = refused(&one, &options("ifb0"));
        assert!(matches!(error, XdpError::Busy { .. }), "the same memory: {error}");
        drop(first);
        let patient = SocketOptions { busy_timeout: PATIENCE, ..options("ifb0") };
        let second = Socket::bind(&two, &patient).unwrap_or_else(|e| panic!("{e}"));
        drop(second);
        // The memory of a socket that was closed can be bound again.
        Socket::bind(&one, &patient).unwrap_or_else(|e| panic!("{e}"));
    });
}

#[test]
fn one_memory_serves_several_queues_and_interfaces() {
    in_lab(|lab| {
        run(
            "ip",
            &["link", "add", "v0", "numtxqueues", "2", "numrxqueues", "2", "type", "veth", "peer", "v1"],
        );
        run("ip", &["link", "set", "v0", "up"]);
        run("ip", &["link", "set", "v1", "up"]);
        lab.ifb("ifb0", false);
        let umem = umem(16);
        let mut sockets = vec![Socket::bind(&umem, &options("ifb0")).expect("the first")];
        for queue in 0..2 {
            let options = SocketOptions { queue, ..options("v0") };
            sockets.push(Socket::bind(&umem, &options).unwrap_or_else(|e| panic!("queue {queue}: {e}")));
        }
        // Whichever of them is closed, the others go on, and a new one can share their
        // registration.
        let first = sockets.remove(0);
        drop(first);
        let patient = SocketOptions { busy_timeout: PATIENCE, ..options("ifb0") };
        sockets.push(Socket::bind(&umem, &patient).unwrap_or_else(|e| panic!("{e}")));
        for (n, socket) in sockets.iter_mut().enumerate() {
            let piece = Descriptor { address: (n * CHUNK) as u64, len: 60, options: 0 };
            assert!(socket.transmit().expect("a ring").push(piece));
            assert_eq!(send(socket, 1), [piece.address]);
        }
    });
}

/// Memory of a file, as a guest's RAM is.
struct Ram {
    file: OwnedFd,
    memory: Arc<Mapping>,
}

impl Ram {
    fn new(len: usize) -> Self {
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, len as u64).expect("memory");
        let memory = Arc::new(Mapping::shared(&file, 0, len).expect("mapped"));
        Self { file, memory }
    }

    fn umem(&self, options: UmemOptions) -> Result<Umem, XdpError> {
        Umem::of(Arc::clone(&self.memory), 0..self.memory.len(), options, Arc::new(OwnSockets))
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.memory.byte(at + i).store(*byte, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_part_that_the_memory_does_not_have_is_refused() {
    let ram = Ram::new(8 * CHUNK);
    for part in [CHUNK..9 * CHUNK, usize::MAX - CHUNK..usize::MAX] {
        let (memory, maker) = (Arc::clone(&ram.memory), Arc::new(OwnSockets));
        let error = Umem::of(memory, part.clone(), UmemOptions::default(), maker).expect_err("outside");
        assert!(matches!(error, XdpError::Value { value, .. } if value == part.end as u64), "{error}");
    }
}

#[test]
fn pieces_at_any_address_of_the_callers_memory_arrive_as_one_frame() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let ram = Ram::new(1 << 20);
        let umem = ram.umem(UmemOptions { unaligned: true, ..UmemOptions::default() }).expect("registered");
        let mut socket = Socket::bind(&umem, &SocketOptions { multi_buffer: true, ..options(HERE) })
            .unwrap_or_else(|e| panic!("{e}"));
        for pieces in 1..=18usize {
            for odd in 0..2usize {
                let bytes = frame((pieces * 2 + odd) as u32, 1400);
                let mut sent = Vec::new();
                let step = bytes.len().div_ceil(pieces);
                for (n, part) in bytes.chunks(step).enumerate() {
                    // The pieces cross pages and lie at odd and even addresses.
                    let at = 8192 * (n + 1) + 4096 - part.len() / 2 + (n + odd) % 2;
                    ram.write(at, part);
                    let cookie = (n * 100 + pieces) as u16;
                    let last = (n + 1) * step >= bytes.len();
                    let address = address::encode(at as u64, cookie).expect("high enough");
                    let options = if last { 0 } else { Descriptor::CONTINUES };
                    let piece = Descriptor { address, len: part.len() as u32, options };
                    assert!(socket.transmit().expect("a ring").push(piece));
                    sent.push((address, (at as u64, cookie)));
                }
                let back = send(&mut socket, sent.len());
                assert_eq!(capture.expect(), bytes, "{pieces} pieces");
                // Whole, cookies included: an odd address would lose bit 0 otherwise.
                assert_eq!(back, sent.iter().map(|s| s.0).collect::<Vec<_>>(), "{pieces} pieces");
                assert!(sent.iter().all(|(encoded, parts)| address::decode(*encoded) == *parts));
            }
        }
    });
}

#[test]
fn memory_that_isnt_mapped_is_refused() {
    let ram = Ram::new(64 << 10);
    // SAFETY: the pages are the test's own; nobody accesses them from now on.
    unsafe {
        rustix::mm::mprotect(
            ram.memory.as_ptr().add(32 << 10).cast(),
            4096,
            rustix::mm::MprotectFlags::empty(),
        )
    }
    .expect("protected");
    let error = ram.umem(UmemOptions::default()).expect_err("a hole");
    assert!(matches!(error, XdpError::NotMapped { need_bytes: 65536, .. }), "{error}");
}

/// Runs `work` in a child process as an ordinary user who may use AF_XDP (CAP_NET_RAW), with this
/// limit of locked memory; returns what it wrote.
fn as_ordinary_user(limit: u64, work: impl FnOnce() -> String) -> String {
    let mut pipe = [0; 2];
    // SAFETY: two descriptors are filled in.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: new descriptors that nobody else owns.
    let [reader, writer] = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: the child does system calls and allocates memory, which the C library makes safe
    // after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let text = match become_user(limit) {
            Ok(()) => work(),
            Err(step) => format!("{step}: {}", std::io::Error::last_os_error()),
        };
        let _ = rustix::io::write(&writer, text.as_bytes());
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut text = String::new();
    std::fs::File::from(reader).read_to_string(&mut text).expect("the child's words");
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "{text}");
    text
}

/// Only the calling thread changes, which is the only one of a forked child.
fn become_user(limit: u64) -> Result<(), &'static str> {
    const CAP_NET_RAW: u32 = 13;
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // A user of its own, so that no other process counts against the limit.
    let user = 60_000 + (std::process::id() % 5000) as libc::uid_t;
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable; then the upper 32 bits of each.
    let sets = [1 << CAP_NET_RAW, 1 << CAP_NET_RAW, 0u32, 0, 0, 0];
    // SAFETY: numbers, and addresses of the values above in the forms that the calls take.
    unsafe {
        let steps = [
            ("setrlimit", i64::from(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit))),
            ("prctl", i64::from(libc::prctl(libc::PR_SET_KEEPCAPS, 1))),
            ("setresuid", libc::syscall(libc::SYS_setresuid, user, user, user)),
            ("capset", libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr())),
        ];
        match steps.iter().find(|(_, r)| *r != 0) {
            Some((name, _)) => Err(name),
            None => Ok(()),
        }
    }
}

#[test]
fn the_limit_of_locked_memory_is_told_with_the_need() {
    own_process!();
    let text = as_ordinary_user(1 << 20, || {
        let small = Umem::new(64 * CHUNK, UmemOptions::default(), false);
        let large = Umem::new(1024 * CHUNK, UmemOptions::default(), false);
        match (small, large) {
            (Ok(_), Err(e @ XdpError::Memlock { need_bytes: 4_194_304, limit_bytes: 1_048_576 })) => {
                e.to_string()
            }
            (small, large) => format!("unexpected: {small:?}, {large:?}"),
        }
    });
    for word in ["4194304", "1048576", "ulimit -l 4096", "CAP_IPC_LOCK"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// The memory of a guest that changes: the one registration goes, and another one comes at once.
#[test]
fn memory_that_was_let_go_of_makes_room_for_other_memory() {
    own_process!();
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        // Room for one registration, not for two.
        let text = as_ordinary_user(6 << 20, || {
            let registered = UmemOptions { release_timeout: PATIENCE, ..UmemOptions::default() };
            for round in 0..20 {
                let umem = match Umem::new(1024 * CHUNK, registered, false) {
                    Ok(umem) => umem,
                    Err(e) => return format!("round {round}: {e}"),
                };
                // Bound, or registered only.
                let patient = SocketOptions { busy_timeout: PATIENCE, ..options("ifb0") };
                if round % 2 == 0
                    && let Err(e) = Socket::bind(&umem, &patient)
                {
                    return format!("round {round}: {e}");
                }
            }
            "fine".to_owned()
        });
        assert_eq!(text, "fine");
    });
}

#[test]
fn memory_is_counted_against_the_limit_only_once_when_a_queue_is_bound_anew() {
    own_process!();
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        // Room for one registration, not for two: the old one has to go first.
        let text = as_ordinary_user(6 << 20, || {
            let umem = match Umem::new(1024 * CHUNK, UmemOptions::default(), false) {
                Ok(umem) => umem,
                Err(e) => return e.to_string(),
            };
            for round in 0..5 {
                let patient = SocketOptions { busy_timeout: PATIENCE, ..options("ifb0") };
                if let Err(e) = Socket::bind(&umem, &patient) {
                    return format!("round {round}: {e}");
                }
            }
            "fine".to_owned()
        });
        assert_eq!(text, "fine");
    });
}

/// Memory that could not be registered a second time: a busy queue does not ask for that.
#[test]
fn a_busy_queue_leaves_the_memory_registered() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let small = umem(4);
        let other = Socket::bind(&small, &options("ifb0")).unwrap_or_else(|e| panic!("{e}"));
        let ram = Ram::new(64 * CHUNK);
        let umem = ram.umem(UmemOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let some = |first_chunks| SocketOptions { first_chunks, ..options("ifb0") };
        assert!(matches!(refused(&umem, &some(vec![0, 4096])), XdpError::Busy { .. }));
        // Whoever registers it now finds no pages.
        rustix::fs::ftruncate(&ram.file, 0).expect("a length");
        for first in [vec![8192], vec![], vec![4096; 3]] {
            assert!(matches!(refused(&umem, &some(first)), XdpError::Busy { .. }));
        }
        drop(other);
        let patient = SocketOptions { busy_timeout: PATIENCE, ..some(vec![12_288]) };
        let mut socket = Socket::bind(&umem, &patient).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(socket.fill().waiting(), 1, "what was put there for another bind is not");
        drop(socket);
        assert!(matches!(refused(&umem, &patient), XdpError::NotMapped { .. }), "the control");
    });
}

#[test]
fn rings_of_another_length_are_had_after_a_busy_queue() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let (small, umem) = (umem(4), umem(64));
        let other = Socket::bind(&small, &options("ifb0")).unwrap_or_else(|e| panic!("{e}"));
        assert!(matches!(refused(&umem, &options("ifb0")), XdpError::Busy { .. }));
        drop(other);
        let rings = RingSizes { fill: 64, completion: 64, receive: 64, transmit: 64 };
        let patient = SocketOptions { busy_timeout: PATIENCE, rings, ..options("ifb0") };
        let mut socket = Socket::bind(&umem, &patient).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(socket.fill().size(), 64);
    });
}

#[test]
fn without_the_right_the_right_is_named() {
    own_process!();
    let text = as_ordinary_user(1 << 20, || {
        let header = [0x2008_0522u32, 0];
        // SAFETY: gives up every capability of this thread; addresses of values in the forms that
        // the call takes.
        unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), [0u32; 6].as_ptr()) };
        match Umem::new(CHUNK, UmemOptions::default(), false) {
            Err(e) => e.to_string(),
            Ok(_) => "registered".to_owned(),
        }
    });
    assert!(text.contains("CAP_NET_RAW"), "{text}");
}

#[test]
fn two_hundred_sockets_come_and_go_and_leave_nothing() {
    own_process!();
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let patient = SocketOptions { busy_timeout: PATIENCE, ..options("ifb0") };
        let (fds, maps) = (open_files(), mappings());
        for n in 0..200u64 {
            let umem = umem(4);
            let mut socket = Socket::bind(&umem, &patient).unwrap_or_else(|e| panic!("{n}: {e}"));
            let piece = Descriptor { address: 0, len: 60, options: 0 };
            assert!(socket.transmit().expect("a ring").push(piece));
            assert_eq!(send(&mut socket, 1), [0]);
        }
        assert_eq!(open_files(), fds);
        // The allocator maps memory, too; what a cycle lost would be lost 200 times.
        assert!(mappings() < maps + 100, "{maps} mappings before, {} after", mappings());
    });
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("a list").lines().count()
}
