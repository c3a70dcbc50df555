//! Connecting and listening: what comes, what is refused, and which descriptors are believed.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use rustix::fs::SealFlags;
use rustix::net::RecvFlags;
use zerowire::recv::vsock::{
    self, Dequeued, Error, MappedConnection, MappedKind, MappedListener, MappedOptions, Payload,
};
use zerowire_testkit::mapped::{Daemon, memfd};
use zerowire_wire::mapped::{ENTRY_DIRECT, MapReply, PAGE, REGION_SHIFT};

/// Connects to a daemon that answers as `answer` does.
fn connect(
    options: MappedOptions,
    answer: impl FnOnce(zerowire_testkit::mapped::MappedProgram),
) -> Result<MappedConnection, Error> {
    let daemon = Daemon::new();
    let path = daemon.path();
    let program = thread::spawn(move || vsock::connect(&path, 5000, &options));
    answer(daemon.accept());
    program.join().expect("returned")
}

#[test]
fn the_request_has_the_options() {
    let options = MappedOptions::seqpacket()
        .windows(8)
        .header_pages(2)
        .data_pages(16)
        .packed(false)
        .lowat(777)
        .credit(9999)
        .direct(true);
    let c = connect(options, |peer| {
        assert_eq!(peer.request.port, 5000);
        assert_eq!(peer.request.kind, 2);
        assert_eq!(&peer.request.options, options.map_options());
        peer.connect();
    })
    .expect("a connection");
    assert_eq!((c.host_port(), c.guest_port(), c.kind()), (1024, 77, MappedKind::SeqPacket));
    assert_eq!(c.options().windows, 8);
}

#[test]
fn refusals_say_what_to_do() {
    for (errno, text, part) in [
        (libc::EPERM, "user 1000 may not: --map-allow 1000", "not permitted on"),
        (libc::ECONNREFUSED, "reset by the guest", "does a program listen there"),
        (libc::ETIMEDOUT, "10 s", "does it run"),
        (libc::EINVAL, "windows: 65 is not in 2 to 64", "windows: 65 is not in 2 to 64"),
        (libc::ENOBUFS, "8192 connections are open", "8192 connections are open"),
    ] {
        let e = connect(MappedOptions::stream(), |peer| peer.refuse(errno, text)).expect_err("refused");
        assert!(e.to_string().contains(part) && e.to_string().contains(text), "{e}");
        assert_eq!(e.errno(), errno);
    }
}

#[test]
fn no_daemon_and_bad_paths_are_told_apart() {
    let daemon = Daemon::new();
    let absent = daemon.folder().join("absent.map");
    let e = vsock::connect(&absent, 1, &MappedOptions::stream()).expect_err("nobody");
    assert!(matches!(e, Error::NoDaemon { .. }) && e.to_string().contains("--uds"), "{e}");
    assert_eq!(e.errno(), libc::ENOENT);
    let path = daemon.path();
    drop(daemon);
    assert_eq!(vsock::connect(&path, 1, &MappedOptions::stream()).expect_err("gone").errno(), libc::ENOENT);
    let e = vsock::connect(Path::new(&"x".repeat(200)), 1, &MappedOptions::stream()).expect_err("too long");
    assert!(e.to_string().contains("107 bytes"), "{e}");
}

#[test]
fn impossible_options_do_not_leave_the_program() {
    let path = Path::new("/nonexistent");
    for (options, part) in [
        (MappedOptions::stream().windows(1), "windows: 1 is not in 2 to 64"),
        (MappedOptions::stream().header_pages(17), "header pages: 17"),
        (MappedOptions::stream().data_pages(0), "data pages: 0"),
        (MappedOptions::stream().data_pages(1).lowat(4097), "low-water mark: 4097 is not in 1 to 4096"),
    ] {
        let e = vsock::connect(path, 1, &options).expect_err("impossible");
        assert!(matches!(e, Error::InvalidOptions { .. }) && e.to_string().contains(part), "{e}");
        assert!(matches!(MappedListener::bind(path, 1, &options), Err(Error::InvalidOptions { .. })));
    }
    let e = vsock::connect(path, u32::MAX, &MappedOptions::stream()).expect_err("no port");
    assert!(e.to_string().contains("4294967295"), "{e}");
}

