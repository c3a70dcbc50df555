//! Memory of connections, idle ones and those on which bytes wait or have waited.

use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{Kind, SEQ_EOM};

use super::device::{CHAIN, CIDS, Device};
use super::{heap, host};

/// What a connection may take beside the bytes that wait on it.
const CONNECTION: usize = 4096;

/// What a thread keeps for the bytes that wait next, whatever its connections are.
const THREAD: usize = 320 << 10;

/// Connections at once.
const MANY: usize = 1000;

/// Allocated since, bytes.
fn since(before: isize) -> usize {
    usize::try_from(heap::live() - before).expect("no less than before")
}

/// Bytes that wait. What is allocated beside them is bounded; of them, a hundredth more is needed
/// to find them.
fn check(device: &mut Device, before: isize, connections: usize, beside: usize) -> usize {
    let held = device.harness.held_bytes(0) + device.harness.held_bytes(1);
    let (now, most) = (since(before), connections * CONNECTION + held + held / 100 + beside);
    assert!(now <= most, "{now} bytes for {connections} connections and {held} bytes that wait");
    held
}

#[test]
fn a_thousand_idle_connections() {
    let mut device = Device::new(VsockLimits::default());
    let before = heap::live();
    let open = host::connect(&mut device, MANY, Kind::Stream);
    let each = since(before) / open.len();
    assert!(each <= CONNECTION / 4, "{each} bytes a connection");
}

/// Each connection holds another number of bytes; they leave in steps, so that pieces of all of
/// them are partly taken.
#[test]
fn a_thousand_connections_on_which_bytes_wait_for_a_guest() {
    let mut device = Device::new(VsockLimits::default());
    let before = heap::live();
    let keys: Vec<_> = (0..MANY).map(|_| device.connect(0, CIDS[1], 7, Kind::Stream)).collect();
    let idle = since(before);
    device.posts[1] = None;
    let mut sum = 0;
    for (n, key) in keys.iter().enumerate() {
        let len = if n % 100 == 50 { 250_000 } else { 1 + n * 97 % 40_000 };
        assert_eq!(device.send_all(0, *key, len, 1 + n * 7919 % CHAIN), len);
        sum += len;
        if n % 50 == 0 {
            check(&mut device, before, MANY, 0);
        }
    }
    let mut held = check(&mut device, before, MANY, 0);
    // The buffers that were posted before took some.
    assert!(held + 16 * 4096 >= sum, "{held} of {sum} bytes wait");
    device.posts[1] = Some(1500);
    let mut steps = 0;
    while held > 0 {
        device.turns(4);
        held = check(&mut device, before, MANY, THREAD);
        steps += 1;
    }
    assert!(steps > 100, "{steps} looks while bytes left");
    device.rest();
    assert!(since(before) <= idle + THREAD, "{} bytes, idle {idle}", since(before));
    assert_eq!(device.conns[1].values().map(|c| c.received as usize).sum::<usize>(), sum);
}

#[test]
fn bytes_that_wait_for_host_programs() {
    // Only a buffer that is larger than what a socket keeps makes bytes wait here.
    let mut device = Device::new(VsockLimits::default().buffer_bytes(16 << 20));
    let before = heap::live();
    let mut hosts = host::connect(&mut device, 2, Kind::Stream);
    let idle = since(before);
    let mut sum = 0;
    for host in &hosts {
        sum += device.send_all(0, host.key, 16 << 20, CHAIN);
        check(&mut device, before, 2, 0);
    }
    let held = check(&mut device, before, 2, 0);
    assert!(held > 1 << 20, "{held} of {sum} bytes wait");
    while hosts.iter().map(|h| h.read).sum::<usize>() < sum {
        for host in &mut hosts {
            (0..10).for_each(|_| assert!(host.read(10_007) <= 10_007));
        }
        device.turns(4);
        check(&mut device, before, 2, THREAD);
    }
    device.rest();
    assert_eq!(device.harness.held_bytes(0), 0);
    assert!(since(before) <= idle + THREAD, "{} bytes, idle {idle}", since(before));
}

