//! Mapped receive: a guest without a VM, the device, and a program with the library, all of them
//! real.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::support::vsock::{Guest, Vm, VsockBackend, pattern};
use crate::support::{PATIENCE, wait_until};
use zerowire::recv::vsock::{self, Dequeued, MappedConnection, MappedListener, MappedOptions, WindowLease};
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType};
use zerowire_testkit::process::only;
use zerowire_testkit::{own_process, this_test};

const PORT: u32 = 9;

fn map_path(backend: &VsockBackend) -> PathBuf {
    let mut path = backend.uds("vm").into_os_string();
    path.push(".map");
    path.into()
}

/// A mapped connection that the program asks the guest for.
fn dial(
    backend: &VsockBackend,
    guest: &mut Guest,
    kind: SocketType,
    options: MappedOptions,
) -> (ConnId, MappedConnection) {
    guest.stack.listen(PORT, kind);
    let path = map_path(backend);
    let (conn, program) = guest.both(|g| g.accept(PORT), || vsock::connect(&path, PORT, &options));
    (conn, program.unwrap_or_else(|e| panic!("{e}")))
}

fn window(program: &MappedConnection) -> WindowLease {
    loop {
        match program.dequeue().unwrap_or_else(|e| panic!("{e}")) {
            Dequeued::Window(w) => return w,
            Dequeued::NotYet => assert!(program.wait(Some(PATIENCE)).expect("it waits"), "data in time"),
            Dequeued::End => panic!("the end"),
        }
    }
}

/// All bytes until the end, and the lengths of what ended with a message's mark.
fn drain(program: &MappedConnection) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut messages, mut open) = (Vec::new(), Vec::new(), 0);
    loop {
        match program.dequeue().unwrap_or_else(|e| panic!("{e}")) {
            Dequeued::Window(w) => {
                for p in w.packets() {
                    let start = bytes.len();
                    bytes.resize(start + p.len(), 0);
                    assert_eq!(p.copy_to(0, &mut bytes[start..]), p.len());
                    open += p.len();
                    if p.end_of_message() {
                        messages.push(std::mem::take(&mut open));
                    }
                }
            }
            Dequeued::NotYet => assert!(program.wait(Some(PATIENCE)).expect("it waits"), "data in time"),
            Dequeued::End => return (bytes, messages),
        }
    }
}

fn send_and_end(guest: &mut Guest, conn: ConnId, bytes: &[u8]) {
    guest.send(conn, bytes);
    guest.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
}

#[test]
fn the_layouts_example_arrives_byte_for_byte() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let options = MappedOptions::stream().packed(false).lowat(56 + 4096 + 8200);
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
    for (n, len) in [56, 4096, 8200].into_iter().enumerate() {
        guest.send(conn, &pattern(len, n));
    }
    let w = guest.with_host(|| window(&program));
    let packets: Vec<_> = w.packets().map(|p| p.bytes().expect("copied").to_vec()).collect();
    assert_eq!(packets, [pattern(56, 0), pattern(4096, 1), pattern(8200, 2)]);
    let pages: Vec<usize> = w.packets().map(|p| p.bytes().expect("copied").as_ptr().addr() % 4096).collect();
    assert_eq!(pages, [0; 3], "each begins on a page of its own");
}

#[test]
fn a_stream_arrives_in_windows_and_the_reply_goes_back() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, mut program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream());
    let sent = pattern(8 << 20, 1);
    let ((), (got, _)) = guest.both(|g| send_and_end(g, conn, &sent), || drain(&program));
    assert!(got == sent);
    let reply = pattern(300_000, 2);
    let (back, ()) = guest.both(
        |g| g.stack.recv_to_end(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}")),
        || {
            program.write_all(&reply).expect("written");
            drop(program);
        },
    );
    assert!(back == reply);
    let t = backend.stats("vm").totals.transmit;
    assert_eq!(t.bytes, 8 << 20);
    assert!(t.copied_bytes["window"] > 0, "{t:?}");
}

