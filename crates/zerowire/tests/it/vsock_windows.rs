//! Windows as a program receives them: layout, bounds, order, sleeping, mapping.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use zerowire::recv::vsock::{self, Dequeued, Error, MappedConnection, MappedOptions, WindowLease};
use zerowire_testkit::mapped::{Daemon, Writer};
use zerowire_testkit::own_process;
use zerowire_wire::mapped::{ENTRY_EOM, ENTRY_EOR, PAGE, POLL_DATA, POLL_END, POLL_NOTHING};

fn pair(options: MappedOptions) -> (MappedConnection, Writer) {
    let daemon = Daemon::new();
    let path = daemon.path();
    let program = thread::spawn(move || vsock::connect(&path, 5000, &options).expect("a connection"));
    let writer = daemon.accept().connect();
    (program.join().expect("connected"), writer)
}

fn take(c: &MappedConnection) -> WindowLease {
    match c.dequeue().expect("sound") {
        Dequeued::Window(w) => w,
        other => panic!("{other:?} in place of a window"),
    }
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    zerowire_testkit::net::lab::pattern(seed, len)
}

fn contents(window: &WindowLease) -> Vec<Vec<u8>> {
    window.packets().map(|p| p.bytes().expect("in the window").to_vec()).collect()
}

#[test]
fn packets_of_56_4096_and_8200_bytes_fill_five_pages() {
    let (program, mut daemon) = pair(MappedOptions::stream().packed(false));
    let packets = [pattern(56, 1), pattern(4096, 2), pattern(8200, 3)];
    daemon.window(&packets.each_ref().map(|p| (p.as_slice(), 0)));
    assert_eq!(daemon.header_word(0, 4).load(Ordering::Relaxed), 5, "hdr_num");
    assert_eq!(program.poll_value(), POLL_DATA);
    let window = take(&program);
    assert_eq!(contents(&window), packets);
    assert_eq!(window.len(), 56 + 4096 + 8200);
    // Pages with 56, 4096, 4096, 4096 and 8 bytes: each packet starts a page, and the last one lies
    // over three.
    let starts: Vec<_> = window.packets().map(|p| p.bytes().expect("here").as_ptr() as usize).collect();
    assert_eq!(starts.iter().map(|s| (s - starts[0]) / PAGE).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(starts.iter().all(|s| s % PAGE == 0));
    assert!(window.packets().all(|p| p.flags() == 0));
    drop(window);
    assert!(daemon.is_free(0));
    assert!(matches!(program.dequeue(), Ok(Dequeued::NotYet)));
    let ledger = program.ledger();
    assert_eq!((ledger.zero_copied_bytes, ledger.copied_total(), ledger.frames), (12352, 0, 3));
}

#[test]
fn small_packets_of_a_packed_stream_are_one_run_of_bytes() {
    let (program, mut daemon) = pair(MappedOptions::stream());
    for i in 0..=255u8 {
        assert_eq!(daemon.append(&[i], 0), 1);
    }
    daemon.publish();
    let window = take(&program);
    assert_eq!(contents(&window), [(0..=255).collect::<Vec<u8>>()]);
}

#[test]
fn message_bounds_and_record_bounds_are_kept() {
    for packed in [true, false] {
        let (program, mut daemon) = pair(MappedOptions::seqpacket().packed(packed));
        daemon.window(&[
            (b"one", ENTRY_EOM),
            (b"two", ENTRY_EOM | ENTRY_EOR),
            (b"thr", 0),
            (b"ee", ENTRY_EOM),
        ]);
        let window = take(&program);
        let seen: Vec<_> = window
            .packets()
            .map(|p| (p.bytes().expect("here"), p.end_of_message(), p.end_of_record()))
            .collect();
        let parts: &[_] = if packed {
            &[(&b"three"[..], true, false)]
        } else {
            &[(b"thr", false, false), (b"ee", true, false)]
        };
        let mut want = vec![(&b"one"[..], true, false), (b"two", true, true)];
        want.extend(parts);
        assert_eq!(seen, want, "packed {packed}");
    }
}

#[test]
fn a_big_message_lies_over_several_windows() {
    let (program, mut daemon) = pair(MappedOptions::seqpacket().windows(2).data_pages(2));
    let message = pattern(5 * 2 * PAGE + 100, 7);
    let sent = message.clone();
    let writer = thread::spawn(move || {
        daemon.send(&sent, ENTRY_EOM);
        daemon.send(b"next", ENTRY_EOM);
        daemon.end();
    });
    let mut got = Vec::new();
    let mut windows = 0;
    loop {
        assert!(program.wait(None).expect("the daemon lives"));
        match program.dequeue().expect("sound") {
            Dequeued::Window(window) => {
                windows += 1;
                let packet = window.packet(0).expect("one");
                got.extend_from_slice(packet.bytes().expect("here"));
                if packet.end_of_message() {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((got, windows), (message, 6));
    let mut next = Vec::new();
    assert_eq!(program.read_message(&mut next).expect("sound"), Some(ENTRY_EOM));
    assert_eq!(next, b"next");
    assert_eq!(program.read_message(&mut next).expect("sound"), None);
    writer.join().expect("ended");
}

#[test]
fn spinning_makes_no_system_call_and_rings_no_bell() {
    let (program, mut daemon) = pair(MappedOptions::stream().windows(3));
    let writer = thread::spawn(move || {
        for i in 0..200u8 {
            while !daemon.is_free(u32::from(i) % 3) {
                thread::yield_now();
            }
            daemon.window(&[(&[i; 100], 0)]);
        }
        while !daemon.is_free(2) {
            thread::yield_now();
        }
        daemon.end();
        daemon
    });
    let mut seen = 0;
    loop {
        match program.poll_value() {
            POLL_NOTHING => thread::yield_now(),
            POLL_DATA => {
                assert_eq!(contents(&take(&program)), [vec![seen; 100]]);
                seen += 1;
            }
            POLL_END => break,
            other => panic!("poll_value {other:#x}"),
        }
    }
    assert_eq!(seen, 200);
    assert!(matches!(program.dequeue(), Ok(Dequeued::End)));
    assert!(matches!(program.dequeue(), Ok(Dequeued::End)), "the end stays");
    assert_eq!(program.ledger().system_calls, 0);
    let daemon = writer.join().expect("ended");
    let mut fds = [PollFd::new(&daemon.ready, PollFlags::IN), PollFd::new(&daemon.released, PollFlags::IN)];
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&none)), Ok(0));
}

#[test]
fn what_was_pending_at_the_close_is_there() {
    own_process!();
    let (program, mut daemon) = pair(MappedOptions::stream());
    daemon.window(&[(b"first", 0)]);
    daemon.window(&[(b"second", 0)]);
    daemon.end();
    drop(daemon);
    assert!(program.is_hung_up().expect("polled"));
    assert!(program.wait(None).expect("there is data"));
    assert_eq!(contents(&take(&program)), [b"first"]);
    assert_eq!(contents(&take(&program)), [b"second"]);
    assert!(program.wait(None).expect("the end is there"));
    assert!(matches!(program.dequeue(), Ok(Dequeued::End)));
}

#[test]
fn windows_are_held_together_and_released_out_of_order() {
    let (program, mut daemon) = pair(MappedOptions::stream().windows(3));
    for text in [b"aaa", b"bbb", b"ccc"] {
        daemon.window(&[(text, 0)]);
    }
    let (a, b, c) = (take(&program), take(&program), take(&program));
    let e = program.dequeue().expect_err("the ring is held");
    assert!(matches!(e, Error::Held { window: 0, windows: 3 }), "{e}");
    assert_eq!(program.poll_value(), POLL_NOTHING);
    assert!(matches!(program.wait(None), Err(Error::Held { window: 0, .. })), "no sleep without a way out");
    drop(c);
    drop(b);
    assert_eq!([0, 1, 2].map(|w| daemon.is_free(w)), [false, true, true]);
    assert_eq!(contents(&a), [b"aaa"]);
    drop(a);
    assert!(matches!(program.dequeue(), Ok(Dequeued::NotYet)));
    daemon.window(&[(b"ddd", 0)]);
    assert_eq!(contents(&take(&program)), [b"ddd"]);
}

#[test]
fn a_lease_outlives_its_connection_and_moves_to_other_threads() {
    let (program, mut daemon) = pair(MappedOptions::stream());
    daemon.window(&[(&pattern(9000, 9), 0)]);
    let window = take(&program);
    drop(program);
    thread::spawn(move || assert_eq!(contents(&window), [pattern(9000, 9)])).join().expect("same bytes");
    assert!(daemon.is_free(0));
}

#[test]
fn several_header_pages_describe_more_packets() {
    let (program, mut daemon) = pair(MappedOptions::seqpacket().header_pages(3).data_pages(1600));
    assert_eq!(program.options().max_entries(), 1534);
    let packets: Vec<_> = (0..1534u32).map(|i| i.to_le_bytes()).collect();
    for p in &packets {
        assert_eq!(daemon.append(p, ENTRY_EOM), 4);
    }
    assert_eq!(daemon.append(b"more", ENTRY_EOM), 0, "no entry is left");
    daemon.publish();
    let window = take(&program);
    assert_eq!(window.packet_count(), 1534);
    assert!(window.packets().zip(&packets).all(|(p, want)| p.bytes() == Some(want)));
}

#[test]
fn unmapping_and_mapping_again_loses_nothing() {
    let (program, mut daemon) = pair(MappedOptions::stream().windows(2));
    assert!(matches!(program.map(), Err(Error::AlreadyMapped)));
    daemon.window(&[(b"one", 0)]);
    let held = take(&program);
    program.unmap().expect("mapped");
    assert!(matches!(program.unmap(), Err(Error::NotMapped)));
    assert!(matches!(program.dequeue(), Err(Error::NotMapped)));
    assert!(matches!(program.wait(None), Err(Error::NotMapped)));
    assert!(matches!(program.arm(), Err(Error::NotMapped)));
    daemon.window(&[(b"two", 0)]);
    assert_eq!(contents(&held), [b"one"], "the lease has its own mapping");
    for _ in 0..3 {
        program.map().expect("mapped again");
        program.unmap().expect("unmapped again");
    }
    program.map().expect("mapped again");
    let two = take(&program);
    assert_eq!(contents(&two), [b"two"]);
    assert!(
        matches!(program.dequeue(), Err(Error::Held { window: 0, .. })),
        "held through the other mapping"
    );
    drop(held);
    assert!(daemon.is_free(0));
    daemon.window(&[(b"three", 0)]);
    assert_eq!(contents(&take(&program)), [b"three"]);
}

#[test]
fn several_connections_of_one_process_do_not_mix() {
    let mut pairs: Vec<_> = (0..3).map(|_| pair(MappedOptions::stream())).collect();
    for (i, (_, daemon)) in pairs.iter_mut().enumerate() {
        daemon.window(&[(&pattern(5000, i as u32), 0)]);
    }
    for (i, (program, _)) in pairs.iter().enumerate() {
        assert_eq!(contents(&take(program)), [pattern(5000, i as u32)]);
    }
}

#[test]
fn sleeping_program_and_waiting_daemon_wake_each_other() {
    let (program, mut daemon) = pair(MappedOptions::stream().windows(2).data_pages(1));
    let bytes = pattern(300_000, 5);
    let sent = bytes.clone();
    let writer = thread::spawn(move || {
        daemon.send(&sent, 0);
        daemon.end();
    });
    let mut got = Vec::new();
    loop {
        match program.dequeue().expect("sound") {
            Dequeued::Window(w) => contents(&w).iter().for_each(|p| got.extend_from_slice(p)),
            Dequeued::NotYet => assert!(program.wait(None).expect("the daemon lives")),
            Dequeued::End => break,
        }
    }
    writer.join().expect("ended");
    assert!(got == bytes);
}

#[test]
fn waiting_ends_by_timeout_and_by_the_daemons_death() {
    let (program, daemon) = pair(MappedOptions::stream());
    assert!(!program.wait(Some(Duration::ZERO)).expect("the daemon lives"));
    assert!(!program.wait(Some(Duration::from_millis(20))).expect("the daemon lives"));
    assert_eq!(daemon.program_sleeps().load(Ordering::Relaxed), 0, "taken back");
    let gone = thread::spawn(move || drop(daemon));
    let e = program.wait(None).expect_err("the daemon is gone");
    assert!(matches!(e, Error::Disconnected { .. }), "{e}");
    gone.join().expect("ended");
    assert!(matches!(program.dequeue(), Ok(Dequeued::NotYet)));
}

#[test]
fn an_event_loop_sleeps_on_one_descriptor() {
    own_process!();
    fn readable(c: &MappedConnection) -> bool {
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(c.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&none)).expect("polled") == 1
    }
    let (program, mut daemon) = pair(MappedOptions::stream());
    daemon.window(&[(b"unarmed", 0)]);
    assert!(!readable(&program), "not armed: no bell");
    assert!(program.arm().expect("mapped"), "there is something already");
    drop(take(&program));
    assert!(!program.arm().expect("mapped"));
    assert!(!readable(&program));
    daemon.window(&[(b"armed", 0)]);
    assert!(readable(&program));
    program.disarm().expect("mapped");
    assert!(!readable(&program));
    assert_eq!(contents(&take(&program)), [b"armed"]);
    assert!(!program.arm().expect("mapped"));
    drop(daemon);
    assert!(readable(&program) && program.is_hung_up().expect("polled"), "the daemon's death wakes, too");
}

#[test]
fn reading_copies_over_packets_and_windows() {
    let (mut program, mut daemon) = pair(MappedOptions::stream().packed(false).data_pages(4));
    let bytes = pattern(20_000, 4);
    daemon.window(&[(&bytes[..56], 0), (&bytes[56..5000], 0)]);
    daemon.window(&[(&bytes[5000..15_000], 0)]);
    daemon.window(&[(&bytes[15_000..], 0)]);
    let mut first = [0; 100];
    assert_eq!(program.read(&mut first).expect("sound"), 100, "over packets");
    let e = program.dequeue().expect_err("a window is begun");
    assert!(matches!(e, Error::HalfRead { left: 4900 }), "{e}");
    let mut rest = vec![0; 19_900];
    assert_eq!(program.read(&mut rest).expect("sound"), 19_900, "over windows, without waiting");
    assert_eq!([&first[..], &rest].concat(), bytes);
    program.set_nonblocking(true).expect("set");
    assert_eq!(program.read(&mut first).expect_err("nothing").kind(), std::io::ErrorKind::WouldBlock);
    daemon.end();
    assert_eq!(program.read(&mut first).expect("the end"), 0);
    let ledger = program.ledger();
    assert_eq!((ledger.zero_copied_bytes, ledger.copied_bytes["asked"], ledger.frames), (0, 20_000, 4));
}

#[test]
fn a_read_never_gives_bytes_of_two_messages() {
    let (mut program, mut daemon) = pair(MappedOptions::seqpacket());
    daemon.window(&[(b"one", ENTRY_EOM), (b"two!", ENTRY_EOM)]);
    let mut buffer = [0; 64];
    assert_eq!(program.read(&mut buffer).expect("sound"), 3);
    assert_eq!(program.read(&mut buffer).expect("sound"), 4);
    assert_eq!(&buffer[..4], b"two!");
}
