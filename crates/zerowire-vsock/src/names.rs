//! Names of a VM's connections, in memory that outlives the process.
//!
//! A process that goes on with another one's session knows none of its connections. Its front end
//! may keep the event queue to itself, as QEMU does, so the driver can't be told of all at once.
//! Then each connection is reset by its name. The driver would wait for bytes of it forever.
//!
//! ```text
//! entries that were in use so far u32 | 0 | 0 | 0
//! entry 0: type u32, 0: none | guest's port u32 | peer's port u32 | peer's CID u32
//! entry 1: …
//! ```
//! Numbers are in the byte order of the machine.
//!
//! **Who owns the memory.** Another process makes and keeps it, and reads nothing of it. The one
//! that serves the VM writes it. The next one trusts it with no more than resets toward its guest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use zerowire_sys::map::Mapping;
use zerowire_vhost::memory::{file_len, memory_file};

use super::packet::{Header, Kind, Op};
use super::table::ConnectionKey;

/// Words of an entry, and of the head.
const WORDS: usize = 4;
/// Bytes of them.
const ENTRY_BYTES: usize = 4 * WORDS;

/// No entry.
const NONE: u32 = u32::MAX;

/// Memory for the names of up to `connections` connections. It can't be made shorter.
///
/// # Errors
/// What memfd_create(2) and ftruncate(2) say.
pub fn names_file(connections: usize) -> io::Result<OwnedFd> {
    memory_file("zerowire-names", bytes_for(connections) as u64)
}

fn bytes_for(connections: usize) -> usize {
    (1 + connections) * ENTRY_BYTES
}

/// The names of the connections of a VM. Without memory it keeps none.
#[derive(Debug, Default)]
pub(super) struct ConnectionNames {
    map: Option<Mapping>,
    /// How many connections may have one.
    most: u32,
    /// Entries that were in use so far. Memory of the others is not touched.
    used: u32,
    /// The entry of each slot of the connections' table.
    of_slot: Vec<u32>,
    /// Entries that were in use and have no name.
    free: Vec<u32>,
    /// Those of connections that a process before had.
    lost: Vec<u32>,
}

impl ConnectionNames {
    /// In memory of [`names_file`] for as many connections. `keeps`: what stands there are the
    /// names of connections that are lost.
    pub fn open(file: impl AsFd, connections: usize, keeps: bool) -> io::Result<Self> {
        let len = bytes_for(connections);
        if file_len(&file)? < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = Mapping::shared(file, 0, len)?;
        let most = connections as u32;
        let used = map.word(0).load(Ordering::Acquire).min(most);
        let mut names = Self { map: Some(map), most, used, ..Self::default() };
        let is_lost = |entry: &u32| keeps && names.read(*entry).is_some();
        (names.lost, names.free) = (0..used).partition(is_lost);
        names.free.iter().for_each(|entry| names.write(*entry, [0; WORDS]));
        Ok(names)
    }

    fn words(&self, entry: u32) -> Option<[&AtomicU32; WORDS]> {
        let (map, at) = (self.map.as_ref()?, (1 + entry as usize) * ENTRY_BYTES);
        let word = |n: usize| map.find_word(at + 4 * n);
        Some([word(0)?, word(1)?, word(2)?, word(3)?])
    }

    /// An entry without a name.
    fn take_free(&mut self) -> Option<u32> {
        if let Some(entry) = self.free.pop() {
            return Some(entry);
        }
        let entry = self.used;
        self.used = entry.checked_add(1).filter(|used| *used <= self.most)?;
        self.map.as_ref()?.word(0).store(self.used, Ordering::Release);
        Some(entry)
    }

    /// The type comes last and goes first: the other words hold while it stands there.
    fn write(&self, entry: u32, [kind, rest @ ..]: [u32; WORDS]) {
        let Some([first, others @ ..]) = self.words(entry) else { return };
        first.store(0, Ordering::Release);
        others.iter().zip(rest).for_each(|(word, value)| word.store(value, Ordering::Release));
        first.store(kind, Ordering::Release);
    }

    fn read(&self, entry: u32) -> Option<(Kind, ConnectionKey)> {
        let [kind, port, peer_port, peer_cid] = self.words(entry)?.map(|word| word.load(Ordering::Acquire));
        let kind = u16::try_from(kind).ok().and_then(Kind::new)?;
        Some((kind, ConnectionKey { port, peer_cid: peer_cid.into(), peer_port }))
    }

