//! Frames of any bytes, made ready for offload: the header lies within the frame, and nothing but a
//! checksum changes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zerowire::packet::VnetHeader;

fuzz_target!(|bytes: &[u8]| {
    let Some((gso, frame)) = bytes.split_first_chunk() else { return };
    let gso = match u16::from_le_bytes(*gso) {
        u16::MAX => None,
        n => Some(n),
    };
    let mut prepared = frame.to_vec();
    let Ok(header) = VnetHeader::prepare(&mut prepared, gso) else {
        assert_eq!(prepared, frame, "a frame that is refused stays as it was");
        return;
    };
    header.check(frame.len()).expect("headers within the frame");
    assert_eq!(header.is_segmented(), gso.is_some());
    let fields = header.to_bytes();
    let word = |at: usize| usize::from(u16::from_ne_bytes([fields[at], fields[at + 1]]));
    let (hdr_len, gso_size, start, offset) = (word(2), word(4), word(6), word(8));
    assert!(hdr_len <= frame.len() && start + offset + 2 <= frame.len());
    if gso.is_some() {
        assert!(gso_size > 0 && hdr_len >= start + 8, "segments of nothing, or without their headers");
    }
    let at = start + offset;
    assert!(prepared[..at] == frame[..at] && prepared[at + 2..] == frame[at + 2..]);
});
