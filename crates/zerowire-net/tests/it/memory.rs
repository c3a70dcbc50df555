//! Guest memory that goes, comes back, loses its pages or changes while rings run.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::support::attack::{PLAIN, SIZE, front_end};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, frames, in_netns, options, wait_until};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use zerowire_guest::misbehave::{RawDesc, RawQueue, Toggler};
use zerowire_guest::net::Layout;
use zerowire_guest::{GuestAddr, Transport, features as f};
use zerowire_net::VmStats;
use zerowire_testkit::net::veth::veth;
use zerowire_vhost_user::{MemoryRegion, Request, SingleRegion};

/// Where memory is plugged.
const PLUGGED: GuestAddr = GuestAddr(2 << 32);

/// The region that both rings lie in goes. Whoever looked at it then would be killed: it is not
/// mapped any more.
#[test]
fn rings_whose_memory_goes_are_left_alone_until_it_is_back() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for (vm, peer) in [(Vm::new("zwgone"), "zwgone"), (Vm::on("zwgonep", "packet:v0"), "v1")] {
            let name = vm.name;
            let backend = Backend::start(&[vm]);
            let mut peer = Peer::new(peer);
            // Without event indices a device writes to the used ring whenever it is kicked.
            for features in [PLAIN, PLAIN & !f::RING_EVENT_IDX] {
                let (mut transport, memory) = front_end(&backend, name, features);
                let region = memory.add_region(PLUGGED, 1 << 20).expect("a region");
                transport.add_memory(&region).expect("plugged");
                let there = memory.only(PLUGGED).expect("the region");
                let mut tx = RawQueue::start(&there, &mut transport, 1, 64).expect("a queue");
                let mut rx = RawQueue::start(&there, &mut transport, 0, 64).expect("a queue");
                let buffer = rx.place(&[0; 2048]).expect("guest memory");
                let (mut sent, mut received) = (0u16, 0u16);
                let mut pass = |tx: &mut RawQueue, rx: &mut RawQueue, peer: &mut Peer| {
                    sent += 1;
                    let frame = frames::frame(u32::from(sent), 100);
                    let whole = tx.place(&[&[0; 12], frame.as_slice()].concat()).expect("guest memory");
                    tx.write_chain(0, &[RawDesc::readable(&whole)]);
                    tx.offer(0);
                    tx.kick().expect("a kick");
                    assert!(tx.wait_used(sent, PATIENCE), "the chain comes back");
                    assert_eq!(peer.expect().bytes, frame);
                    received += 1;
                    rx.write_chain(received % 64, &[RawDesc::writable(&buffer)]);
                    rx.offer(received % 64);
                    rx.kick().expect("a kick");
                    peer.send(&frame);
                    assert!(rx.wait_used(received, PATIENCE), "the frame comes");
                };
                pass(&mut tx, &mut rx, &mut peer);
                for _ in 0..3 {
                    let errors = backend.stats(name).ring_errors;
                    transport.remove_memory(&region).expect("removed");
                    wait_until("both rings are without their memory", || {
                        backend.stats(name).ring_errors == errors + 2
                    });
                    let view = memory.at(PLUGGED, 1 << 20).expect("still mapped here");
                    let mut before = Vec::new();
                    view.append_to(0, 1 << 20, &mut before);
                    let kicks = |s: &VmStats| (s.transmit.totals.kicks, s.receive.totals.kicks);
                    for _ in 0..20 {
                        let (t, r) = kicks(&backend.stats(name));
                        tx.kick().expect("a kick");
                        rx.kick().expect("a kick");
                        wait_until("the kicks are heard", || {
                            let (t2, r2) = kicks(&backend.stats(name));
                            t2 > t && r2 > r
                        });
                    }
                    let mut after = Vec::new();
                    view.append_to(0, 1 << 20, &mut after);
                    assert!(before == after, "memory was written after its removal");
                    transport.add_memory(&region).expect("plugged again");
                    // They go on where they were.
                    pass(&mut tx, &mut rx, &mut peer);
                }
                drop((tx, rx, transport));
                wait_until("the connection has ended", || !backend.stats(name).connected);
            }
        }
    });
}