    /// A connection is in this slot. One that finds no free entry has no name here.
    pub fn enter(&mut self, slot: u32, kind: Kind, key: &ConnectionKey) {
        let Ok(peer_cid) = u32::try_from(key.peer_cid) else { return };
        let Some(entry) = self.take_free() else { return };
        self.write(entry, [kind as u32, key.port, key.peer_port, peer_cid]);
        let slot = slot as usize;
        if self.of_slot.len() <= slot {
            self.of_slot.resize(slot + 1, NONE);
        }
        self.of_slot[slot] = entry;
    }

    /// The connection in this slot is gone.
    pub fn leave(&mut self, slot: u32) {
        let entry = self.of_slot.get_mut(slot as usize).map_or(NONE, |entry| std::mem::replace(entry, NONE));
        if entry != NONE {
            self.write(entry, [0; WORDS]);
            self.free.push(entry);
        }
    }

    /// Resets of the lost connections toward the guest `cid`. They have no names any more.
    pub fn reset_lost(&mut self, cid: u64) -> Vec<Header> {
        let reset = |(kind, key): (Kind, ConnectionKey)| Header {
            src_cid: key.peer_cid,
            dst_cid: cid,
            src_port: key.peer_port,
            dst_port: key.port,
            kind: kind as u16,
            op: Op::Rst as u16,
            ..Header::default()
        };
        let resets = self.lost.iter().filter_map(|entry| self.read(*entry).map(reset)).collect();
        self.forget_lost();
        resets
    }

    /// The driver knows of no lost connection, or learns of their end in another way.
    pub fn forget_lost(&mut self) {
        for entry in std::mem::take(&mut self.lost) {
            self.write(entry, [0; WORDS]);
            self.free.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u32) -> ConnectionKey {
        ConnectionKey { port, peer_cid: 2, peer_port: 5000 + port }
    }

    fn ports(resets: &[Header]) -> Vec<u32> {
        let mut ports: Vec<_> = resets.iter().map(|h| h.dst_port).collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn names_of_connections_outlive_the_process() {
        let file = names_file(4).expect("memory");
        let mut first = ConnectionNames::open(&file, 4, true).expect("mapped");
        assert_eq!(first.reset_lost(3), []);
        for slot in 0..5 {
            first.enter(slot, Kind::SeqPacket, &key(slot));
        }
        first.leave(1);
        first.leave(4);
        drop(first);
        let mut second = ConnectionNames::open(&file, 4, true).expect("mapped");
        second.enter(0, Kind::Stream, &key(9));
        // It dies before it has reset them, and the next one resets them all.
        drop(second);
        let mut third = ConnectionNames::open(&file, 4, true).expect("mapped");
        let resets = third.reset_lost(3);
        assert_eq!(ports(&resets), [0, 2, 3, 9]);
        let of_two = resets.iter().find(|h| h.dst_port == 2).expect("a reset");
        let sound = Header {
            src_cid: 2,
            dst_cid: 3,
            src_port: 5002,
            dst_port: 2,
            kind: Kind::SeqPacket as u16,
            op: Op::Rst as u16,
            ..Header::default()
        };
        assert_eq!(*of_two, sound);
        third.enter(7, Kind::Stream, &key(1));
        drop(third);
        let mut other = ConnectionNames::open(&file, 4, false).expect("mapped");
        assert_eq!(other.reset_lost(3), [], "a guest that begins anew has lost none");
        drop(other);
        let mut none = ConnectionNames::open(&file, 4, true).expect("mapped");
        assert_eq!(none.reset_lost(3), []);
    }

    #[test]
    fn what_stands_in_the_memory_is_not_trusted() {
        let file = names_file(2).expect("memory");
        let words = [u32::MAX, 1, 2, 3, u32::MAX, 1, 2, 3, 2, u32::MAX, u32::MAX, u32::MAX];
        let garbage = words.map(u32::to_ne_bytes).concat();
        rustix::io::pwrite(&file, &garbage, 0).expect("written");
        let mut names = ConnectionNames::open(&file, 2, true).expect("mapped");
        assert_eq!(ports(&names.reset_lost(3)), [u32::MAX], "one has no type");
        assert!(ConnectionNames::open(&file, 3, true).is_err(), "it is too short");
    }

    #[test]
    fn without_memory_there_are_no_names() {
        let mut names = ConnectionNames::default();
        names.enter(0, Kind::Stream, &key(1));
        names.leave(0);
        assert_eq!(names.reset_lost(3), []);
    }
}
