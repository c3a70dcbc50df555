//! What the front end has told of its rings, and what it may tell of a ring that runs. Plain rules,
//! without a device.

use std::os::fd::OwnedFd;

use zerowire_vhost_user::{Request, VringAddr};

use super::migration::log_address;
use super::{SessionError, protocol};
use crate::host::RingState;
use crate::ring::{RingAddresses, used_ring_bytes};

/// What the front end has told of a ring.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    /// Where writes to the used ring are logged, if they are.
    pub log_at: Option<u64>,
    pub base: u16,
    pub call: Option<OwnedFd>,
    pub err: Option<OwnedFd>,
    pub state: RingState,
    pub started: bool,
}

impl Vring {
    /// SET_VRING_NUM for this ring, which is `queue`'s.
    pub(super) fn set_size(&mut self, queue: u32, size: u32) -> Result<(), SessionError> {
        let request = Request::SetVringNum;
        match u16::try_from(size).ok().filter(|n| n.is_power_of_two() && *n <= 32768) {
            None => {
                let rule = "is not a power of two up to 32768 (virtio 1.3 §2.7)";
                Err(protocol(request, format!("queue {queue}: size {size} {rule}")))
            }
            Some(n) if self.started && n != self.size => {
                let text = format!("queue {queue}: size changed from {} to {n} while it runs", self.size);
                Err(protocol(request, text))
            }
            Some(n) => {
                self.size = n;
                Ok(())
            }
        }
    }

    /// SET_VRING_ADDR. Returns where writes to the used ring were logged before.
    pub(super) fn set_addresses(&mut self, a: &VringAddr) -> Result<Option<u64>, SessionError> {
        let addresses = RingAddresses { desc: a.desc, avail: a.avail, used: a.used };
        // A front end may send the same again, with another log flag.
        if self.started && self.addresses != Some(addresses) {
            let text = format!("queue {}: addresses changed while it runs", a.index);
            return Err(protocol(Request::SetVringAddr, text));
        }
        self.addresses = Some(addresses);
        Ok(std::mem::replace(&mut self.log_at, log_address(a.flags, a.log)))
    }

    /// SET_VRING_BASE for this ring, which is `queue`'s.
    pub(super) fn set_base(&mut self, queue: u32, base: u32) -> Result<(), SessionError> {
        let request = Request::SetVringBase;
        let base = u16::try_from(base)
            .map_err(|_| protocol(request, format!("queue {queue}: base {base} is more than 65535")))?;
        if self.started {
            return Err(protocol(request, format!("queue {queue}: base set while it runs")));
        }
        self.base = base;
        Ok(())
    }
}

/// The rings of a device.
#[derive(Debug)]
pub(super) struct Vrings {
    rings: Vec<Vring>,
    /// What a front end that names another queue is told.
    hint: &'static str,
}

impl Vrings {
    pub(super) fn new(queues: usize, hint: &'static str) -> Self {
        Self { rings: (0..queues).map(|_| Vring::default()).collect(), hint }
    }

    pub(super) fn count(&self) -> usize {
        self.rings.len()
    }

    /// What a front end that asks for more queues than there are should be given.
    pub(super) fn describe(&self) -> String {
        format!("{} queues; {}", self.rings.len(), self.hint)
    }

    /// The ring of queue `index`, which the front end has named.
    pub(super) fn named(&mut self, request: Request, index: usize) -> Result<&mut Vring, SessionError> {
        let (count, hint) = (self.rings.len(), self.hint);
        self.rings
            .get_mut(index)
            .ok_or_else(|| protocol(request, format!("queue {index} of {count}: {hint}")))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Vring> {
        self.rings.get_mut(index)
    }

    /// A queue whose ring runs.
    pub(super) fn any_started(&self) -> Option<usize> {
        self.rings.iter().position(|r| r.started)
    }

    /// Rings need not be enabled any more.
    pub(super) fn enable_all(&mut self) {
        self.rings.iter_mut().for_each(|r| r.state = RingState::Enabled);
    }

    /// Nothing was told. No ring runs.
    pub(super) fn forget(&mut self) {
        self.rings.fill_with(Vring::default);
    }

    /// The queues whose used rings are logged, and where those end.
    pub(super) fn logged(&self) -> impl Iterator<Item = (usize, u64)> {
        let end = |at: u64, size| at.saturating_add(used_ring_bytes(size));
        self.rings.iter().enumerate().filter_map(move |(i, r)| Some((i, end(r.log_at?, r.size))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(refused: Result<impl Sized, SessionError>) -> String {
        refused.err().expect("it is refused").to_string()
    }

    fn address(desc: u64, flags: u32) -> VringAddr {
        VringAddr { index: 0, flags, desc, used: 0x3000, avail: 0x2000, log: 0x5000 }
    }

    #[test]
    fn a_queue_that_is_not_there_is_told_with_what_helps() {
        let mut rings = Vrings::new(2, "ask for fewer");
        assert!(rings.named(Request::SetVringNum, 1).is_ok());
        assert!(text(rings.named(Request::SetVringNum, 2)).contains("queue 2 of 2: ask for fewer"));
        assert_eq!((rings.count(), rings.describe().as_str()), (2, "2 queues; ask for fewer"));
    }

    #[test]
    fn a_ring_that_runs_stays_as_it_is() {
        let mut ring = Vring::default();
        for size in [0, 3, 65_536] {
            assert!(text(ring.set_size(5, size)).contains("queue 5"), "{size}");
        }
        ring.set_size(5, 256).expect("a size");
        ring.set_base(5, 65_535).expect("a base");
        assert!(text(ring.set_base(5, 65_536)).contains("more than 65535"));
        assert_eq!(ring.set_addresses(&address(0x1000, 0)).expect("addresses"), None);
        ring.started = true;
        ring.set_size(5, 256).expect("the same");
        assert!(text(ring.set_size(5, 128)).contains("from 256 to 128 while it runs"));
        assert!(text(ring.set_base(5, 0)).contains("while it runs"));
        assert!(text(ring.set_addresses(&address(0x1010, 0))).contains("while it runs"));
        // Another log flag is no change.
        assert_eq!(ring.set_addresses(&address(0x1000, 1)).expect("addresses"), None);
        assert_eq!(ring.set_addresses(&address(0x1000, 0)).expect("addresses"), Some(0x5000));
        assert_eq!((ring.size, ring.base), (256, 65_535));
    }

    #[test]
    fn rings_are_forgotten_together() {
        let mut rings = Vrings::new(3, "");
        rings.enable_all();
        for i in 0..3 {
            rings.get_mut(i).expect("it is there").started = i == 1;
        }
        let ring = rings.get_mut(2).expect("it is there");
        (ring.size, ring.log_at) = (256, Some(0x1000));
        assert_eq!(rings.any_started(), Some(1));
        assert_eq!(rings.logged().collect::<Vec<_>>(), [(2, 0x1000 + used_ring_bytes(256))]);
        assert!(rings.rings.iter().all(|r| r.state == RingState::Enabled));
        rings.forget();
        assert_eq!((rings.any_started(), rings.logged().count()), (None, 0));
        assert!(rings.rings.iter().all(|r| r.state == RingState::Waiting));
    }
}
