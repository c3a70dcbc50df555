//! Captures of any bytes, plain and in gzip: packets and at most one error come out, and no more
//! bytes than went in.
//!
//! The reader is part of the program `zerowire`, and is built here from its sources.
#![no_main]

#[path = "../../crates/zerowire-cli/src/replay/capture/mod.rs"]
#[allow(dead_code, unused_imports, reason = "files by name are not opened here")]
mod capture;

use std::io::{Cursor, Read};

use capture::Reader;
use capture::error::MAX_PACKET_BYTES;
use capture::input::unpack;
use libfuzzer_sys::fuzz_target;

/// Bytes that a packed capture may become: a bomb costs no more time than that.
const UNPACKED: u64 = 4 << 20;

fn read(bytes: impl Read, most: usize) {
    let Ok(mut reader) = Reader::open(bytes) else { return };
    let (mut number, mut total) = (0, 0);
    // An error ends it, as it does for the program.
    while let Ok(Some(packet)) = reader.next() {
        number += 1;
        assert_eq!(packet.number, number, "packets are counted from 1");
        assert!(packet.data.len() <= packet.wire_bytes as usize, "more was captured than there was");
        assert!(packet.data.len() <= MAX_PACKET_BYTES as usize);
        total += packet.data.len();
        assert!(total <= most, "{total} bytes of packets from a capture of {most}");
    }
    assert_eq!(reader.packets, number);
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes, bytes.len());
    if bytes.starts_with(&[0x1f, 0x8b])
        && let Ok(stream) = unpack(Box::new(Cursor::new(bytes.to_vec())))
    {
        read(stream.take(UNPACKED), UNPACKED as usize);
    }
});
