//! Descriptor chains, guest memory and notifications against naive models, and against the
//! independent implementation of the crate virtio-queue.

use crate::support::lab::Lab;
use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerowire_guest::GuestAddr;
use zerowire_guest::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, write_desc_at};
use zerowire_vhost::memory::{GuestMemory, HostPtr, Segment};
use zerowire_vhost::ring::{ChainCursor, MAX_INDIRECT, SplitRing};

/// Two regions that touch, and one apart.
const REGIONS: [(u64, usize); 3] = [(0, 0x8000), (0x8000, 0x4000), (0x2_0000, 0x8000)];
/// Entries of the ring.
const SIZE: u16 = 8;
/// Where the tables of indirect descriptors lie, and how far apart.
const TABLES: u64 = 0x2_0000;
const TABLE_STRIDE: u64 = 0x1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// Descriptors of which most are sound, so that chains get long.
fn desc(indirect: bool) -> impl Strategy<Value = Desc> {
    let addr = prop_oneof![8 => 0u64..0xb000, 2 => 0x7f00u64..0x8100, 1 => 0xbf00u64..0x2_0010, 1 => Just(u64::MAX - 8)];
    let len = prop_oneof![8 => 1u32..0x400, 1 => Just(0), 1 => 0x1000u32..0x6000, 1 => Just(u32::MAX)];
    let data = (addr, len, any::<bool>(), 0u8..10).prop_map(|(addr, len, write, next)| Desc {
        addr,
        len,
        flags: (u16::from(write) * DESC_WRITE) | if next < 7 { DESC_NEXT } else { 0 },
        next: 0,
    });
    let entries = prop_oneof![6 => 1u32..6, 1 => Just(0), 1 => Just(MAX_INDIRECT + 1), 1 => Just(40)];
    let table = (
        0..4u64,
        entries,
        prop_oneof![9 => Just(0u32), 1 => 1u32..16],
        0..10u16,
        prop_oneof![5 => Just(0u64), 1 => Just(4u64)],
    )
        .prop_map(|(table, entries, odd, next, shift)| Desc {
            addr: if table == 3 { 0x7fe8 } else { TABLES + table * TABLE_STRIDE + shift },
            len: entries * 16 + odd,
            flags: DESC_INDIRECT | (u16::from(next == 0) * DESC_NEXT),
            next: 1,
        });
    let weight = if indirect { 2 } else { 1 };
    prop_oneof![12 => data, weight => table]
}

/// A table whose descriptors mostly lead to the one behind.
fn table(len: usize, indirect: bool) -> impl Strategy<Value = Vec<Desc>> {
    let jump = prop_oneof![12 => Just(None), 1 => (0..SIZE + 3).prop_map(Some)];
    proptest::collection::vec((desc(indirect), jump), len).prop_map(|all| {
        let link =
            |(i, (d, jump)): (usize, (Desc, Option<u16>))| Desc { next: jump.unwrap_or(i as u16 + 1), ..d };
        all.into_iter().enumerate().map(link).collect()
    })
}

/// The bytes of a chain by the rules of virtio 1.3 §2.7.5, written without regard for anything but
/// clarity.
fn model(lab: &Lab, head: u16) -> Option<Vec<(u64, u32, bool)>> {
    let ring_table: Vec<u8> = lab.bytes(DESC_TABLE, 16 * usize::from(SIZE));
    let mut all = Vec::new();
    let (mut bytes, mut at, mut steps, mut inside) = (ring_table, usize::from(head), 0, false);
    loop {
        let entry: [u8; 16] = bytes.get(at * 16..at * 16 + 16)?.try_into().ok()?;
        steps += 1;
        if steps > bytes.len() / 16 {
            return None;
        }
        let d = Desc {
            addr: u64::from_le_bytes(entry[..8].try_into().ok()?),
            len: u32::from_le_bytes(entry[8..12].try_into().ok()?),
            flags: u16::from_le_bytes([entry[12], entry[13]]),
            next: u16::from_le_bytes([entry[14], entry[15]]),
        };
        if d.flags & DESC_INDIRECT != 0 {
            let good = !inside
                && d.flags & DESC_NEXT == 0
                && d.len.is_multiple_of(16)
                && (1..=MAX_INDIRECT).contains(&(d.len / 16));
            let region = |&(start, len): &(u64, usize)| {
                d.addr >= start
                    && d.addr.checked_add(d.len.into()).is_some_and(|end| end <= start + len as u64)
            };
            if !good || !REGIONS.iter().any(region) {
                return None;
            }
            (bytes, at, steps, inside) = (lab.bytes(d.addr, d.len as usize), 0, 0, true);
            continue;
        }
        if d.len == 0 {
            return None;
        }
        all.push((d.addr, d.len, d.flags & DESC_WRITE != 0));
        if d.flags & DESC_NEXT == 0 {
            return Some(all);
        }
        at = usize::from(d.next);
    }
}