#[test]
fn messages_keep_their_bounds_also_over_several_windows() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let options = MappedOptions::seqpacket().windows(3).data_pages(2);
    let (conn, program) = dial(&backend, &mut guest, SocketType::SeqPacket, options);
    let sizes = [1, 4096, 100, 30_000, 200_000, 7];
    let ((), (got, messages)) = guest.both(
        |g| {
            for (n, len) in sizes.into_iter().enumerate() {
                g.send(conn, &pattern(len, n));
            }
            g.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
        },
        || drain(&program),
    );
    assert_eq!(messages, sizes);
    let want: Vec<u8> = sizes.into_iter().enumerate().flat_map(|(n, len)| pattern(len, n)).collect();
    assert!(got == want);
}

#[test]
fn a_program_that_listens_gets_the_guests_connections() {
    // Children that other tests fork would have the listener until they call execve(2).
    own_process!();
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let path = map_path(&backend);
    let listener =
        MappedListener::bind(&path, PORT, &MappedOptions::stream()).unwrap_or_else(|e| panic!("{e}"));
    let taken = MappedListener::bind(&path, PORT, &MappedOptions::stream())
        .expect_err("the port is taken")
        .to_string();
    assert!(taken.contains("port 9"), "{taken}");
    for n in 0..3 {
        let conn = guest.connect_to(HOST_CID, PORT, SocketType::Stream);
        let program = listener.accept().unwrap_or_else(|e| panic!("{e}"));
        let sent = pattern(10_000, n);
        let ((), (got, _)) = guest.both(|g| send_and_end(g, conn, &sent), || drain(&program));
        assert!(got == sent);
    }
    drop(listener);
    for _ in 0..100 {
        drop(MappedListener::bind(&path, PORT, &MappedOptions::stream()).expect("the port is free again"));
    }
}

#[test]
fn a_program_that_holds_all_windows_stops_its_sender_and_nobody_else() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(64 << 10)]);
    let mut guest = backend.guest("vm");
    let options = MappedOptions::stream().windows(2).data_pages(16).credit(256 << 10);
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
    let sent = pattern(1 << 20, 5);
    let mut at = 0;
    guest.until("the sender is stopped", |s| {
        at += s.send(conn, &sent[at..]).expect("sent");
        at >= 256 << 10 && s.credit(conn) == 0 && s.queues().tx.in_flight() == 0
    });
    let first = window(&program);
    let second = window(&program);
    assert_eq!((first.len(), second.len()), (64 << 10, 64 << 10));
    assert_eq!(at, 256 << 10, "what its credit allows, and no more");
    // Another connection goes on meanwhile.
    let (other, mut stream) = backend.open("vm", &mut guest, 1234);
    guest.send(other, b"alive");
    let mut five = [0; 5];
    guest.with_host(|| stream.read_exact(&mut five)).expect("read");
    assert_eq!(&five, b"alive");
    // Released in the other order; then all the rest arrives.
    let mut got = first
        .packets()
        .chain(second.packets())
        .flat_map(|p| p.bytes().expect("copied").to_vec())
        .collect::<Vec<_>>();
    drop(second);
    drop(first);
    let ((), (rest, _)) = guest.both(|g| send_and_end(g, conn, &sent[at..]), || drain(&program));
    got.extend(rest);
    assert!(got == sent);
    assert!(backend.stats("vm").totals.transmit.copied_bytes["held"] > 0);
}

#[test]
fn a_program_that_holds_all_windows_but_one_gets_data() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream().windows(2));
    guest.send(conn, &pattern(1000, 0));
    let first = guest.with_host(|| window(&program));
    guest.send(conn, &pattern(1000, 1));
    let second = guest.with_host(|| window(&program));
    assert_eq!((first.len(), second.len()), (1000, 1000));
    // It is not asleep, or not yet: the window is kept back for a while.
    drop((first, second));
    for n in 0..4 {
        guest.send(conn, &pattern(1000, n));
        guest.until("published", |_| program.poll_value() == 1);
        let Dequeued::Window(held) = program.dequeue().expect("a window") else { panic!("not there") };
        guest.send(conn, &pattern(500, n));
        guest.until("published", |_| program.poll_value() == 1);
        let Dequeued::Window(last) = program.dequeue().expect("a window") else { panic!("not there") };
        assert_eq!((held.len(), last.len()), (1000, 500));
    }
}