/// Of messages it has to keep the lengths, too: a byte for those of less than 32 bytes, and a
/// quarter more at most.
#[test]
fn short_messages_that_wait() {
    const CONNECTIONS: usize = 4;
    const MESSAGES: usize = 30_000;
    let mut device = Device::new(VsockLimits::default());
    let before = heap::live();
    let keys: Vec<_> = (0..CONNECTIONS).map(|_| device.connect(0, CIDS[1], 7, Kind::SeqPacket)).collect();
    let idle = since(before);
    device.posts[1] = None;
    let (mut sent, mut sum) = (0, 0);
    for n in 0..MESSAGES {
        for key in &keys {
            let len = 1 + n % 5;
            while !device.send(0, *key, len, SEQ_EOM) {
                device.turn();
            }
            (sent, sum) = (sent + 1, sum + len);
        }
        if n % 1000 == 0 {
            check(&mut device, before, CONNECTIONS, sent + sent / 4);
        }
    }
    device.rest();
    let mut held = check(&mut device, before, CONNECTIONS, sent + sent / 4);
    assert!(held > sum - 100, "{held} of {sum} bytes wait");
    device.posts[1] = Some(4096);
    while held > 0 {
        device.turns(500);
        let received: u32 = device.conns[1].values().map(|c| c.messages).sum();
        let marks = sent - received as usize;
        held = check(&mut device, before, CONNECTIONS, marks + marks / 4 + THREAD);
    }
    device.rest();
    assert!(since(before) <= idle + THREAD, "{} bytes, idle {idle}", since(before));
    assert!(device.conns[1].values().all(|c| c.messages as usize == MESSAGES));
}

/// A system call takes no more than 1024 pieces, and has to take the whole message.
#[test]
fn a_message_of_more_pieces_than_a_call_takes() {
    const LEN: usize = 1_200_000;
    let mut device = Device::new(VsockLimits::default().buffer_bytes(4 << 20));
    let before = heap::live();
    let mut hosts = host::connect(&mut device, 1, Kind::SeqPacket);
    let host = &mut hosts[0];
    for at in (0..LEN).step_by(CHAIN) {
        let len = CHAIN.min(LEN - at);
        let flags = if at + len == LEN { SEQ_EOM } else { 0 };
        while !device.send(0, host.key, len, flags) {
            device.turn();
            check(&mut device, before, 1, 0);
        }
    }
    device.rest();
    let allowed = std::fs::read_to_string("/proc/sys/net/core/wmem_max").expect("a setting");
    if allowed.trim().parse::<usize>().expect("a number") < LEN {
        assert_eq!(device.resets, 1, "longer than the socket takes");
    } else {
        assert_eq!((host.read(2 * LEN), device.resets), (LEN, 0));
    }
    assert_eq!(device.harness.held_bytes(0), 0);
    assert!(since(before) <= CONNECTION + THREAD);
}

/// Empty messages take no credit. Behind many of them others are no more than they would be
/// without.
#[test]
fn more_messages_than_the_buffer_has_bytes_do_not_wait() {
    const BUFFER: usize = 4096;
    let limits = VsockLimits::default().buffer_bytes(BUFFER as u32);
    // To the other guest, which posts nothing, and to a host program, which reads nothing.
    for to_host in [false, true] {
        let mut device = Device::new(limits);
        let hosts = if to_host { host::connect(&mut device, 1, Kind::SeqPacket) } else { Vec::new() };
        let key = match hosts.first() {
            Some(host) => host.key,
            None => device.connect(0, CIDS[1], 7, Kind::SeqPacket),
        };
        device.posts[1] = None;
        let mut sent = 0;
        while device.resets == 0 {
            assert!(sent < 3 * BUFFER, "no end after {sent} messages");
            let len = usize::from(sent >= BUFFER - 100);
            if device.send(0, key, len, SEQ_EOM) {
                sent += 1;
            } else {
                device.turn();
            }
        }
        let dropped = device.harness.totals(0).transmit.dropped_frames;
        assert_eq!(dropped.get("beyond_credit"), Some(&1), "{dropped:?}");
        // What the other side took before it had to wait: 16 buffers, or what a socket keeps of
        // messages.
        let before = if to_host { 2 * BUFFER } else { 64 };
        assert!((BUFFER..=BUFFER + before).contains(&sent), "{sent} messages");
    }
}
