//! Receiving through AF_XDP: the program, the fill and the receive ring.

use std::os::fd::AsFd;
use std::time::Instant;

use zerowire::send::frame::FrameSender;
use zerowire::xdp::{SenderOptions, XdpError, XdpSender};
use zerowire_sys::xdp::program::{Hook, Rule, Steering};
use zerowire_sys::xdp::{
    Descriptor, KERNEL_HEADROOM_BYTES, Socket, SocketOptions, Umem, UmemOptions, address,
};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{HERE, Lab, THERE, frame, in_lab};
use zerowire_testkit::own_process;

const CHUNK: usize = 4096;
const CHUNKS: usize = 64;

/// A socket on the peer's end, and what steers to it.
fn receiver(lab: &Lab, umem: UmemOptions, multi_buffer: bool, hook: Hook) -> (Socket, Steering) {
    lab.at_peer(|| {
        let umem = Umem::new(CHUNKS * CHUNK, umem, false).expect("registered");
        let socket = Socket::bind(&umem, &SocketOptions { multi_buffer, ..SocketOptions::new(THERE) })
            .unwrap_or_else(|e| panic!("{e}"));
        let steering = Steering::attach(THERE, 1, hook).unwrap_or_else(|e| panic!("{e}"));
        steering.steer(&socket).unwrap_or_else(|e| panic!("{e}"));
        (socket, steering)
    })
}

fn wait(socket: &mut Socket) -> Descriptor {
    let start = Instant::now();
    loop {
        if let Some(piece) = socket.receive().expect("a ring").pop() {
            socket.receive().expect("a ring").release();
            return piece;
        }
        if socket.fill().needs_wakeup() {
            socket.wake_receive().expect("woken");
        }
        assert!(start.elapsed() < PATIENCE, "no frame; {:?}", socket.statistics());
        let mut poll = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        rustix::event::poll(&mut poll, Some(&pause)).expect("polled");
    }
}

fn read(socket: &Socket, at: u64, len: u32) -> Vec<u8> {
    let bytes = socket.umem().bytes(at, len as usize).expect("in bounds");
    // SAFETY: a frame that came out of the receive ring and whose chunk is not filled again
    // meanwhile.
    unsafe { bytes.as_ref() }.to_vec()
}

fn sender() -> XdpSender {
    XdpSender::open(SenderOptions::new(HERE).frames(64)).unwrap_or_else(|e| panic!("{e}"))
}