/// As long as it fits the windows, that is.
#[test]
fn a_program_keeps_windows_until_a_message_as_long_as_the_credit_is_whole() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    for (windows, pages, len) in [(4, 4, 60_000), (2, 16, 100_000), (4, 16, 262_144), (8, 128, 262_144)] {
        let options = MappedOptions::seqpacket().windows(windows).data_pages(pages);
        let (conn, program) = dial(&backend, &mut guest, SocketType::SeqPacket, options);
        for n in 0..3 {
            let message = pattern(len, n);
            let whole = || {
                let mut kept: Vec<WindowLease> = Vec::new();
                while !kept.last().is_some_and(|w| w.packets().any(|p| p.end_of_message())) {
                    kept.push(window(&program));
                }
                kept.iter().map(WindowLease::len).sum::<u64>()
            };
            let ((), got) = guest.both(|g| g.send(conn, &message), whole);
            assert_eq!(got, len as u64, "{windows} windows of {pages} pages");
        }
        guest.stack.abort(conn).expect("aborted");
    }
}

#[test]
fn a_program_that_dies_with_windows_in_its_hands_ends_its_connection() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream());
    guest.send(conn, &pattern(1000, 0));
    let lease = guest.with_host(|| window(&program));
    drop(program);
    let state = guest.stack.wait_closed(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(state, ConnState::Closed | ConnState::Reset), "{state:?}");
    assert_eq!(lease.len(), 1000, "and what it holds stays readable");
    wait_until("the connection is gone", || backend.stats("vm").totals.connections_open == 0);
}

/// Where the program that is killed finds the device, and how it is to receive.
const KILLED: &str = "ZEROWIRE_TEST_KILLED";

/// The program that is killed: holds windows of a good part of what is sent, says so, and does
/// nothing more.
fn hold_until_killed(path: &str, direct: bool) {
    let options = MappedOptions::stream().direct(direct).windows(3).data_pages(16);
    let program = vsock::connect(Path::new(path), PORT, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut held = Vec::new();
    while held.iter().map(WindowLease::len).sum::<u64>() < 100_000 {
        held.push(window(&program));
    }
    println!("holding {} windows", held.len());
    loop {
        std::thread::park();
    }
}

/// A process of its own, which ends without a word (SIGKILL): its connection ends, lent chains go
/// back to the guest, and nobody else notices.
#[test]
fn a_program_that_is_killed_with_windows_in_its_hands_ends_its_connection() {
    if let Ok(how) = std::env::var(KILLED) {
        let (way, path) = how.split_once(' ').expect("a way and a path");
        return hold_until_killed(path, way == "direct");
    }
    for way in ["mapped", "direct"] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3).shared()]);
        let mut guest = backend.guest("vm");
        guest.stack.listen(PORT, SocketType::Stream);
        let mut program = only(this_test!())
            .env(KILLED, format!("{way} {}", map_path(&backend).display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let said = BufReader::new(program.stdout.take().expect("a pipe"));
        let conn = guest.accept(PORT);
        let (other, mut stream) = backend.open("vm", &mut guest, 1234);
        // More than the windows take, so that more waits to be published.
        let sent = pattern(200_000, 1);
        let mut at = 0;
        let (_, line) = guest.both(
            |g| {
                g.until("it is sent, or as far as credit goes", |s| {
                    at += s.send(conn, &sent[at..]).expect("sent");
                    at == sent.len() || s.credit(conn) == 0
                });
            },
            || said.lines().map(|l| l.expect("text")).find(|l| l.contains("holding")),
        );
        assert!(line.is_some(), "{way}: the program ended");
        guest.ping(other, &mut stream);
        program.kill().expect("killed");
        let status = guest.with_host(|| program.wait()).expect("its end");
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{way}");
        let state = guest.ended(conn);
        assert!(matches!(state, ConnState::Closed | ConnState::Reset), "{way}: {state:?}");
        guest.until("all chains are back", |s| s.queues().tx.in_flight() == 0);
        guest.until("the connection is gone", |_| backend.stats("vm").totals.connections_open == 1);
        guest.ping(other, &mut stream);
    }
}