/// What the device makes of it.
fn walk(lab: &Lab, ring: &mut SplitRing) -> Option<Vec<(u64, u32, bool)>> {
    let head = ring.take().ok()??;
    let mut cursor = ChainCursor::new(ring, head);
    let (mut hint, mut all) = (0, Vec::new());
    while let Some(d) = cursor.next(ring, &lab.memory, &mut hint).ok()? {
        all.push((d.addr, d.len, d.is_writable()));
    }
    assert!(cursor.is_done());
    Some(all)
}

/// What the crate virtio-queue makes of it, in a copy of the memory.
fn oracle(lab: &Lab, at: [u64; 3]) -> Vec<(u64, u32, bool)> {
    let regions: Vec<_> = REGIONS.iter().map(|&(a, len)| (GuestAddress(a), len)).collect();
    let memory = GuestMemoryMmap::<()>::from_ranges(&regions).expect("memory for the oracle");
    for (a, len) in REGIONS {
        memory.write_slice(&lab.bytes(a, len), GuestAddress(a)).expect("a copy of the guest's memory");
    }
    let mut queue = Queue::new(SIZE).expect("a queue");
    queue.try_set_desc_table_address(GuestAddress(at[0])).expect("the table's address");
    queue.try_set_avail_ring_address(GuestAddress(at[1])).expect("the available ring's address");
    queue.try_set_used_ring_address(GuestAddress(at[2])).expect("the used ring's address");
    queue.set_ready(true);
    let chain = queue.pop_descriptor_chain(&memory).expect("a chain");
    chain.map(|d| (d.addr().0, d.len(), d.is_write_only())).collect()
}

/// The first thing allocated: see [`lab`].
const DESC_TABLE: u64 = 0xb000;

/// A lab whose ring's table lies at [`DESC_TABLE`], behind everything that chains use.
fn lab() -> (Lab, zerowire_guest::ring::RingMemory) {
    let lab = Lab::new(&REGIONS);
    let _below = lab.ram.allocate(0x8000, 1).expect("the first region");
    let _more = lab.ram.only(GuestAddr(0x8000)).expect("the second").allocate(0x3000, 1).expect("its begin");
    let ring = lab.ring(SIZE);
    assert_eq!(ring.setup(0).desc.guest.0, DESC_TABLE);
    (lab, ring)
}

fn write_table(lab: &Lab, addr: u64, table: &[Desc]) {
    let memory = lab.ram.at(GuestAddr(addr), table.len() * 16).expect("room for a table");
    for (i, d) in table.iter().enumerate() {
        write_desc_at(&memory, i, d.addr, d.len, d.flags, d.next);
    }
}

/// Where each byte of the guest lies in this process, or None.
fn host(memory: &GuestMemory, lab: &Lab, addr: u64) -> Option<HostPtr> {
    let region = lab.ram.regions().into_iter().find(|r| (r.guest_addr().0..r.end().0).contains(&addr))?;
    memory.ring_ptr(region.user_addr() + (addr - region.guest_addr().0), 1)
}

