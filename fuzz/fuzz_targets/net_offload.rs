//! Frames with any offload fields and any headers, cut by software: what comes out is the frame's
//! own payload behind its own headers, in frames that fit the port, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zerowire_net::offload::testing::cut;

/// Bytes that are read into private memory at most.
const HEADERS: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first_chunk::<4>() else { return };
    let Some((vnet, start)) = rest.split_first_chunk::<10>() else { return };
    let piece = usize::from(choice[0]) * 16 + 1;
    let longest = if choice[1] & 1 == 0 { 1518 } else { 3840 };
    let more = usize::from(u16::from_le_bytes([choice[2], choice[3]]));
    let mut frame = start.to_vec();
    frame.extend((0..more).map(|i| (i * 7) as u8));
    if frame.len() < 14 {
        return;
    }
    let Ok(frames) = cut(vnet, &frame, longest, piece) else { return };
    let word = |at: usize| usize::from(u16::from_le_bytes([vnet[at], vnet[at + 1]]));
    let (size, start) = (word(4), word(6));
    if frames.len() == 1 {
        let field = start + word(8);
        let same = |range: std::ops::Range<usize>| frames[0][range.clone()] == frame[range];
        assert_eq!(frames[0].len(), frame.len());
        match vnet[0] & 1 {
            0 => assert!(same(0..frame.len())),
            _ => assert!(same(0..field) && same(field + 2..frame.len()), "more than a checksum was changed"),
        }
        return;
    }
    let headers = frames[0].len() - size;
    assert!(headers > start && headers <= HEADERS && frames.iter().all(|f| f.len() <= longest));
    // Neither Ethernet header nor addresses nor ports change.
    for f in &frames {
        assert!(
            f.len() > headers && f[..14] == frame[..14] && f[start..start + 4] == frame[start..start + 4]
        );
    }
    let payload: Vec<u8> = frames.iter().flat_map(|f| f[headers..].iter().copied()).collect();
    assert!(payload == frame[headers..], "another payload");
    assert!(frames.iter().rev().skip(1).all(|f| f.len() == headers + size), "segments of different lengths");
});
