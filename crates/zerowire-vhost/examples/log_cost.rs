//! What the dirty log costs a frame: nothing, off, and on. A frame is a chain of one descriptor
//! that is taken, translated, noted and given back; rings are published every 64. Single-threaded,
//! everything in cache.
//!
//! `cargo run --release -p zerowire-vhost --example log_cost`

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use zerowire_vhost::memory::{DirtyLog, GuestMemory, RegionConfig, Segment};
use zerowire_vhost::ring::{ChainCursor, RingAddresses, RingLog, SplitRing};

const LEN: u64 = 64 << 20;
const SIZE: u16 = 256;
const AT: RingAddresses = RingAddresses { desc: 0x1000, avail: 0x3000, used: 0x4000 };
const BUFFERS: u64 = 0x10_0000;
const ROUNDS: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let file = memfd(LEN)?;
    let descriptors: Vec<u8> = (0..u64::from(SIZE))
        .flat_map(|i| [BUFFERS + i * 4096, 1526 | 2 << 32].map(u64::to_le_bytes))
        .flatten()
        .collect();
    rustix::io::pwrite(&file, &descriptors, AT.desc)?;
    let heads: Vec<u8> = (0..SIZE).flat_map(u16::to_le_bytes).collect();
    rustix::io::pwrite(&file, &heads, AT.avail + 4)?;
    let region = RegionConfig { guest_addr: 0, len: LEN, user_addr: 0, offset: 0, file: file.try_clone()? };
    let off = GuestMemory::new(vec![region])?;
    let bits = memfd(LEN / 4096 / 8)?;
    let on = off.with_log(Some(DirtyLog::new(bits.as_fd(), 0, LEN / 4096 / 8)?));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..31 {
        times[0].push(run::<false>(&off, &file)?);
        times[1].push(run::<true>(&off, &file)?);
        times[2].push(run::<true>(&on, &file)?);
    }
    for (name, list) in ["without the branch", "off", "on"].into_iter().zip(&mut times) {
        list.sort_by(f64::total_cmp);
        println!("{name:20} {:6.2} ns a frame (median of 31; least {:.2})", list[15], list[0]);
    }
    Ok(())
}

fn memfd(len: u64) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("log_cost", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, len)?;
    Ok(fd)
}

fn run<const NOTE: bool>(memory: &GuestMemory, file: &OwnedFd) -> Result<f64, Box<dyn Error>> {
    let mut used = [0; 2];
    rustix::io::pread(file, &mut used, AT.used + 2)?;
    let mut avail = u16::from_le_bytes(used);
    let mut ring = SplitRing::new(0, SIZE, AT, avail, true, memory)?;
    ring.set_log(RingLog::of(memory, Some(AT.used)));
    let mut segments: Vec<Segment> = Vec::with_capacity(8);
    let mut hint = 0;
    let mut spent = std::time::Duration::ZERO;
    for _ in 0..ROUNDS / usize::from(SIZE) {
        avail = avail.wrapping_add(SIZE);
        rustix::io::pwrite(file, &avail.to_le_bytes(), AT.avail + 2)?;
        let start = Instant::now();
        for i in 0..SIZE {
            let Some(head) = ring.take()? else { return Err("the ring ended early".into()) };
            let mut cursor = ChainCursor::new(&ring, head);
            segments.clear();
            while let Some(d) = cursor.next(&ring, memory, &mut hint)? {
                memory.translate(d.addr, d.len, &mut hint, &mut segments);
            }
            std::hint::black_box(&segments);
            if NOTE {
                memory.wrote(&segments, 0, 1526);
            }
            ring.push_used(head, 1526);
            if i % 64 == 63 {
                std::hint::black_box(ring.publish());
            }
        }
        spent += start.elapsed();
    }
    Ok(spent.as_nanos() as f64 / (ROUNDS / usize::from(SIZE) * usize::from(SIZE)) as f64)
}