#[test]
fn another_version_is_named() {
    let e = connect(MappedOptions::stream(), |peer| {
        let mut bytes = MapReply::error(libc::EINVAL as u16, "").to_bytes();
        bytes[4] = 9;
        peer.send(&bytes, &[]);
    })
    .expect_err("another version");
    assert!(matches!(e, Error::Version { theirs: 9, ours: 1, .. }), "{e}");
}

#[test]
fn answers_that_can_not_be_right_are_refused() {
    let fails = |answer: fn(zerowire_testkit::mapped::MappedProgram)| {
        connect(MappedOptions::stream(), answer).expect_err("broken").to_string()
    };
    assert!(fails(|peer| peer.send(b"hello", &[])).contains("5 bytes"));
    assert!(fails(drop).contains("closed the connection"));
    assert!(
        fails(|peer| peer.send(&peer.reply(0).to_bytes(), &[])).contains("0 descriptors, where 5 are due")
    );
    let text = fails(|peer| {
        let mut reply = peer.reply(0);
        reply.options.windows = 1000;
        peer.send(&reply.to_bytes(), &[]);
    });
    assert!(text.contains("windows: 1000"), "{text}");
}

/// A file that is too short, or that can shrink later, would make an access SIGBUS.
#[test]
fn files_must_be_long_enough_and_sealed() {
    fn give(peer: &zerowire_testkit::mapped::MappedProgram, headers: &OwnedFd, data: &OwnedFd) {
        let other = memfd(PAGE, SealFlags::SHRINK);
        peer.send(&peer.reply(0).to_bytes(), &[headers, data, &other, &other, &other]);
    }
    let options = MappedOptions::stream();
    let (headers, data) = (options.map_options().headers_len(), options.map_options().data_len());
    let e = connect(options, |peer| {
        give(&peer, &memfd(headers - 1, SealFlags::SHRINK), &memfd(data, SealFlags::SHRINK));
    });
    assert!(e.expect_err("short").to_string().contains(&format!("has {} bytes", headers - 1)));
    let e = connect(options, |peer| {
        give(&peer, &memfd(headers, SealFlags::SHRINK), &memfd(data, SealFlags::GROW));
    });
    assert!(e.expect_err("unsealed").to_string().contains("F_SEAL_SHRINK"));
}

#[test]
fn data_pages_can_not_be_mapped_for_writing() {
    let mut writer = None;
    let c = connect(MappedOptions::stream(), |peer| writer = Some(peer.connect())).expect("a connection");
    let writer = writer.expect("connected");
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &writer.data_file,
            0,
        )
    };
    assert_eq!(mapped.expect_err("sealed"), rustix::io::Errno::PERM);
    drop(c);
}

#[test]
fn a_listener_gets_the_guests_connections() {
    let daemon = Daemon::new();
    let path = daemon.path();
    let listening =
        thread::spawn(move || MappedListener::bind(&path, 6000, &MappedOptions::stream()).expect("bound"));
    let peer = daemon.accept();
    assert_eq!(peer.request.op, zerowire_wire::mapped::MapOp::Listen);
    peer.listening();
    let listener = listening.join().expect("bound");
    assert_eq!(listener.port(), 6000);
    assert!(listener.try_accept().expect("sound").is_none());
    let mut writers = [peer.connect(), peer.connect()];
    let connections = [listener.accept().expect("one"), listener.try_accept().expect("sound").expect("two")];
    for (i, (writer, c)) in writers.iter_mut().zip(&connections).enumerate() {
        writer.window(&[(&[i as u8; 10], 0)]);
        let Dequeued::Window(w) = c.dequeue().expect("sound") else { panic!("no window") };
        assert_eq!(w.packet(0).and_then(|p| p.bytes()), Some(&[i as u8; 10][..]));
    }
    drop(peer);
    assert!(matches!(listener.accept(), Err(Error::Disconnected { .. })));
    assert!(!connections[0].is_hung_up().expect("polled"), "connections stay");
}

#[test]
fn a_taken_port_is_named() {
    let daemon = Daemon::new();
    let path = daemon.path();
    let listening = thread::spawn(move || MappedListener::bind(&path, 6000, &MappedOptions::stream()));
    daemon.accept().refuse(libc::EADDRINUSE, "");
    let e = listening.join().expect("returned").expect_err("taken");
    assert!(e.to_string().contains("port 6000 is taken"), "{e}");
}