/// One header page describes 510 packets.
#[test]
fn a_window_with_several_header_pages_has_as_many_packets() {
    const MESSAGES: u32 = 1300;
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let pages = MappedOptions::seqpacket().header_pages(3).data_pages(MESSAGES).windows(2);
    let (conn, program) = dial(&backend, &mut guest, SocketType::SeqPacket, pages.lowat(MESSAGES));
    for n in 0..MESSAGES {
        guest.send(conn, &[n as u8]);
    }
    let w = guest.with_host(|| window(&program));
    assert_eq!(w.packets().count(), MESSAGES as usize);
    for (n, p) in w.packets().enumerate() {
        let bytes = p.bytes().expect("copied");
        assert!(bytes == [n as u8] && p.end_of_message(), "message {n}: {bytes:?}");
        assert_eq!(bytes.as_ptr().addr() % 4096, 0, "each message begins on a page of its own");
    }
    drop(w);
    let ((), (rest, messages)) = guest.both(|g| send_and_end(g, conn, b"rest"), || drain(&program));
    assert_eq!((rest.as_slice(), messages.as_slice()), (&b"rest"[..], &[4][..]));
}

#[test]
fn below_the_low_water_mark_nothing_comes_before_the_end() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream().lowat(5000));
    guest.send(conn, &[1; 4999]);
    guest.stack.flush(PATIENCE).expect("sent");
    let came = guest.with_host(|| program.wait(Some(Duration::from_millis(50))).expect("it waits"));
    assert!(!came && program.poll_value() == 0);
    guest.send(conn, &[2; 1]);
    assert_eq!(guest.with_host(|| window(&program)).len(), 5000);
    send_and_end(&mut guest, conn, &[3; 10]);
    let (rest, _) = guest.with_host(|| drain(&program));
    assert_eq!(rest, [3; 10]);
}

/// More bytes than the guest may send ahead make a window worth while. What is not published yet
/// can't be given back, so the device must not wait for it.
#[test]
fn a_low_water_mark_above_the_credit_stops_nobody() {
    for direct in [false, true] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3).shared().buffer(64 << 10)]);
        let mut guest = backend.guest("vm");
        let options = MappedOptions::stream().lowat(512 << 10).direct(direct);
        let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
        let sent = pattern((3 << 20) + 77, 4);
        let ((), (got, _)) = guest.both(|g| send_and_end(g, conn, &sent), || drain(&program));
        assert!(got == sent, "direct: {direct}");
    }
}

/// Several mappings of one process, which are removed and made again while data arrives.
#[test]
fn connections_of_one_process_are_unmapped_and_mapped_again_under_traffic() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let small = MappedOptions::stream().windows(3).data_pages(4).header_pages(2);
    let (a, first) = dial(&backend, &mut guest, SocketType::Stream, small);
    let (b, second) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream());
    let sent = [pattern(300_000, 1), pattern(300_000, 2)];
    let take = |program: &MappedConnection| {
        let (mut bytes, mut held) = (Vec::new(), None::<WindowLease>);
        loop {
            match program.dequeue().unwrap_or_else(|e| panic!("{e}")) {
                Dequeued::Window(w) => {
                    bytes.extend(w.packets().flat_map(|p| p.bytes().expect("copied").to_vec()));
                    // One stays in the hand while the next one comes, and its memory with it.
                    held = Some(w);
                    program.unmap().expect("mapped");
                    assert!(program.dequeue().is_err() && program.poll_value() == 0, "not mapped");
                    program.map().expect("mapped again");
                }
                Dequeued::NotYet => assert!(program.wait(Some(PATIENCE)).expect("it waits"), "data in time"),
                Dequeued::End => break,
            }
        }
        drop(held);
        bytes
    };
    let ((), got) = guest.both(
        |g| {
            for (x, y) in sent[0].chunks(7_000).zip(sent[1].chunks(7_000)) {
                g.send(a, x);
                g.send(b, y);
            }
            for conn in [a, b] {
                g.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
            }
        },
        || {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| take(&second));
                [take(&first), other.join().expect("the other program's part")]
            })
        },
    );
    assert!(got == sent);
}

#[test]
fn direct_windows_need_a_yes_and_move_nothing() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let path = map_path(&backend);
    let options = MappedOptions::stream().direct(true);
    let refused = guest.with_host(|| vsock::connect(&path, PORT, &options)).expect_err("refused").to_string();
    assert!(refused.contains("--share-guest-memory"), "{refused}");

    let backend = VsockBackend::start(&[Vm::new("vm", 3).shared()]);
    let mut guest = backend.guest("vm");
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
    let sent = pattern(4 << 20, 3);
    let ((), (got, _)) = guest.both(|g| send_and_end(g, conn, &sent), || drain(&program));
    assert!(got == sent);
    let t = backend.stats("vm").totals.transmit;
    assert_eq!(t.bytes, 4 << 20, "{t:?}");
    assert!(t.zero_copied_bytes > 0, "{t:?}");
}

