//! Which MAC address to answer: learnt from the guest's own frames.
//!
//! A guest may have any address, with the service on-link or behind a gateway, so no subnet logic
//! applies. The reply goes to the address that the question came from.

use std::net::IpAddr;

/// Entries kept. Twice the connections, so that a guest with several
/// addresses keeps all of its live ones.
const MAX_NEIGHBOURS: usize = 64;

#[derive(Debug)]
struct Neighbour {
    ip: IpAddr,
    mac: [u8; 6],
    used: u64,
}

/// A bounded table from IP to MAC address; the least recently learnt entry
/// gives way.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: Vec<Neighbour>,
    tick: u64,
}

impl Neighbours {
    /// Notes that `ip` sent from `mac`.
    pub(crate) fn learn(&mut self, ip: IpAddr, mac: [u8; 6]) {
        self.tick += 1;
        let used = self.tick;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.ip == ip) {
            (entry.mac, entry.used) = (mac, used);
            return;
        }
        let entry = Neighbour { ip, mac, used };
        if self.entries.len() < MAX_NEIGHBOURS {
            self.entries.push(entry);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|entry| entry.used) {
            *oldest = entry;
        }
    }

    /// The MAC address that `ip` last sent from.
    pub(crate) fn lookup(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.entries.iter().find(|entry| entry.ip == ip).map(|entry| entry.mac)
    }

    /// Bytes of memory held.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Neighbour>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(n: u32) -> IpAddr {
        Ipv4Addr::from(n).into()
    }

    #[test]
    fn the_oldest_entry_gives_way() {
        let mut table = Neighbours::default();
        for i in 0..MAX_NEIGHBOURS as u32 {
            table.learn(address(i + 1), [2, 0, 0, 0, 0, 1]);
        }
        table.learn(address(1), [2, 0, 0, 0, 0, 2]);
        table.learn(address(1000), [2, 0, 0, 0, 0, 3]);
        assert_eq!(
            table.lookup(address(1)),
            Some([2, 0, 0, 0, 0, 2]),
            "an entry that is learnt again is refreshed"
        );
        assert_eq!(table.lookup(address(2)), None);
        assert_eq!(table.entries.len(), MAX_NEIGHBOURS);
    }
}
