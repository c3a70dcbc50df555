//! That no byte of a payload is copied in user space. The tests check the scatter lists that go to
//! the kernel, and note them where the system call is made.

use std::cell::RefCell;

use crate::support::frames;
use crate::support::lab::Lab;
use crate::support::wire::{read_frame, receive, rx_policy, wire};
use zerowire::ledger::Counters;
use zerowire_guest::ring::{DESC_NEXT, DESC_WRITE};
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapOutlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup};
use zerowire_net::transmit::TransmitContext;
use zerowire_net::{Policy, Transmit};
use zerowire_sys::syscall::testing;

thread_local! {
    /// The last scatter list of this thread that moved anything: addresses and lengths.
    static LAST: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Notes the lists of this thread's writev and readv calls that moved anything.
fn note(number: libc::c_long, arguments: &[usize; 6], result: Result<usize, i32>) {
    if result.is_err() || ![libc::SYS_writev, libc::SYS_readv].contains(&number) {
        return;
    }
    // SAFETY: the call has just read the list at that address, with `arguments[2]` entries. Its
    // caller keeps it until the call returns.
    let list = unsafe { std::slice::from_raw_parts(arguments[1] as *const libc::iovec, arguments[2]) };
    let list = list.iter().map(|v| (v.iov_base.addr(), v.iov_len)).collect();
    let _ = LAST.try_with(|last| *last.borrow_mut() = list);
}

const PAGE: usize = 4096;
const BUFFERS: u64 = 0x10_0000;

fn lab() -> Lab {
    testing::watch(note);
    Lab::new(&[(0, 0x10_0000), (BUFFERS, 0x10_0000)])
}

/// Where guest address `addr` lies in the device's mapping.
fn host(lab: &Lab, addr: u64) -> usize {
    lab.memory.contiguous(addr, 1, &mut 0).expect("guest memory").addr()
}

fn is_guests(lab: &Lab, at: usize) -> bool {
    lab.memory.regions().iter().any(|r| (r.ptr().addr()..r.ptr().addr() + r.len()).contains(&at))
}

#[test]
fn a_long_frame_is_sent_from_the_guests_memory_behind_a_private_header() {
    let lab = lab();
    let ring = lab.ring(32);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let outlet = TapOutlet::new(Policy::default()).expect("memory");
    let mut side = Transmit::new(lab.device(&ring, 1, false), outlet, 0, 12);
    let frame = frames::frame(1, 16 * PAGE - 500);
    // A header of its own, then pages, every other one in descending order.
    lab.write(0x8_0000, &[0; 12]);
    ring.write_desc(0, 0x8_0000, 12, DESC_NEXT, 1);
    let mut pages = Vec::new();
    for (i, bytes) in frame.chunks(PAGE).enumerate() {
        let page = if i % 2 == 0 { i } else { 40 - i };
        let at = BUFFERS + (page * PAGE) as u64;
        lab.write(at, bytes);
        let more = if (i + 1) * PAGE < frame.len() { DESC_NEXT } else { 0 };
        ring.write_desc(1 + i as u16, at, bytes.len() as u32, more, 2 + i as u16);
        pages.push((host(&lab, at), bytes.len()));
    }
    ring.write_avail(0, 0);
    ring.publish_avail_idx(1);
    let counters = Counters::default();
    let mut cx = TransmitContext { memory: &lab.memory, counters: &counters, detour: None, guard: None };
    assert_eq!(side.run(&mut io, &mut cx).expect("a sound ring").chains, 1);

    let list = LAST.with(|l| l.borrow().clone());
    let (private, behind) = list.split_first().expect("a scatter list");
    assert!(!is_guests(&lab, private.0), "the header goes out of private memory");
    let skipped = private.1 - 12;
    assert!(skipped < 512, "{skipped} bytes of the frame are copied");
    let mut want = pages.clone();
    want[0] = (want[0].0 + skipped, want[0].1 - skipped);
    assert_eq!(behind, want, "all else lies where the guest put it");
    assert!(read_frame(&far).is_some_and(|got| got[12..] == frame));
    let t = counters.snapshot();
    assert_eq!(t.zero_copied_bytes as usize, frame.len() - skipped, "and the ledger says so");
    assert_eq!(t.copied_bytes["header"] as usize, private.1);
}

#[test]
fn a_frame_is_received_into_the_buffers_that_the_guest_posted() {
    let lab = lab();
    let ring = lab.ring(64);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let setup = ReceiveSetup { mergeable: true, header_len: 12, clears_flags: false };
    let mut side = receive(lab.device(&ring, 0, false), setup, rx_policy());
    for i in 0..64 {
        ring.write_desc(i, BUFFERS + u64::from(i) * PAGE as u64, PAGE as u32, DESC_WRITE, 0);
        ring.write_avail(i, i);
    }
    ring.publish_avail_idx(64);
    let counters = Counters::default();
    let mut used = 0u16;
    // The first long frame tells what comes; the second one is met by long reads.
    for (n, len) in [1500, 1514, 60_000, 60_000].into_iter().enumerate() {
        let frame = [vec![0; 12], frames::frame(n as u32, len)].concat();
        rustix::io::write(&far, &frame).expect("a frame on the wire");
        let before = counters.snapshot();
        let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
        assert_eq!(side.run(&mut io, &cx).expect("a sound ring").turn.chains, 1);
        let after = counters.snapshot();
        let buffers = frame.len().div_ceil(PAGE);
        if n != 2 {
            let list = LAST.with(|l| l.borrow().clone());
            // Buffers that lie one behind the other may be one entry of the list.
            let pages: Vec<_> =
                list.iter().flat_map(|(at, len)| (0..len / PAGE).map(move |k| at + k * PAGE)).collect();
            for (i, page) in pages.iter().take(buffers).enumerate() {
                let at = host(&lab, BUFFERS + (usize::from(used) + i) as u64 % 64 * PAGE as u64);
                assert_eq!(*page, at, "frame {n}, buffer {i}");
            }
            assert_eq!(after.zero_copied_bytes - before.zero_copied_bytes, frame.len() as u64);
            assert_eq!(after.copied_total(), before.copied_total());
        } else {
            assert_eq!(after.copied_bytes["overflow"], frame.len() as u64);
        }
        used += buffers as u16;
        assert_eq!(ring.used_idx(), used);
    }
}
