//! What taking a chain from a ring, translating its descriptors and giving it back costs, with this
//! crate's ring and with the `virtio-queue` and `vm-memory` crates. Single-threaded, everything in
//! cache: the cost of the code alone.
//!
//! `cargo run --release -p zerowire-vhost --example ring_cost`

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};
use zerowire_vhost::memory::{GuestMemory, RegionConfig, Segment};
use zerowire_vhost::ring::{ChainCursor, RingAddresses, SplitRing};

const LEN: u64 = 64 << 20;
const SIZE: u16 = 256;
const AT: RingAddresses = RingAddresses { desc: 0x1000, avail: 0x3000, used: 0x4000 };
const BUFFERS: u64 = 0x10_0000;
const ROUNDS: usize = 4000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = memfd()?;
    let theirs = GuestMemoryMmap::<()>::from_ranges_with_files([(
        GuestAddress(0),
        LEN as usize,
        Some(FileOffset::new(file.try_clone()?, 0)),
    )])?;
    let region = RegionConfig { guest_addr: 0, len: LEN, user_addr: 0, offset: 0, file: OwnedFd::from(file) };
    let ours = GuestMemory::new(vec![region])?;
    println!(
        "descriptors  virtio-queue  zerowire  (ns a chain: take, translate, give back; median of 9 runs)"
    );
    for descriptors in [1u16, 3, 16] {
        let heads = set_up(&theirs, descriptors)?;
        let mut a = Vec::new();
        let mut b = Vec::new();
        for _ in 0..9 {
            a.push(virtio_queue_crate(&theirs, heads)?);
            b.push(own(&theirs, &ours, heads)?);
        }
        a.sort_by(f64::total_cmp);
        b.sort_by(f64::total_cmp);
        println!("{descriptors:11}  {:12.1}  {:8.1}", a[4], b[4]);
    }
    Ok(())
}

fn memfd() -> std::io::Result<File> {
    let fd = rustix::fs::memfd_create("ring_cost", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, LEN)?;
    Ok(File::from(fd))
}

/// Fills the descriptor table with chains and the available ring with their heads; how many there
/// are.
fn set_up(memory: &GuestMemoryMmap<()>, descriptors: u16) -> Result<u16, Box<dyn std::error::Error>> {
    let heads = SIZE / descriptors;
    for chain in 0..heads {
        for i in 0..descriptors {
            let index = u64::from(chain * descriptors + i);
            let last = i + 1 == descriptors;
            let at = GuestAddress(AT.desc + 16 * index);
            memory.write_obj(BUFFERS + 4096 * index, at)?;
            memory.write_obj(1500u32, at.unchecked_add(8))?;
            memory.write_obj(u16::from(!last), at.unchecked_add(12))?;
            memory.write_obj(index as u16 + 1, at.unchecked_add(14))?;
        }
    }
    // Entry k of the ring is used again every SIZE entries: the same head must come up.
    let heads = 1 << heads.ilog2();
    for slot in 0..SIZE {
        memory.write_obj((slot % heads) * descriptors, GuestAddress(AT.avail + 4 + 2 * u64::from(slot)))?;
    }
    Ok(heads)
}

fn virtio_queue_crate(memory: &GuestMemoryMmap<()>, heads: u16) -> Result<f64, Box<dyn std::error::Error>> {
    reset(memory)?;
    let mut queue = Queue::new(SIZE)?;
    queue.set_size(SIZE);
    queue.set_desc_table_address(Some(AT.desc as u32), Some(0));
    queue.set_avail_ring_address(Some(AT.avail as u32), Some(0));
    queue.set_used_ring_address(Some(AT.used as u32), Some(0));
    queue.set_ready(true);
    let mut idx = 0u16;
    let mut sum = 0u64;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        idx = idx.wrapping_add(heads);
        memory.write_obj(idx, GuestAddress(AT.avail + 2))?;
        let mut done = [0u16; SIZE as usize];
        let mut n = 0;
        for chain in queue.iter(memory)? {
            done[n] = chain.head_index();
            n += 1;
            for d in chain {
                let slice = memory.get_slice(d.addr(), d.len() as usize)?;
                sum += slice.ptr_guard().as_ptr() as u64;
            }
        }
        for head in &done[..n] {
            queue.add_used(memory, *head, 0)?;
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    std::hint::black_box(sum);
    Ok(ns / (ROUNDS * usize::from(heads)) as f64)
}

fn own(
    driver: &GuestMemoryMmap<()>,
    memory: &GuestMemory,
    heads: u16,
) -> Result<f64, Box<dyn std::error::Error>> {
    reset(driver)?;
    let mut ring = SplitRing::new(0, SIZE, AT, 0, false, memory)?;
    let mut segments: Vec<Segment> = Vec::with_capacity(64);
    let mut hint = 0;
    let mut idx = 0u16;
    let mut sum = 0u64;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        idx = idx.wrapping_add(heads);
        driver.write_obj(idx, GuestAddress(AT.avail + 2))?;
        while let Some(head) = ring.take()? {
            segments.clear();
            let mut cursor = ChainCursor::new(&ring, head);
            while let Some(d) = cursor.next(&ring, memory, &mut hint)? {
                memory.translate(d.addr, d.len, &mut hint, &mut segments);
            }
            sum += segments.iter().map(|s| s.ptr.addr() as u64).sum::<u64>();
            ring.push_used(head, 0);
        }
        ring.publish();
    }
    let ns = start.elapsed().as_nanos() as f64;
    std::hint::black_box(sum);
    Ok(ns / (ROUNDS * usize::from(heads)) as f64)
}

fn reset(memory: &GuestMemoryMmap<()>) -> Result<(), Box<dyn std::error::Error>> {
    memory.write_obj(0u16, GuestAddress(AT.avail + 2))?;
    memory.write_obj(0u16, GuestAddress(AT.used + 2))?;
    Ok(())
}