fn send(sender: &mut XdpSender, bytes: &[u8]) {
    assert!(sender.push(bytes.len(), &mut |place| place.copy_from_slice(bytes)).expect("pushed"));
    sender.drain(PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    sender.reap();
}

/// The same body for both hooks.
fn frames_land_where_the_fill_ring_says(hook: Hook) {
    in_lab(move |lab| {
        lab.veth();
        let headroom = 100;
        let options = UmemOptions { headroom_bytes: headroom, ..UmemOptions::default() };
        let (mut socket, steering) = receiver(lab, options, false, hook);
        assert_eq!(steering.hook(), hook);
        let mut sender = sender();
        // Enough for the rings' indices to go round the chunks many times.
        for n in 0..400usize {
            let chunk = (n * 7 % CHUNKS * CHUNK) as u64;
            assert!(socket.fill().push(chunk));
            socket.fill().publish();
            let bytes = frame(n as u32, 60 + n * 3);
            send(&mut sender, &bytes);
            let piece = wait(&mut socket);
            assert_eq!(piece.address, chunk + u64::from(KERNEL_HEADROOM_BYTES + headroom));
            assert_eq!((piece.len as usize, piece.continues()), (bytes.len(), false));
            assert_eq!(read(&socket, piece.address, piece.len), bytes);
        }
        assert_eq!(socket.statistics().expect("statistics").receive_dropped, 0);
    });
}

#[test]
fn frames_land_where_the_fill_ring_says_native() {
    frames_land_where_the_fill_ring_says(Hook::Native);
}

#[test]
fn frames_land_where_the_fill_ring_says_generic() {
    frames_land_where_the_fill_ring_says(Hook::Generic);
}

#[test]
fn unaligned_chunks_receive_at_any_byte() {
    own_process!();
    in_lab(|lab| {
        lab.veth();
        let options = UmemOptions { unaligned: true, headroom_bytes: 2322, ..UmemOptions::default() };
        let (mut socket, _steering) = receiver(lab, options, false, Hook::Auto);
        let mut sender = sender();
        for n in 0..50u64 {
            let chunk = n * 4567 + n % 2;
            assert!(socket.fill().push(chunk));
            socket.fill().publish();
            let bytes = frame(n as u32, 60 + n as usize * 29);
            send(&mut sender, &bytes);
            let piece = wait(&mut socket);
            assert_eq!(address::chunk(piece.address), chunk);
            assert_eq!(address::plain(piece.address), chunk + 256 + 2322);
            assert_eq!(read(&socket, address::plain(piece.address), piece.len), bytes);
        }
        // The end of the chunk is the bound: 4096 - 256 - 2322 = 1518 bytes. A longer one is
        // dropped before it is written.
        lab.mtu(HERE, 2000);
        drop(sender);
        let mut sender = self::sender();
        socket.fill().push(0);
        socket.fill().push(8192);
        socket.fill().publish();
        send(&mut sender, &frame(1, 1519));
        send(&mut sender, &frame(2, 1518));
        let piece = wait(&mut socket);
        assert_eq!(read(&socket, address::plain(piece.address), piece.len), frame(2, 1518));
        assert_eq!(socket.statistics().expect("statistics").receive_dropped, 1);
    });
}

#[test]
fn long_frames_come_in_pieces() {
    in_lab(|lab| {
        lab.veth();
        lab.mtu(HERE, 9000);
        let (mut socket, _steering) = receiver(lab, UmemOptions::default(), true, Hook::Auto);
        let mut sender = sender();
        for len in [60, 3840, 3841, 7680, 7681, 9014] {
            for n in 0..4 {
                assert!(socket.fill().push(n * CHUNK as u64));
            }
            socket.fill().publish();
            let bytes = frame(len as u32, len);
            send(&mut sender, &bytes);
            let mut arrived = Vec::new();
            loop {
                let piece = wait(&mut socket);
                arrived.extend(read(&socket, piece.address, piece.len));
                if !piece.continues() {
                    break;
                }
            }
            assert_eq!(arrived, bytes, "{len} bytes");
        }
    });
}

#[test]
fn a_frame_without_a_chunk_is_dropped_and_counted() {
    in_lab(|lab| {
        lab.veth();
        let (mut socket, _steering) = receiver(lab, UmemOptions::default(), false, Hook::Auto);
        let mut sender = sender();
        send(&mut sender, &frame(1, 100));
        let start = Instant::now();
        while socket.statistics().expect("statistics").fill_empty == 0 {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        assert!(socket.receive().expect("a ring").pop().is_none());
        socket.fill().push(0);
        socket.fill().publish();
        send(&mut sender, &frame(2, 100));
        let piece = wait(&mut socket);
        assert_eq!(read(&socket, piece.address, piece.len), frame(2, 100));
    });
}

#[test]
fn the_program_goes_with_the_value_and_respects_others() {
    own_process!();
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut sender = sender();
        for round in 0..50u32 {
            let first = lab.at_peer(|| Steering::attach(THERE, 4, Hook::Auto)).expect("attached");
            assert_eq!(first.hook(), Hook::Native);
            if round == 0 {
                let error =
                    lab.at_peer(|| Steering::attach(THERE, 4, Hook::Auto)).expect_err("one at a time");
                assert!(matches!(error, XdpError::OtherProgram { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains("another XDP program: 'zerowire_steer', number"), "{text}");
                assert!(text.contains("xdpdrv, of another zerowire process"), "{text}");
            }
            // A queue without a socket is the kernel's.
            send(&mut sender, &frame(round, 100));
            assert_eq!(capture.expect(), frame(round, 100));
            let error = first.stop(9).expect_err("no such queue");
            assert!(error.to_string().contains("queue 9"), "{error}");
        }
        let shown = lab.at_peer(|| {
            let out = std::process::Command::new("ip").args(["link", "show", THERE]).output().expect("ip");
            String::from_utf8_lossy(&out.stdout).into_owned()
        });
        assert!(!shown.contains("xdp"), "{shown}");
        let error = lab.at_peer(|| Steering::attach("nothere", 1, Hook::Auto)).expect_err("no interface");
        assert!(matches!(error, XdpError::NoInterface { .. }), "{error}");
        let error = lab.at_peer(|| Steering::attach(THERE, 0, Hook::Auto)).expect_err("no queue");
        assert!(matches!(error, XdpError::Value { .. }), "{error}");
    });
}

#[test]
fn a_queue_that_is_stopped_goes_to_the_kernel() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let (mut socket, steering) = receiver(lab, UmemOptions::default(), false, Hook::Auto);
        let mut sender = sender();
        socket.fill().push(0);
        socket.fill().push(CHUNK as u64);
        socket.fill().publish();
        send(&mut sender, &frame(1, 100));
        wait(&mut socket);
        assert!(capture.rest().is_empty(), "the kernel's own stack saw it");
        steering.stop(0).expect("stopped");
        send(&mut sender, &frame(2, 100));
        assert_eq!(capture.expect(), frame(2, 100));
        steering.steer(&socket).expect("steered again");
        send(&mut sender, &frame(3, 100));
        let piece = wait(&mut socket);
        assert_eq!(piece.address, CHUNK as u64 + 256);
        assert!(socket.as_fd().try_clone_to_owned().is_ok());
    });
}

