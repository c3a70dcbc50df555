//! Host programs that say something else than CONNECT, or nothing, or close at any moment: others
//! notice nothing.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType as Type};

use crate::support::vsock::{VsockBackend, patient, read_ok, read_to_end};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{HOST_CID, SocketType};
use zerowire_testkit::linger::send_lingering;
use zerowire_testkit::{not_run, own_process};

#[test]
fn host_programs_that_say_something_else() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (sound, mut sound_host) = backend.dial_in("vm", &mut guest, 80);
    let lines: [&[u8]; 14] = [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT\n",
        b"CONNECT \n",
        b"CONNECT -1\n",
        b"CONNECT 80 80\n",
        b"CONNECT 4294967295\n",
        b"CONNECT 4294967296\n",
        b"CONNECT 99999999999999999999999\n",
        b"connect80\n",
        b"CON NECT 80\n",
        b"CONNECT \xff\xfe\n",
        b"\0\0\0\0\0\0\0\0\0\0",
        &[b'x'; 100_000],
    ];
    for line in lines {
        let mut stream = UnixStream::connect(backend.uds("vm")).expect("the device listens");
        patient(&stream);
        // The device may have closed before all is written.
        let _ = stream.write_all(line);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            answer.is_empty(),
            "{:?} to {:?}",
            answer,
            String::from_utf8_lossy(&line[..line.len().min(40)])
        );
        guest.ping(sound, &mut sound_host);
    }
    wait_until("all counted", || backend.stats("vm").totals.bad_handshakes == lines.len() as u64);
    assert_eq!(backend.stats("vm").totals.connections_opened, 1);
}

#[test]
fn host_programs_that_close_at_any_moment() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    guest.stack.listen(81, SocketType::Stream);
    let (sound, mut sound_host) = backend.dial_in("vm", &mut guest, 80);
    let line = b"CONNECT 81\nhello";
    for cut in 0..=line.len() {
        for turns in 0..3 {
            let mut stream = UnixStream::connect(backend.uds("vm")).expect("the device listens");
            stream.write_all(&line[..cut]).expect("room");
            for _ in 0..turns {
                guest.stack.turn(Duration::from_micros(200)).expect("sound");
            }
        }
    }
    // Those that said where to were offered; each gets its end. One more comes behind all of them
    // and stays.
    let (mut seen, last) = (0, AtomicBool::new(false));
    guest.both(
        |g| {
            g.until("all ended", |s| {
                while let Some(conn) = s.accept(81) {
                    seen += 1;
                    s.close(conn).expect("sound");
                }
                last.load(Ordering::Relaxed)
                    && s.connections() == 1
                    && backend.stats("vm").totals.connections_open == 1
            });
        },
        || {
            read_to_end(&mut backend.dial("vm", 81));
            last.store(true, Ordering::Relaxed);
        },
    );
    assert!(seen > 0);
    guest.ping(sound, &mut sound_host);
}

#[test]
fn a_thousand_host_programs_that_say_nothing() {
    own_process!();
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (sound, mut sound_host) = backend.dial_in("vm", &mut guest, 80);
    let silent: Vec<_> = (0..1000)
        .map(|n| {
            let mut stream = UnixStream::connect(backend.uds("vm")).expect("the device listens");
            if n % 3 == 0 {
                stream.write_all(b"CONN").expect("room");
            }
            stream
        })
        .collect();
    guest.ping(sound, &mut sound_host);
    // The oldest give way; one that says what it wants is served at once.
    wait_until("most were turned away", || backend.stats("vm").totals.bad_handshakes >= 800);
    let mut stream = backend.dial("vm", 80);
    let conn = guest.accept(80);
    guest.with_host(|| read_ok(&mut stream)).expect("accepted");
    guest.ping(conn, &mut stream);
    drop(silent);
    guest.ping(sound, &mut sound_host);
}

/// Programs for Firecracker and vhost-device-vsock, which take the word in letters of any case and
/// any white space.
#[test]
fn lines_as_other_devices_take_them() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    guest.stack.listen(80, SocketType::Stream);
    for line in ["connect 80\n", "Connect\t80\r\n", " CONNECT  80 \n"] {
        let mut stream = UnixStream::connect(backend.uds("vm")).expect("the device listens");
        patient(&stream);
        let (first, rest) = line.split_at(4);
        for part in [first, rest] {
            stream.write_all(part.as_bytes()).expect("written");
        }
        let conn = guest.accept(80);
        assert!(guest.with_host(|| read_ok(&mut stream)).is_some(), "{line:?}");
        guest.ping(conn, &mut stream);
    }
}

/// To close a TCP socket with SO_LINGER takes as long as its sender has chosen. The thread of a
/// group would close it for all its VMs.
#[test]
fn host_programs_can_send_no_descriptors() {
    let (pair, _other) = UnixStream::pair().expect("a pair");
    if zerowire_sys::socket::get_int(&pair, libc::SOL_SOCKET, zerowire_sys::socket::SO_PASSRIGHTS).is_err() {
        not_run("descriptors of host programs: this kernel has no SO_PASSRIGHTS: use Linux 6.16 or later");
        return;
    }
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    for (door, kind) in [("", Type::STREAM), (".seqpacket", Type::SEQPACKET), (".map", Type::SEQPACKET)] {
        let mut path = backend.uds("vm").into_os_string();
        path.push(door);
        let program: OwnedFd = rustix::net::socket(AddressFamily::UNIX, kind, None).expect("a socket");
        rustix::net::connect(&program, &SocketAddrUnix::new(path).expect("short")).expect("it listens");
        assert_eq!(send_lingering(&program, b"CONNECT 80\n").err(), Some(Errno::PERM), "UDS{door}");
    }
    let (conn, mut host) = backend.dial_in("vm", &mut guest, 80);
    assert_eq!(send_lingering(&host, b"x").err(), Some(Errno::PERM), "a connection to the guest");
    guest.ping(conn, &mut host);
    let listener = backend.listen("vm", 90);
    let conn = guest.stack.connect(HOST_CID, 90, SocketType::Stream).expect("room");
    let (mut host, _) = guest.with_host(|| listener.accept().expect("the guest connects"));
    assert!(guest.stack.wait_connected(conn, PATIENCE).expect("answered"), "accepted");
    patient(&host);
    assert_eq!(send_lingering(&host, b"x").err(), Some(Errno::PERM), "a connection of the guest's");
    guest.ping(conn, &mut host);
}