fn check_translation(
    memory: &GuestMemory,
    lab: &Lab,
    addr: u64,
    len: u32,
    hint: &mut usize,
) -> Result<(), TestCaseError> {
    let mut out: Vec<Segment> = Vec::with_capacity(16);
    let got = memory.translate(addr, len, hint, &mut out);
    // Pages are either backed or not, so their first bytes and the ends tell all.
    let end = addr.checked_add(u64::from(len));
    let pages = std::iter::successors(Some(addr), |a| (a | 0xfff).checked_add(1))
        .take_while(|a| end.is_none_or(|e| *a < e));
    let backed = end.is_some() && pages.clone().take(600_000).all(|a| host(memory, lab, a).is_some());
    prop_assert_eq!(got, backed, "{:#x} + {:#x}", addr, len);
    if !got {
        prop_assert!(out.is_empty(), "a failed translation leaves nothing behind");
        return Ok(());
    }
    let mut at = addr;
    for s in &out {
        prop_assert!(s.len > 0);
        prop_assert_eq!(Some(s.ptr), host(memory, lab, at));
        prop_assert_eq!(
            Some(s.ptr.wrapping_add(s.len as usize - 1)),
            host(memory, lab, at + u64::from(s.len) - 1)
        );
        let region = &memory.regions()[usize::from(s.region)];
        let offset = s.ptr.addr() - region.ptr().addr();
        prop_assert!(offset + s.len as usize <= region.len(), "a segment lies in one region");
        at += u64::from(s.len);
    }
    prop_assert_eq!(Some(at), end);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_are_walked_as_the_rules_say(
        direct in table(usize::from(SIZE), true),
        indirect in proptest::collection::vec(table(8, false), 3),
        head in 0..SIZE,
    ) {
        let (lab, memory) = lab();
        for (i, t) in indirect.iter().enumerate() {
            write_table(&lab, TABLES + i as u64 * TABLE_STRIDE, t);
        }
        write_table(&lab, DESC_TABLE, &direct);
        memory.write_avail(0, head);
        memory.publish_avail_idx(1);
        let setup = memory.setup(0);
        let want = model(&lab, head);
        let got = walk(&lab, &mut lab.device(&memory, 1, false));
        prop_assert_eq!(&got, &want);
        // virtio-queue ends a chain of more than 4 GiB; here the translation of such a chain fails.
        if let Some(got) = got && got.iter().map(|d| u64::from(d.1)).sum::<u64>() <= u32::MAX.into() {
            let theirs = oracle(&lab, [setup.desc.guest.0, setup.avail.guest.0, setup.used.guest.0]);
            prop_assert_eq!(theirs, got, "virtio-queue sees the same chain");
        }
    }

    #[test]
    fn guest_addresses_are_translated_byte_by_byte(
        ranges in proptest::collection::vec((prop_oneof![0u64..0x2_a000, 0x7ff0u64..0x8010, Just(u64::MAX - 3)], 1u32..0x5000), 1..20),
    ) {
        let lab = Lab::new(&REGIONS);
        let mut hint = 0;
        for (addr, len) in ranges {
            check_translation(&lab.memory, &lab, addr, len, &mut hint)?;
            let mut hint = hint;
            let inside = REGIONS.iter().any(|&(start, size)| addr >= start && addr - start < size as u64 && addr - start + u64::from(len) <= size as u64);
            let got = lab.memory.contiguous(addr, len, &mut hint);
            prop_assert_eq!(got, inside.then(|| host(&lab.memory, &lab, addr)).flatten());
        }
    }

    #[test]
    fn drivers_are_notified_exactly_when_they_asked(
        event_idx: bool,
        steps in proptest::collection::vec((0u16..9, prop_oneof![3 => -12i32..4, 1 => Just(20_000)], any::<bool>()), 1..60),
        start: u16,
    ) {
        let lab = Lab::new(&[(0, 0x10000)]);
        let ring = lab.ring(SIZE);
        // The ring has been round some times already.
        ring.used().write_int(2, start);
        ring.publish_avail_idx(start);
        let mut device = lab.device(&ring, 0, event_idx);
        let mut used = start;
        for (take, event, quiet) in steps {
            let take = take.min(SIZE);
            let event = used.wrapping_add(event as u16);
            ring.write_used_event(event);
            ring.write_avail_flags(u16::from(quiet));
            for i in 0..take {
                ring.write_avail(used.wrapping_add(i), i);
            }
            ring.publish_avail_idx(used.wrapping_add(take));
            for i in 0..take {
                prop_assert_eq!(device.take().expect("sound").expect("an entry"), i);
                device.push_used(i, u32::from(i) + 7);
            }
            prop_assert_eq!(device.take().expect("sound"), None);
            prop_assert_eq!(ring.used_idx(), used, "nothing is seen before it is published");
            let passed = (0..take).any(|i| used.wrapping_add(i) == event);
            let want = take > 0 && if event_idx { passed } else { !quiet };
            prop_assert_eq!(device.publish(), want, "used {} + {}, event {}", used, take, event);
            for i in 0..take {
                prop_assert_eq!(ring.used_entry(used.wrapping_add(i)), (u32::from(i), u32::from(i) + 7));
            }
            used = used.wrapping_add(take);
            prop_assert_eq!(ring.used_idx(), used);
            prop_assert!(!device.publish(), "nothing new, nothing to tell");
            prop_assert!(!device.arm().expect("sound"));
            if event_idx {
                prop_assert_eq!(ring.avail_event(), used, "a kick is wanted with the next entry");
            } else {
                prop_assert_eq!(ring.used_flags(), 0);
                device.disarm();
                prop_assert_eq!(ring.used_flags(), 1);
            }
            prop_assert_eq!(device.next_avail(), used);
        }
    }

    #[test]
    fn an_available_index_that_runs_ahead_is_an_error(ahead: u16, start: u16) {
        let lab = Lab::new(&[(0, 0x10000)]);
        let ring = lab.ring(SIZE);
        ring.used().write_int(2, start);
        ring.publish_avail_idx(start.wrapping_add(ahead));
        let mut device = lab.device(&ring, 3, false);
        match device.refresh() {
            Ok(n) => prop_assert!(n == ahead && n <= SIZE),
            Err(e) => {
                prop_assert!(ahead > SIZE);
                prop_assert!(e.to_string().starts_with(&format!("queue 3: at available index {start}: ")), "{}", e);
            }
        }
    }
}

