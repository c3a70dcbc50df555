//! What a supervisor reads of a child's capture: any bytes. Packets and at most one error come out,
//! and no more packets than the bytes have room for.
#![no_main]

use std::fs::File;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use zerowire_capture::{Capture, LINKTYPE_ETHERNET};

/// Bytes of a packet that are kept: fewer than some have.
const SNAPLEN: u32 = 64;
/// The shortest block of a packet, bytes.
const PACKET_BYTES: u64 = 32;

static CAPTURE: LazyLock<Capture> = LazyLock::new(|| {
    let nowhere = File::options().write(true).open("/dev/null").expect("a sink");
    Capture::stream(nowhere.into(), SNAPLEN).expect("a thread")
});

fuzz_target!(|bytes: &[u8]| {
    let interface = CAPTURE.interface(LINKTYPE_ETHERNET, "vm", "").expect("each name is captured");
    let said = interface.record_stream(bytes);
    assert!(said.is_ok() || bytes.len() >= 8, "no block, no error: {said:?}");
    assert!(interface.stats().captured <= bytes.len() as u64 / PACKET_BYTES);
});
