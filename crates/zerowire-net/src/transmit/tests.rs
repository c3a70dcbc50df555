use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::ring::inflight::testing::Driver;

use super::{Outlet, Pushed, Transmit, TransmitContext, TxFrame, TxPlace, TxSlot, TxState, TxTally};
use crate::FrameGuard;

/// Notes which frames were marked as sent when it got them.
struct Marks {
    at_once: bool,
    bytes: [u8; 64],
    marked: Vec<bool>,
}

impl Outlet for Marks {
    type Port = Driver;

    fn begin(&mut self, _driver: &mut Driver, _work: bool, _counters: &Counters) -> TxState {
        TxState::Ready
    }

    fn has_room(&self, _driver: &mut Driver) -> bool {
        true
    }

    fn place(&mut self, _driver: &Driver, frame: &TxFrame<'_>) -> TxPlace {
        TxPlace { at: 0, len: frame.len, gather: Some(CopyReason::Small) }
    }

    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        &mut self.bytes[place.range()]
    }

    fn sends_at_once(&self) -> bool {
        self.at_once
    }

    fn push(
        &mut self,
        driver: &mut Driver,
        frame: &TxFrame<'_>,
        _place: TxPlace,
    ) -> Result<Pushed, DropReason> {
        self.marked.push(driver.is_handed_on(frame.head));
        let copied = frame.len as u32;
        Ok(Pushed::Queued(TxTally { scattered: 0, copied, reason: CopyReason::Small }))
    }

    fn flush(&mut self, driver: &mut Driver, _batch: &mut [TxSlot], _counters: &Counters) -> usize {
        assert!((0..2).all(|head| driver.is_handed_on(head)), "both are sent now at the latest");
        0
    }
}

/// A process that follows one that was killed sends no frame twice.
#[test]
fn frames_are_marked_as_sent_before_the_port_has_them() {
    for at_once in [false, true] {
        let mut driver = Driver::new(0);
        (0..2).for_each(|head| driver.describe(head, 64));
        (0..2).for_each(|_| driver.add(0));
        let (ring, _) = driver.device();
        let memory = driver.memory.clone();
        let marks = Marks { at_once, bytes: [0; 64], marked: Vec::new() };
        let mut side = Transmit::new(ring, marks, 0, 12);
        let counters = Counters::default();
        let mut cx = TransmitContext { memory: &memory, counters: &counters, detour: None, guard: None };
        let turn = side.run(&mut driver, &mut cx).expect("a sound ring");
        assert_eq!((turn.chains, side.outlet.marked.as_slice()), (2, [at_once; 2].as_slice()));
    }
}

/// A port that has no room for all chains of its first batch.
struct FullAtFirst {
    full: bool,
    bytes: [u8; 64],
}

impl Outlet for FullAtFirst {
    type Port = Driver;

    fn begin(&mut self, _driver: &mut Driver, _work: bool, _counters: &Counters) -> TxState {
        TxState::Ready
    }

    fn has_room(&self, _driver: &mut Driver) -> bool {
        true
    }

    fn place(&mut self, _driver: &Driver, frame: &TxFrame<'_>) -> TxPlace {
        TxPlace { at: 0, len: frame.len, gather: Some(CopyReason::Small) }
    }

    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        &mut self.bytes[place.range()]
    }

    fn push(
        &mut self,
        _driver: &mut Driver,
        frame: &TxFrame<'_>,
        _place: TxPlace,
    ) -> Result<Pushed, DropReason> {
        let copied = frame.len as u32;
        Ok(Pushed::Queued(TxTally { scattered: 0, copied, reason: CopyReason::Small }))
    }

    fn flush(&mut self, _driver: &mut Driver, batch: &mut [TxSlot], _counters: &Counters) -> usize {
        if !std::mem::take(&mut self.full) {
            return 0;
        }
        batch.iter_mut().for_each(TxSlot::refuse);
        batch.len()
    }
}

/// A chain that the guard refuses goes back to the ring with the frame before it that found no
/// room. It counts once.
#[test]
fn chains_that_come_again_count_once() {
    let mut driver = Driver::new(0);
    (0..2).for_each(|head| driver.describe(head, 64));
    (0..2).for_each(|_| driver.add(0));
    // The second one lies elsewhere, and has a VLAN tag.
    driver.put(16, 0x3800);
    driver.put(0x3800 + 12 + 12, u16::from_ne_bytes([0x81, 0]));
    let (ring, _) = driver.device();
    let memory = driver.memory.clone();
    let mut side = Transmit::new(ring, FullAtFirst { full: true, bytes: [0; 64] }, 0, 12);
    let counters = Counters::default();
    let guard = FrameGuard::parse("vlan=off", None).unwrap_or_else(|e| panic!("{e}"));
    for (out, frames, refused) in [(2, 0, 0), (0, 1, 1)] {
        let guard = Some(&guard);
        let mut cx = TransmitContext { memory: &memory, counters: &counters, detour: None, guard };
        side.run(&mut driver, &mut cx).expect("a sound ring");
        driver.reap();
        let totals = counters.snapshot();
        let dropped = totals.dropped_frames.get("guard_vlan").copied().unwrap_or(0);
        assert_eq!((driver.out.len(), totals.frames, dropped), (out, frames, refused));
        assert_eq!(totals.dropped_total(), refused);
        assert_eq!(side.meter.passed(), (2 - out as u64, 52 * (2 - out as u64)));
    }
}