/// With the real library; `mapped_bounds` has the bounds one by one.
#[test]
fn direct_windows_that_are_held_make_way_for_copied_ones() {
    let hold = Duration::from_millis(1);
    let vm = Vm::new("vm", 3).shared();
    let backend = VsockBackend::start(&[Vm { map: vm.map.hold(hold), ..vm }]);
    let mut guest = backend.guest("vm");
    let options = MappedOptions::stream().direct(true).windows(8);
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
    guest.send(conn, &pattern(100_000, 0));
    let held = guest.with_host(|| window(&program));
    std::thread::sleep(2 * hold);
    guest.send(conn, &pattern(100_000, 1));
    let copied = || backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
    guest.until("what comes now is copied", |_| copied() >= 100_000);
    let mut got = vec![0; held.len() as usize];
    let mut at = 0;
    for p in held.packets() {
        at += p.copy_to(0, &mut got[at..]);
    }
    drop(held);
    guest.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
    got.extend(guest.with_host(|| drain(&program)).0);
    assert!(got == [pattern(100_000, 0), pattern(100_000, 1)].concat());
}

#[test]
fn wrong_requests_are_answered_with_what_is_wrong() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType as T};
    let backend = VsockBackend::one();
    let _guest = backend.guest("vm");
    let ask = |bytes: &[u8]| {
        let s = rustix::net::socket_with(AddressFamily::UNIX, T::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        rustix::net::connect(&s, &SocketAddrUnix::new(map_path(&backend)).expect("an address"))
            .expect("connected");
        rustix::io::write(&s, bytes).expect("written");
        let mut answer = [0; 256];
        assert_eq!(rustix::io::read(&s, &mut answer).expect("an answer"), 256);
        zerowire_wire::mapped::MapReply::from_bytes(&answer).expect("a reply")
    };
    let garbage = ask(b"CONNECT 5000\n");
    assert_eq!(i32::from(garbage.status), libc::EINVAL);
    assert!(garbage.text.contains("13 bytes"), "{}", garbage.text);
    let mut options = *MappedOptions::stream().map_options();
    options.windows = 64;
    options.data_pages = 4096;
    let request = zerowire_wire::mapped::MapRequest {
        op: zerowire_wire::mapped::MapOp::Connect,
        port: 1,
        kind: 1,
        options,
    };
    let big = ask(&request.to_bytes());
    assert!(big.text.contains("--map-max"), "{}", big.text);
    wait_until("both are counted", || backend.stats("vm").totals.bad_handshakes == 2);
}

/// Reads until the end, or until the library says why there is none.
fn read_all(program: &MappedConnection) -> (Vec<u8>, Result<(), vsock::Error>) {
    let mut bytes = Vec::new();
    loop {
        match program.dequeue() {
            Ok(Dequeued::Window(w)) => {
                w.packets().for_each(|p| bytes.extend_from_slice(p.bytes().expect("copied")));
            }
            Ok(Dequeued::NotYet) => assert!(program.wait(Some(PATIENCE)).expect("it waits"), "in time"),
            Ok(Dequeued::End) => return (bytes, Ok(())),
            Err(e) => return (bytes, Err(e)),
        }
    }
}

