//! Frames that a guard lets pass name no other host, whatever their headers, and whatever checksum
//! is stored where the virtio-net header says.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use zerowire_net::guard::testing::{GUARD, OWN, names_another};
use zerowire_net::{ETH_HEADER_BYTES, FrameGuard, header};

const HEADER: usize = 12;

fuzz_target!(|bytes: &[u8]| {
    static CHECKS: OnceLock<FrameGuard> = OnceLock::new();
    let guard = CHECKS.get_or_init(|| FrameGuard::parse(GUARD, None).expect("checks"));
    let Some((choice, rest)) = bytes.split_first_chunk::<3>() else { return };
    if rest.len() < HEADER + ETH_HEADER_BYTES {
        return;
    }
    let mut private = rest.to_vec();
    if choice[0] & 1 == 0 {
        private[HEADER + 6..HEADER + 12].copy_from_slice(&OWN);
    }
    let frame_len = private.len() - HEADER;
    if header::check(&mut private, HEADER, frame_len, u64::MAX).is_err() {
        return;
    }
    let (vnet, frame) = private.split_at_mut(HEADER);
    if guard.check(vnet, frame).is_err() {
        return;
    }
    if vnet[0] & 1 != 0 {
        let word = |at: usize| usize::from(u16::from_le_bytes([vnet[at], vnet[at + 1]]));
        let at = word(6) + word(8);
        frame[at..at + 2].copy_from_slice(&choice[1..]);
    }
    assert_ne!(names_another(frame), Some(true), "{frame:02x?}");
});
