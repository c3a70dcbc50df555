//! What a received frame costs by the length of the chains that the guest posts: CPU time of the
//! receive side, its system calls included, a frame. Frames come over a socket that keeps their
//! bounds, so that no interface is needed.
//!
//! `cargo run --release -p zerowire-net --example receive_cost`

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::time::{ClockId, clock_gettime};
use zerowire::ledger::Counters;
use zerowire_guest::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, RingMemory, write_desc_at};
use zerowire_guest::{GuestAddr, GuestMemory as Ram};
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapInlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup};
use zerowire_net::{Policy, Receive};
use zerowire_vhost::memory::{GuestMemory, RegionConfig};
use zerowire_vhost::ring::{RingAddresses, SplitRing};

type Error = Box<dyn std::error::Error>;

const SIZE: u16 = 256;
const PAGE: u64 = 4096;
/// Frames that wait when the clock starts.
const BURST: u16 = 64;
const BURSTS: usize = 200;
const RUNS: usize = 9;

fn main() -> Result<(), Error> {
    println!(
        "descriptors a chain  {}  (CPU ns a frame; median of {RUNS} runs)",
        ["60 B", "1514 B"].join("  ")
    );
    for descriptors in [1, 2, 17, 64, 256] {
        let mut line = format!("{descriptors:19}");
        for (len, width) in [(60, 6), (1514, 8)] {
            let mut runs = (0..RUNS).map(|_| run(descriptors, len)).collect::<Result<Vec<_>, _>>()?;
            runs.sort_by(f64::total_cmp);
            line += &format!("{:width$.0}", runs[RUNS / 2]);
        }
        println!("{line}");
    }
    Ok(())
}

/// CPU nanoseconds a frame of `len` bytes for a guest that posts chains of so many pages, each in a
/// table of its own.
fn run(descriptors: usize, len: usize) -> Result<f64, Error> {
    // All chains share their pages: who they are for does not matter here.
    let pages = 0x10_0000..0x10_0000 + PAGE * descriptors as u64;
    let ram = Ram::new(&[(GuestAddr(0), pages.end as usize)])?;
    let memory = device_side(&ram)?;
    let ring = RingMemory::new(&ram, SIZE)?;
    let table = ram.allocate(16 * descriptors, 16)?;
    for (i, at) in pages.step_by(PAGE as usize).enumerate() {
        let more = if i + 1 < descriptors { DESC_NEXT } else { 0 };
        write_desc_at(&table, i, at, PAGE as u32, DESC_WRITE | more, i as u16 + 1);
    }
    for head in 0..SIZE {
        ring.write_desc(head, table.guest_addr().0, 16 * descriptors as u32, DESC_INDIRECT, 0);
        ring.write_avail(head, head);
    }
    let (port, far) = wire()?;
    let mut io = PortIo::new(port);
    let setup = ring.setup(0);
    let at = RingAddresses { desc: setup.desc.user, avail: setup.avail.user, used: setup.used.user };
    let ring_side = SplitRing::new(0, SIZE, at, 0, false, &memory)?;
    // Frames of 1514 bytes go straight into the chains.
    let options = ReceiveSetup { mergeable: false, header_len: 12, clears_flags: false };
    let policy = Policy::default().rx_copybreak_bytes(1024);
    let mut side = Receive::new(ring_side, TapInlet::new(policy, 1500, options)?, options);
    let counters = Counters::default();
    let frame = vec![0; 12 + len];
    let mut posted = 0u16;
    let mut spent = 0.0;
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            rustix::io::write(&far, &frame)?;
        }
        posted = posted.wrapping_add(BURST);
        ring.publish_avail_idx(posted);
        let before = cpu_ns();
        while ring.used_idx() != posted {
            side.run(&mut io, &ReceiveContext { memory: &memory, counters: &counters })?;
        }
        spent += cpu_ns() - before;
    }
    Ok(spent / (BURSTS * usize::from(BURST)) as f64)
}

fn device_side(ram: &Ram) -> Result<GuestMemory, Error> {
    let regions = ram.regions().into_iter().map(|r| {
        let file = r.file().try_clone_to_owned()?;
        let (guest_addr, len, user_addr) = (r.guest_addr().0, r.len() as u64, r.user_addr());
        Ok(RegionConfig { guest_addr, len, user_addr, offset: r.file_offset(), file })
    });
    Ok(GuestMemory::new(regions.collect::<Result<_, Error>>()?)?)
}

fn wire() -> Result<(OwnedFd, OwnedFd), Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_send_buffer_size(&b, 1 << 20)?;
    Ok((a, b))
}

fn cpu_ns() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}