#[test]
fn the_guest_hears_that_the_program_reads_no_more() {
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let backend = VsockBackend::one();
        let mut guest = backend.guest("vm");
        let options =
            if kind == SocketType::Stream { MappedOptions::stream() } else { MappedOptions::seqpacket() };
        let (conn, mut program) = dial(&backend, &mut guest, kind, options.windows(2).data_pages(1));
        guest.send(conn, &pattern(1000, 1));
        let held = guest.with_host(|| window(&program));
        // More than the other window takes waits in the daemon.
        guest.send(conn, &pattern(20_000, 2));
        guest.stack.flush(PATIENCE).expect("sound");
        program.unmap().expect("mapped");
        program.shutdown(Shutdown::Read).expect("shut, also while unmapped");
        program.map().expect("mapped again");
        guest.until("it is told", |s| s.peer_shutdown(conn) == SHUTDOWN_RCV);
        assert_eq!(held.packets().next().and_then(|p| p.bytes()), Some(&pattern(1000, 1)[..]));
        drop(held);
        // What was published before can still be read, and the end is marked behind it.
        let (rest, end) = guest.with_host(|| read_all(&program));
        assert!(pattern(20_000, 2).starts_with(&rest) && rest.len() <= 8192, "{} bytes", rest.len());
        assert!(end.is_ok() || kind == SocketType::SeqPacket, "{end:?}");
        // The other direction goes on.
        program.write_all(b"still there").expect("written");
        assert_eq!(guest.recv(conn, 11), b"still there");
        drop(program);
        assert!(guest.recv_to_end(conn).is_empty());
        guest.stack.close(conn).expect("open");
        guest.until("no connection", |_| backend.stats("vm").totals.connections_open == 0);
    }
}

/// All windows are published when the guest closes, so none is free for the mark of the end.
#[test]
fn a_program_that_reads_no_more_sees_the_end_behind_full_windows() {
    for how in [Shutdown::Read, Shutdown::Both] {
        let backend = VsockBackend::one();
        let mut guest = backend.guest("vm");
        let options = MappedOptions::stream().windows(2).data_pages(1);
        let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
        guest.send(conn, &pattern(20_000, 1));
        guest.stack.flush(PATIENCE).expect("sound");
        program.shutdown(how).expect("shut");
        guest.until("it is told", |s| s.peer_shutdown(conn) & SHUTDOWN_RCV != 0);
        guest.stack.close(conn).expect("open");
        guest.until("no connection", |_| program.is_hung_up().expect("a poll"));
        let (got, end) = guest.with_host(|| read_all(&program));
        assert!(pattern(20_000, 1).starts_with(&got) && got.len() == 8192, "{how:?}: {} bytes", got.len());
        assert!(end.is_ok(), "{how:?}: {end:?}");
    }
}

#[test]
fn a_program_that_shuts_both_directions_reads_what_it_has() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream());
    guest.send(conn, &pattern(1000, 1));
    guest.stack.flush(PATIENCE).expect("sound");
    guest.with_host(|| assert!(program.wait(Some(PATIENCE)).expect("it waits")));
    program.shutdown(Shutdown::Both).expect("shut");
    guest.until("it is told", |s| s.peer_shutdown(conn) == SHUTDOWN_RCV | SHUTDOWN_SEND);
    let (got, end) = guest.with_host(|| read_all(&program));
    assert!(got == pattern(1000, 1) && end.is_ok(), "{} bytes, {end:?}", got.len());
}

#[test]
fn a_stream_that_the_guest_cuts_short_is_told_from_a_whole_one() {
    for whole in [true, false] {
        let backend = VsockBackend::one();
        let mut guest = backend.guest("vm");
        let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, MappedOptions::stream());
        let bytes = pattern(10_000, 3);
        guest.send(conn, &bytes);
        match whole {
            true => guest.stack.shutdown(conn, SHUTDOWN_SEND).expect("open"),
            false => guest.stack.abort(conn).expect("open"),
        }
        let (got, end) = guest.with_host(|| read_all(&program));
        assert!(got == bytes, "{} bytes", got.len());
        match (whole, end) {
            (true, Ok(())) => {}
            (false, Err(vsock::Error::CutShort { port: PORT })) => {
                let e = (&program).read(&mut [0; 8]).expect_err("it stays so");
                assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset);
            }
            (_, end) => panic!("whole: {whole}, and the end says {end:?}"),
        }
    }
}

#[test]
fn a_driver_that_goes_cuts_streams_short_also_behind_what_waits() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let options = MappedOptions::stream().windows(2).data_pages(1);
    let (conn, program) = dial(&backend, &mut guest, SocketType::Stream, options);
    let bytes = pattern(30_000, 3);
    guest.send(conn, &bytes);
    guest.stack.flush(PATIENCE).expect("sound");
    drop(guest);
    let (got, end) = read_all(&program);
    assert!(got == bytes, "{} bytes", got.len());
    assert!(matches!(end, Err(vsock::Error::CutShort { .. })), "{end:?}");
}