/// A frame to some address: its content follows from `n`.
fn to(address: [u8; 6], n: u32, len: usize) -> Vec<u8> {
    let mut bytes = frame(n, len);
    bytes[..6].copy_from_slice(&address);
    bytes
}

fn a_rule_has_its_frames(hook: Hook) {
    const GUEST: [u8; 6] = [0x02, 0, 0, 0x12, 0x34, 0x56];
    in_lab(move |lab| {
        lab.veth();
        let capture = lab.capture();
        let (mut socket, steering) = receiver(lab, UmemOptions::default(), false, hook);
        let rule = Rule { address: Some(GUEST), longest_bytes: 900 };
        steering.steer_by(&socket, &rule).expect("steered");
        let mut sender = sender();
        for n in 0..40 {
            socket.fill().push(n * CHUNK as u64);
        }
        socket.fill().publish();
        let one_off = |i: usize| {
            let mut a = GUEST;
            a[i] ^= if i == 0 { 4 } else { 1 };
            a
        };
        let mut n = 0;
        // The filter checks each byte of the address.
        for other in (0..6).map(one_off).chain([[0; 6]]) {
            // Of any length: what isn't for the socket is none of its business.
            for len in [60, 900, 901, 1514] {
                send(&mut sender, &to(other, n, len));
                assert_eq!(capture.expect(), to(other, n, len), "{other:02x?}");
                n += 1;
            }
        }
        for address in [GUEST, [0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [0x01, 0, 0x5e, 0, 0, 1]] {
            for len in [14, 60, 899, 900] {
                send(&mut sender, &to(address, n, len));
                let piece = wait(&mut socket);
                assert_eq!(read(&socket, piece.address, piece.len), to(address, n, len), "{address:02x?}");
                n += 1;
            }
        }
        assert_eq!(steering.dropped(0).expect("told"), 0);
        for (i, address) in [GUEST, [0xff; 6], GUEST].into_iter().enumerate() {
            send(&mut sender, &to(address, n, 901 + i));
        }
        send(&mut sender, &to(GUEST, n, 100));
        let piece = wait(&mut socket);
        assert_eq!(read(&socket, piece.address, piece.len), to(GUEST, n, 100));
        assert_eq!(steering.dropped(0).expect("told"), 3);
        assert!(capture.rest().is_empty(), "the kernel's own stack saw a frame of the socket's");
        // Another rule for the same socket; the count goes on.
        steering.steer_by(&socket, &Rule { address: None, longest_bytes: 100 }).expect("steered");
        send(&mut sender, &to(one_off(5), n, 101));
        send(&mut sender, &to(one_off(5), n, 100));
        let piece = wait(&mut socket);
        assert_eq!((piece.len, steering.dropped(0).expect("told")), (100, 4));
        // Without a socket the rule is not looked at.
        drop(socket);
        send(&mut sender, &to(GUEST, n, 1000));
        assert_eq!(capture.expect(), to(GUEST, n, 1000));
        assert!(steering.dropped(7).is_err(), "no such queue");
    });
}

#[test]
fn a_rule_has_its_frames_native() {
    own_process!();
    a_rule_has_its_frames(Hook::Native);
}

#[test]
fn a_rule_has_its_frames_generic() {
    own_process!();
    a_rule_has_its_frames(Hook::Generic);
}
