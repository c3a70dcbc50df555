use super::*;
use crate::frame::{GUEST_MAC, SINK_MAC};

fn frame(len: usize) -> Frame {
    Frame::build(len, SINK_MAC, GUEST_MAC).unwrap()
}

#[test]
fn frames_are_cut_as_a_guest_does() {
    assert_eq!(segment_lens(&frame(1500), 32768), [1512]);
    assert_eq!(segment_lens(&frame(60_000), 32768), [78, 32768, 27166]);
    let pages = segment_lens(&frame(60_000), 4096);
    assert_eq!(pages.len(), 16);
    assert_eq!(pages.iter().sum::<usize>(), 60_012);
}

#[test]
fn buffers_of_frames_follow_their_length() {
    assert_eq!(buffers_of_frame(64), 1);
    assert_eq!(buffers_of_frame(1524), 1);
    assert_eq!(buffers_of_frame(1525), 1);
    assert_eq!(buffers_of_frame(9000), 3);
    assert_eq!(buffers_of_frame(60_000), 15);
}

#[test]
fn a_back_end_that_stops_is_noticed() {
    let mut watch = ChainWatch::new("transmit", 10);
    watch.last.1 -= STALL_LIMIT * 2;
    let error = (0..2000).find_map(|_| watch.spin(0).err()).unwrap();
    assert!(error.to_string().contains("0 of 10"), "{error}");
}
