//! A front end that sends any messages in any order, with descriptors of any kind, to the
//! vhost-user session of a device: what the bytes mean is said in
//! `zerowire_vhost::testing`. No descriptor is left behind.
#![no_main]

use libfuzzer_sys::fuzz_target;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fuzz_target!(|script: &[u8]| {
    let before = open_files();
    zerowire_vhost::testing::play_session(script);
    assert_eq!(open_files(), before, "descriptors are left behind");
});