/// Chains that were parsed ahead of their frames are in the ring again when the memory changes.
#[test]
fn no_buffer_is_lost_when_the_memory_changes() {
    const ENTRIES: u16 = 64;
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for (vm, peer) in [(Vm::new("zwkeep"), "zwkeep"), (Vm::on("zwkeepp", "packet:v0"), "v1")] {
            let name = vm.name;
            let backend = Backend::start(&[vm]);
            let peer = Peer::new(peer);
            let (mut transport, memory) = front_end(&backend, name, PLAIN);
            let mut rx = RawQueue::start(&memory, &mut transport, 0, ENTRIES).expect("a queue");
            let buffer = rx.place(&[0; 2048]).expect("guest memory");
            for i in 0..ENTRIES {
                rx.write_chain(i, &[RawDesc::writable(&buffer)]);
                rx.offer(i);
            }
            rx.kick().expect("a kick");
            let region = memory.add_region(PLUGGED, 1 << 20).expect("a region");
            for n in 0..ENTRIES {
                match n % 4 {
                    1 => transport.add_memory(&region).expect("plugged"),
                    3 => transport.remove_memory(&region).expect("unplugged"),
                    _ => {}
                }
                peer.send(&frames::frame(u32::from(n), 60));
                assert!(rx.wait_used(n + 1, PATIENCE), "{name}: buffer {n} is used");
                assert_eq!(rx.ring().used_entry(n).0, u32::from(n), "{name}: in order");
            }
        }
    });
}

/// Whether nobody maps the file for writing or has pinned pages of it: only then can it be sealed.
fn is_free(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_ok()
}

fn sealable(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("plugged", flags).expect("a memfd");
    rustix::fs::ftruncate(&file, len).expect("its length");
    file
}

#[test]
fn nothing_holds_memory_that_was_removed() {
    const LEN: u64 = 4 << 20;
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let vms = [
            (Vm::new("zwfree"), "zwfree"),
            (Vm::on("zwfreep", "packet:v0"), "v1"),
            (Vm::on("zwfreex", "xdp:v0,mode=copy"), "v1"),
        ];
        for (vm, peer) in vms {
            let name = vm.name;
            let backend = Backend::start(&[vm]);
            let mut peer = Peer::new(peer);
            let mut guest = backend.guest(name, &options(0, Layout::Split));
            // While an AF_XDP port registers memory anew, frames to the guest are lost.
            let mut ping = |guest: &mut Guest, n| {
                guest.warm_up(0, &peer);
                guest.ping(&mut peer, n);
            };
            ping(&mut guest, 1);
            let file = sealable(LEN);
            let region =
                MemoryRegion { guest_addr: PLUGGED.0, size: LEN, user_addr: 1 << 40, mmap_offset: 0 };
            let body = SingleRegion(region).encode();
            let transport = guest.driver.transport();
            transport.tell(Request::AddMemReg, &body, &[file.as_fd()]).expect("plugged");
            ping(&mut guest, 2);
            assert!(!is_free(&file), "{name}: it is in use");
            guest.driver.transport().tell(Request::RemMemReg, &body, &[]).expect("unplugged");
            // The kernel lets go of AF_XDP's memory some time after the socket was closed.
            wait_until(&format!("{name}: its pages are free"), || is_free(&file));
            ping(&mut guest, 3);
        }
    });
}

