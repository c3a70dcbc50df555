//! Hostile programs with mapped receive beside sound connections of the same guest: what the bytes
//! mean is said in `zerowire_vsock::testing`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use zerowire_vsock::testing::play_mapped;

fuzz_target!(|script: &[u8]| {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| tempfile::tempdir().expect("a directory for sockets"));
    play_mapped(dir.path(), script);
});