#[test]
fn the_way_to_the_guest_is_a_socket() {
    let mut writer = None;
    let mut c = connect(MappedOptions::stream(), |peer| writer = Some(peer.connect())).expect("a connection");
    let writer = writer.expect("connected");
    c.write_all(b"to the guest").expect("room");
    c.shutdown(Shutdown::Write).expect("open");
    let mut bytes = [0; 64];
    let mut receive = || rustix::net::recv(&writer.socket, &mut bytes, RecvFlags::empty()).expect("sound").0;
    assert_eq!(receive(), 12);
    assert_eq!(receive(), 0, "the end");
    assert!(!c.is_hung_up().expect("polled"), "half a close is no hang-up");
}

#[test]
fn payload_in_guest_memory_is_read_where_it_lies() {
    let memory = memfd(4 * PAGE, SealFlags::SHRINK);
    let bytes: Vec<u8> = (0..3000u32).map(|i| (i % 251) as u8).collect();
    rustix::io::pwrite(&memory, &bytes, (PAGE + 5) as u64).expect("written");
    let ours = memory.try_clone().expect("a descriptor");
    let mut writer = None;
    let mut c = connect(MappedOptions::stream().direct(true), |peer| {
        let first = memfd(PAGE, SealFlags::SHRINK);
        // The second region begins at the file's second page.
        let regions = [(first, 0, PAGE as u64), (memory, PAGE as u64, 2 * PAGE as u64)];
        writer = Some(peer.connect_with(&regions));
    })
    .expect("a connection");
    let mut writer = writer.expect("connected");
    let direct = ENTRY_DIRECT | 1 << REGION_SHIFT;
    writer.raw(0, &[(3000, direct), (5, 0)]);
    let Dequeued::Window(w) = c.dequeue().expect("sound") else { panic!("no window") };
    let packet = w.packet(0).expect("one");
    assert_eq!((packet.bytes(), packet.len(), w.packet_count()), (None, 3000, 1));
    let Payload::Guest(slice) = packet.payload() else { panic!("copied") };
    let mut copy = vec![0; 3000];
    assert_eq!(slice.copy_to(&mut copy), 3000);
    assert_eq!(copy, bytes);
    rustix::io::pwrite(&ours, &[255], (PAGE + 5) as u64).expect("written");
    assert_eq!(slice.get(0), Some(255), "the guest can change it");
    drop(w);
    writer.raw(0, &[(100, direct), (5, 0)]);
    let mut copy = [0; 200];
    assert_eq!(c.read(&mut copy).expect("sound"), 100);
    assert_eq!(copy[1..100], bytes[1..100]);
}

#[test]
fn guest_memory_must_be_in_its_file() {
    for (offset, len, part) in
        [(1, 10, "no page's start"), (0, 3 * PAGE as u64, "in a file of 0x2000"), (0, 0, "0x0 bytes")]
    {
        let e = connect(MappedOptions::stream().direct(true), |peer| {
            peer.connect_with(&[(memfd(2 * PAGE, SealFlags::SHRINK), offset, len)]);
        })
        .expect_err("broken");
        assert!(e.to_string().contains(part), "{e}");
    }
}

#[test]
fn the_copying_connection_takes_no_byte_behind_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm");
    let listener = UnixListener::bind(&path).expect("bound");
    let daemon = thread::spawn(move || {
        let (mut s, _) = listener.accept().expect("a program");
        let mut line = [0; 13];
        s.read_exact(&mut line).expect("the line");
        assert_eq!(&line, b"CONNECT 5000\n");
        s.write_all(b"OK 1234\npayload").expect("room");
        drop(s);
        listener.accept().expect("another program");
    });
    let mut c = vsock::connect_copy(&path, 5000, MappedKind::Stream).expect("a connection");
    assert_eq!(c.host_port(), 1234);
    let mut bytes = Vec::new();
    c.read_to_end(&mut bytes).expect("sound");
    assert_eq!(bytes, b"payload");
    let e = vsock::connect_copy(&path, 5000, MappedKind::Stream).expect_err("closed without an answer");
    assert!(matches!(e, Error::Refused { port: 5000, .. }), "{e}");
    daemon.join().expect("ended");
}
