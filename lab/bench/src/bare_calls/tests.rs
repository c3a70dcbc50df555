use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::case::WorkingSet;
use crate::frame::{GUEST_MAC, SINK_MAC};

/// A pair of sockets that keep the bounds of frames, as a tap does.
fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap()
}

/// The frame, its slots, its calls, and memory for them.
fn ready(direction: Direction, frame_len: usize, fragment_len: usize) -> (Vec<u8>, Slots, Calls, Area) {
    let case = Case { direction, frame_len, working_set: WorkingSet::Hot };
    let frame = Frame::build(frame_len, SINK_MAC, GUEST_MAC).unwrap();
    let (slots, calls) = Calls::of_device(&case, &frame, fragment_len).unwrap();
    (frame.with_header(), slots, calls, Area::new(slots.total()).unwrap())
}

#[test]
fn a_frame_is_sent_whole_as_the_device_sends_it() {
    // Bytes that are copied, and parts that are sent from where they lie.
    for (frame_len, fragment_len, copied, parts) in [
        (64, 32_768, 76, 0),
        (4084, 32_768, 4096, 0),
        (4085, 32_768, 154, 1),
        (9000, 32_768, 154, 1),
        (60_000, 65_549, 154, 1),
        (60_000, 32_768, 154, 2),
        (60_000, 4096, 154, 15),
        (60_000, 1000, 60_012, 0),
    ] {
        let (image, slots, mut calls, mut area) = ready(Direction::Transmit, frame_len, fragment_len);
        let Calls::Transmit(transmit) = &calls else { panic!("{calls:?}") };
        assert_eq!((transmit.head, transmit.in_place.len()), (copied, parts), "{frame_len} {fragment_len}");
        calls.fill(area.bytes_mut(), slots, &image);
        let (ours, theirs) = pair();
        let mut came = vec![0; 70_000];
        for index in 0..2 * slots.places().min(100) {
            assert_eq!(calls.write(&ours, area.bytes(), slots, index, image.len()), Ok(image.len()));
            assert_eq!(io::read(&theirs, &mut came), Ok(image.len()));
            assert!(came[..image.len()] == image, "{frame_len} bytes in pieces of {fragment_len}: {index}");
        }
    }
}

#[test]
fn a_frame_is_received_whole_into_the_guests_buffers() {
    for (frame_len, copies) in [(64, true), (1500, true), (4084, true), (4085, false), (9000, false)]
        .into_iter()
        .chain([(60_000, false), (65_549, false)])
    {
        let (image, slots, mut calls, mut area) = ready(Direction::Receive, frame_len, 32_768);
        let Calls::Receive(DeviceReceive { copies: copied, buffers, .. }) = calls else {
            panic!("{calls:?}")
        };
        assert_eq!(copied, copies, "{frame_len}");
        let (ours, theirs) = pair();
        // More than once around the working set.
        for index in 0..2 * slots.places().min(100) {
            area.bytes_mut().fill(0);
            assert_eq!(io::write(&theirs, &image), Ok(image.len()));
            assert_eq!(calls.read(&ours, area.bytes_mut(), slots, index, image.len()), Ok(image.len()));
            let step = image.len().min(buffer_len(frame_len));
            for (buffer, part) in image.chunks(step).enumerate() {
                let at = slots.offset(index * buffers + buffer);
                assert!(area.bytes()[at..at + part.len()] == *part, "{frame_len} bytes: {index}");
            }
        }
    }
}
