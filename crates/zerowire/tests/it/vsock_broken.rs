//! Headers that no daemon should write: an error that names the value, and no access beyond the
//! window.

use std::thread;

use rustix::fs::SealFlags;
use zerowire::recv::vsock::{self, Dequeued, Error, MappedConnection, MappedOptions};
use zerowire_testkit::mapped::{Daemon, Writer, memfd};
use zerowire_testkit::random::Random;
use zerowire_wire::mapped::{ENTRY_DIRECT, PAGE, REGION_SHIFT};

fn pair() -> (MappedConnection, Writer) {
    let daemon = Daemon::new();
    let path = daemon.path();
    let options = MappedOptions::stream().packed(false).data_pages(4).direct(true);
    let program = thread::spawn(move || vsock::connect(&path, 1, &options).expect("a connection"));
    let writer = daemon.accept().connect_with(&[(memfd(2 * PAGE, SealFlags::SHRINK), 0, 2 * PAGE as u64)]);
    (program.join().expect("connected"), writer)
}

fn broken(hdr_num: u32, entries: &[(u32, u32)], part: &str) {
    let (program, mut daemon) = pair();
    daemon.raw(hdr_num, entries);
    for _ in 0..2 {
        let e = program.dequeue().expect_err("broken");
        assert!(matches!(e, Error::BrokenWindow { window: 0, .. }) && e.to_string().contains(part), "{e}");
        assert_eq!(e.errno(), libc::EPROTO);
    }
}

#[test]
fn lengths_stay_within_the_window() {
    broken(5, &[(4 * PAGE as u32 + 1, 0)], "16385 bytes at data page 0 goes beyond 4 pages");
    broken(1, &[(u32::MAX, 0)], "4294967295 bytes");
    broken(5, &[(1, 0), (1, 0), (1, 0), (1, 0), (1, 0)], "1 bytes at data page 4");
    broken(2, &[(56, 0)], "hdr_num is 2, and the entries fill 1 data pages");
    broken(1, &[], "hdr_num is 1");
}

#[test]
fn entries_end_within_the_header_pages() {
    // The header page is full to its last entry, which should end them.
    let direct: Vec<_> = (0..255).flat_map(|_| [(1, ENTRY_DIRECT), (0, 0)]).collect();
    let (program, mut daemon) = pair();
    daemon.raw(0, &direct);
    let Dequeued::Window(w) = program.dequeue().expect("510 entries fit") else { panic!("no window") };
    assert_eq!(w.packet_count(), 255);
    drop((w, daemon));

    let (program, daemon) = pair();
    for (i, (length, flags)) in direct.iter().chain([&(1, ENTRY_DIRECT)]).enumerate() {
        daemon.header_word(0, 8 + 8 * i).store(*length, std::sync::atomic::Ordering::Relaxed);
        daemon.header_word(0, 12 + 8 * i).store(*flags, std::sync::atomic::Ordering::Relaxed);
    }
    daemon.publish_as(1);
    let e = program.dequeue().expect_err("511 entries");
    assert!(e.to_string().contains("no end within 510 entries"), "{e}");
}

#[test]
fn a_direct_entry_has_its_second_half() {
    let mut entries: Vec<_> = (0..254).flat_map(|_| [(1, ENTRY_DIRECT), (0, 0)]).collect();
    entries.push((1, 0));
    entries.push((1, ENTRY_DIRECT));
    broken(1, &entries, "the direct entry 510 has no second half");
}

#[test]
fn offsets_stay_within_their_region() {
    broken(0, &[(1, ENTRY_DIRECT | 1 << REGION_SHIFT), (0, 0)], "memory region 1 of 1");
    broken(0, &[(1, ENTRY_DIRECT | 0x00ff_ffff << REGION_SHIFT), (0, 0)], "memory region 16777215");
    broken(0, &[(1, ENTRY_DIRECT), (8192, 0)], "1 bytes at 0x2000 go beyond");
    broken(0, &[(8193, ENTRY_DIRECT), (0, 0)], "8193 bytes at 0x0 go beyond");
    broken(0, &[(2, ENTRY_DIRECT), (u32::MAX, u32::MAX)], "2 bytes at 0xffffffffffffffff");
}

#[test]
fn unknown_flags_and_states_are_refused() {
    broken(1, &[(1, 8)], "unknown flags 0x8");
    broken(1, &[(1, 1 << REGION_SHIFT)], "unknown flags 0x100");
    broken(0, &[(1, ENTRY_DIRECT | 0x40), (0, 0)], "unknown flags 0x44");
    let (program, daemon) = pair();
    daemon.publish_as(7);
    let e = program.dequeue().expect_err("broken");
    assert!(e.to_string().contains("poll_value 0x7"), "{e}");
}

/// Any headers: an error or packets in bounds, all bytes of which can be read.
#[test]
fn random_headers_never_fault() {
    let (program, mut daemon) = pair();
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let mut sound = 0;
    for _ in 0..20_000 {
        let entries: Vec<_> = (0..random.below(6))
            .map(|_| {
                let length = [0, 1, 56, 4096, 8192, 16384, 16385, u64::from(u32::MAX)][random.below(8)];
                let flags = [0, 0, 1, 3, 4, 5, 4 | 256, 8][random.below(8)];
                (length as u32, flags as u32)
            })
            .collect();
        daemon.raw(random.below(6) as u32, &entries);
        match program.dequeue() {
            Ok(Dequeued::Window(w)) => {
                sound += 1;
                let mut copy = vec![1; 16384];
                let bytes: usize = w.packets().map(|p| p.copy_to(0, &mut copy)).sum();
                assert_eq!(bytes as u64, w.len());
            }
            Err(Error::BrokenWindow { .. }) => break_ring(&program, &mut daemon),
            other => panic!("{other:?}"),
        }
    }
    assert!(sound > 100, "{sound}");
}

/// A broken window is not given out; the test takes it back by making it a sound one.
fn break_ring(program: &MappedConnection, daemon: &mut Writer) {
    daemon.repair();
    let Dequeued::Window(_) = program.dequeue().expect("sound") else { panic!("no window") };
}
