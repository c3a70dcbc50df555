use super::super::netns::in_netns;
use super::*;
use crate::port::packet::Frames;

#[test]
fn a_ring_that_can_not_be_opened_is_given_up_or_tried_again() {
    in_netns(|| {
        for (receive, says) in
            [(PacketReceive::Auto, "not tried again (receive=auto)"), (PacketReceive::Ring, "; tried again")]
        {
            let socket = PacketSocket::open("v0", Frames::Untagged, 12).expect("a socket");
            let mut inbound = Inbound::new(receive, None);
            assert_eq!(inbound.describe(), "no receive ring yet");
            // A socket has one ring.
            let other = socket.open_slots(12).expect("a ring");
            assert!(inbound.open(&socket, "v0", 12));
            let text = inbound.describe();
            assert!(text.contains("can't be opened: ") && text.contains(says), "{text}");
            assert!(!inbound.open(&socket, "v0", 12), "not before it is time");
            std::thread::sleep(RETRY);
            assert!(!inbound.open(&socket, "v0", 12), "no news");
            socket.close_slots(other).expect("closed");
            std::thread::sleep(RETRY);
            let opened = inbound.open(&socket, "v0", 12);
            assert_eq!(opened, receive == PacketReceive::Ring);
            assert_eq!(inbound.describe().contains("1024 slots of 2048 bytes"), opened);
            assert_eq!(inbound.slots().is_some(), opened);
            assert!(!inbound.open(&socket, "v0", 12), "it is there, or given up");
        }
    });
}

#[test]
fn there_is_none_where_none_was_asked_for() {
    in_netns(|| {
        let socket = PacketSocket::open("v0", Frames::Untagged, 12).expect("a socket");
        for (receive, refused, says) in [
            (PacketReceive::Socket, None, "no receive ring, as asked"),
            (PacketReceive::Ring, Some("so it is"), "no receive ring, since so it is"),
        ] {
            let mut inbound = Inbound::new(receive, refused);
            assert!(!inbound.open(&socket, "v0", 12));
            assert_eq!((inbound.describe().as_str(), inbound.close(&socket, "v0")), (says, 0));
            assert!(!inbound.check(&socket, "v0", 9) && !inbound.check(&socket, "v0", 9));
        }
    });
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status().expect("ip (iproute2)");
    assert!(done.success(), "ip {arguments}");
}

/// A ring on one end of a veth, and a long frame in it, whose slot says that it is in the
/// queue.
fn with_long_frame() -> (PacketSocket, Inbound) {
    // No frames of the host's own.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("a setting of the namespace");
    ip("link add v0 mtu 9000 type veth peer name v1 mtu 9000");
    ip("link set v0 up");
    ip("link set v1 up");
    let [socket, other] = [("v0", Frames::Untagged), ("v1", Frames::Nothing)]
        .map(|(name, frames)| PacketSocket::open(name, frames, 12).expect("a socket"));
    let mut inbound = Inbound::new(PacketReceive::Auto, None);
    assert!(inbound.open(&socket, "v0", 12));
    socket.bind().expect("bound");
    other.bind().expect("bound");
    let frame = [&[0; 12][..], &[2; 12], &[0x88, 0xb5], &[7; 5000]].concat();
    let start = Instant::now();
    // The kernel throws away what comes before the pair carries frames.
    while !matches!(inbound.slots().and_then(|s| s.arrived(0)), Some(crate::port::packet::Arrived::Queued(_)))
    {
        assert!(start.elapsed() < Duration::from_secs(20), "no frame comes");
        let slots = inbound.slots().expect("a ring");
        if slots.arrived(0).is_some() {
            slots.give_back();
        } else {
            assert_eq!(rustix::io::write(&other, &frame), Ok(frame.len()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    (socket, inbound)
}

/// A frame whose slot is being written is in the queue already: such a ring does not stand
/// still.
#[test]
fn a_frame_without_a_slot_is_waited_for_and_not_for_ever() {
    in_netns(|| {
        let (socket, mut inbound) = with_long_frame();
        assert!(!inbound.check(&socket, "v0", 0) && !inbound.check(&socket, "v0", 5), "it has a frame");
        let slots = inbound.slots().expect("a ring");
        while slots.arrived(0).is_some() {
            slots.give_back();
        }
        assert!(socket.has_queued());
        let begin = Instant::now();
        zerowire_testkit::wait_until("it is given up", || inbound.check(&socket, "v0", 0));
        assert!(begin.elapsed() >= STRAY, "it may come");
        assert!(inbound.describe().contains("it stood still") && !socket.has_queued());
    });
}

#[test]
fn an_empty_ring_stands_still_where_frames_are_dropped() {
    in_netns(|| {
        let (socket, mut inbound) = with_long_frame();
        let slots = inbound.slots().expect("a ring");
        while slots.arrived(0).is_some() {
            slots.give_back();
        }
        assert!(!inbound.check(&socket, "v0", 7), "they may have been dropped while it was full");
        assert!(inbound.check(&socket, "v0", 1) && inbound.slots().is_none());
    });
}