/// What a balloon, free-page reporting and virtio-mem do: pages are discarded, and when the guest
/// uses them again there are others.
#[test]
fn what_goes_out_is_what_the_guest_wrote_after_its_pages_were_discarded() {
    const HEAD: u64 = 0x10_0000;
    const DATA: u64 = 0x20_0000;
    const PAGE: u64 = 4096;
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let ports = ["packet:v0,rings=off", "packet:v0,rings=on", "xdp:v0,mode=copy,pin=off"];
        let vms = [(Vm::new("zwdisc"), "zwdisc")].into_iter();
        let vms = vms.chain(ports.map(|port| (Vm::on("zwdiscp", port), "v1")));
        for (vm, far) in vms {
            let (name, port) = (vm.name, vm.port.clone());
            // Frames of an AF_XDP port fit into a page.
            let len: u32 = if port.starts_with("xdp") { 1000 } else { 4096 };
            let backend = Backend::start(&[vm]);
            let mut peer = Peer::new(far);
            let (mut transport, memory) = front_end(&backend, name, PLAIN);
            let mut tx = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
            let head = [&[0; 12][..], &frames::frame(1, 60)[..14]].concat();
            memory.at(GuestAddr(HEAD), head.len()).expect("memory").write(0, &head);
            let data = memory.at(GuestAddr(DATA), 2 * PAGE as usize).expect("memory");
            for (round, byte) in (1u16..).zip(*b"ABCDE") {
                if round > 1 {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let file = memory.regions()[0].file().try_clone_to_owned().expect("a descriptor");
                    rustix::fs::fallocate(&file, flags, DATA, 2 * PAGE).expect("punched");
                }
                data.fill(byte);
                let piece = |n: u64| RawDesc { addr: DATA + n * PAGE, len, flags: 0, next: 0 };
                let first = RawDesc { addr: HEAD, len: head.len() as u32, flags: 0, next: 0 };
                tx.write_chain(0, &[first, piece(0), piece(1)]);
                tx.offer(0);
                tx.kick().expect("a kick");
                assert!(tx.wait_used(round, PATIENCE), "{port}: the chain comes back");
                let got = peer.expect().bytes;
                assert_eq!(got.len(), 14 + 2 * len as usize, "{port}");
                assert!(got[14..].iter().all(|b| *b == byte), "{port}: old memory in round {round}");
            }
        }
    });
}

/// A descriptor that is read a second time, behind its check, would have the device read what lies
/// behind the guest's memory.
#[test]
fn a_descriptor_that_changes_while_it_is_read_is_what_was_checked() {
    const END: u64 = (1 << 32) + (1 << 20);
    const LEN: u32 = 2000;
    const ENOUGH: u32 = 40;
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwdesc")]);
        let mut peer = Peer::new("zwdesc");
        let desc = |addr: u64, len: u32, flags: u16, next: u16| {
            [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
        };
        let good = desc(END - u64::from(LEN), LEN, 0, 0);
        // Behind the end of memory, around the end of the address space, behind the table.
        let bad = [
            desc(END - u64::from(LEN), 65_000, 0, 0),
            desc(u64::MAX - 100, LEN, 0, 0),
            desc(END - u64::from(LEN), LEN, 1, SIZE),
        ];
        let mut frame = vec![0x5a; LEN as usize];
        frame[..12].fill(0);
        for bad in bad {
            let (mut sent, mut errors) = (0, 0);
            let (mut transport, memory) = front_end(&backend, "zwdesc", PLAIN);
            memory.at(GuestAddr(END - u64::from(LEN)), LEN as usize).expect("memory").write(0, &frame);
            let start = Instant::now();
            while sent < ENOUGH || errors < 3 {
                assert!(
                    start.elapsed() < 3 * PATIENCE,
                    "the descriptor did not change as it should: {sent}, {errors}"
                );
                let mut tx = RawQueue::start(&memory, &mut transport, 1, SIZE).expect("a queue");
                let toggler = Toggler::start(tx.ring().desc().part(0, 16), [good.clone(), bad.clone()]);
                let before = backend.stats("zwdesc").ring_errors;
                let broken = || backend.server.stats().vms[0].ring_errors > before;
                let mut offered = 0u16;
                while !broken() && (sent < ENOUGH || errors < 3) {
                    for _ in 0..SIZE {
                        tx.offer(0);
                    }
                    offered = offered.wrapping_add(SIZE);
                    tx.kick().expect("a kick");
                    wait_until("the chains come back, or the ring breaks", || {
                        tx.ring().used_idx() == offered || broken()
                    });
                    for got in peer.drain() {
                        assert_eq!(got.bytes, frame[12..], "what went out is the guest's");
                        sent += 1;
                    }
                }
                errors += u32::from(broken());
                drop(toggler);
                transport.stop_queue(1).expect("stopped");
            }
            let dropped = backend.stats("zwdesc").transmit.totals.dropped_frames;
            assert!(dropped.is_empty(), "a frame was sent from where no memory is: {dropped:?}");
            drop(transport);
            wait_until("the connection has ended", || !backend.stats("zwdesc").connected);
        }
    });
}
