//! A guest whose whole memory is known, on a back end of the tests.

use std::time::{Duration, Instant};

use zerowire_guest::misbehave::patterned::REGIONS;
use zerowire_guest::{GuestAddr, GuestMemory};

use super::{Backend, PATIENCE, Peer, frames};

pub use zerowire_guest::misbehave::patterned::{DATA, Patterned};

/// What such a guest does with the back end and its peer.
pub trait OnBackend: Sized {
    /// Connects with these features beside VERSION_1.
    fn start(backend: &Backend, vm: &str, features: u64) -> Self;

    /// Has the peer send until a frame reaches a buffer, and no other one is under way. As long as
    /// the device has not taken any buffer a frame is lost, as on a wire. `place` names the buffer
    /// that is used next. When this returns the device has taken all that was offered before.
    fn go_live(&mut self, peer: &Peer, place: impl FnMut(&mut Self) -> (u64, u32));
}

impl OnBackend for Patterned {
    fn start(backend: &Backend, vm: &str, features: u64) -> Self {
        let regions: Vec<_> = REGIONS.iter().map(|&(at, len)| (GuestAddr(at), len)).collect();
        let memory = GuestMemory::new(&regions).unwrap_or_else(|e| panic!("{e}"));
        Self::over(backend.connect(vm), memory, features)
    }

    fn go_live(&mut self, peer: &Peer, mut place: impl FnMut(&mut Self) -> (u64, u32)) {
        const LEN: usize = 60;
        let (start, mut at) = (Instant::now(), place(self));
        for probe in frames::PROBE.. {
            assert!(start.elapsed() < PATIENCE, "no frame arrives");
            peer.send(&frames::frame(probe, LEN));
            while let Some((_, len)) = self.used(Duration::from_millis(100)) {
                let mut got = vec![0; 12 + LEN];
                self.memory
                    .at(GuestAddr(at.0), got.len())
                    .unwrap_or_else(|e| panic!("{e}"))
                    .read(0, &mut got);
                // One that was sent before is of no less worth, but others come then.
                let number = frames::number(&got[12..]);
                assert_eq!(len as usize, got.len());
                assert!((frames::PROBE..=probe).contains(&number), "{number:#x} after probe {probe:#x}");
                self.expect_in(
                    &[at],
                    &[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &frames::frame(number, LEN)].concat(),
                );
                if number == probe {
                    return;
                }
                at = place(self);
            }
        }
    }
}