#[test]
fn ranges_are_translated_in_a_region_beyond_4_gib_and_across_neighbours() {
    // The memory is sparse: nothing of it is ever touched.
    const GIB_4: u64 = 4 << 30;
    let large = (4 << 30) + (4 << 20);
    let lab = Lab::new(&[(0, large), (large as u64, 4 << 20), (1 << 40, 1 << 20)]);
    assert_eq!(lab.memory.regions().len(), 3);
    let mut hint = 0;
    for edge in [0, GIB_4, large as u64, large as u64 + (4 << 20), 1 << 40, (1 << 40) + (1 << 20)] {
        for before in [0u64, 1, 4096, 70_000, 5 << 20] {
            for len in [1u32, 2, 4097, 200_000, 9 << 20] {
                check_translation(&lab.memory, &lab, edge.wrapping_sub(before), len, &mut hint)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
    // One region is one range for tables and rings.
    let at = GIB_4 - 64;
    assert_eq!(lab.memory.contiguous(at, 4096, &mut hint), host(&lab.memory, &lab, at));
    assert_eq!(lab.memory.contiguous(large as u64 - 64, 4096, &mut hint), None);
}

#[test]
fn a_list_that_is_full_takes_nothing_and_stays_as_it_was() {
    let lab = Lab::new(&REGIONS);
    let mut out: Vec<Segment> = Vec::with_capacity(1);
    assert!(out.capacity() >= 1);
    out.extend(std::iter::repeat_n(Segment { ptr: HostPtr::NULL, len: 1, region: 0 }, out.capacity()));
    let before = out.clone();
    for (addr, len) in [(0x10, 16), (0x7ff0, 0x20)] {
        assert!(!lab.memory.translate(addr, len, &mut 0, &mut out));
        assert_eq!(out, before);
    }
}
