use std::cell::Cell;
use std::time::Duration;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_capture::{Capture, CaptureOptions, CaptureTarget, LINKTYPE_ETHERNET};
use zerowire_vhost::ring::inflight::testing::{AVAIL, DESC, Driver};

use super::parse::AHEAD;
use super::{Detour, Outlet, Pushed, Transmit, TransmitContext, TxFrame, TxPlace, TxSlot, TxState, TxTally};
use crate::FrameGuard;
use crate::capture::FrameCapture;

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

/// A port that has no room at first: for its first frame if it lends, else for the whole batch.
struct FullAtFirst<const LENDS: bool> {
    full: bool,
    bytes: [u8; 64],
}

impl<const LENDS: bool> FullAtFirst<LENDS> {
    fn new() -> Self {
        Self { full: true, bytes: [0; 64] }
    }
}

impl<const LENDS: bool> Outlet for FullAtFirst<LENDS> {
    type Port = Driver;
    const LENDS: bool = LENDS;

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
        if LENDS && std::mem::take(&mut self.full) {
            return Ok(Pushed::Full);
        }
        let copied = frame.len as u32;
        Ok(Pushed::Queued(TxTally { scattered: 0, copied, reason: CopyReason::Small }))
    }

    fn flush(&mut self, _driver: &mut Driver, batch: &mut [TxSlot], _counters: &Counters) -> usize {
        if LENDS || !std::mem::take(&mut self.full) {
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
    let mut side = Transmit::new(ring, FullAtFirst::<false>::new(), 0, 12);
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

/// Chains are fetched ahead. One that lies nowhere, or has no descriptor, breaks the
/// ring at its turn, and costs none of the frames before it.
#[test]
fn what_is_broken_ahead_breaks_nothing_before_its_turn() {
    const LAST: u64 = AHEAD as u64;
    // The highest bits of its address; the head's entry in the available ring.
    for (at, rule) in [(DESC + 16 * LAST + 6, "not in the guest's memory"), (AVAIL + 4 + 2 * LAST, "65535")] {
        let mut driver = Driver::new(0);
        (0..=AHEAD).for_each(|head| driver.describe(head, 64));
        (0..=AHEAD).for_each(|_| driver.add(0));
        driver.put(at, u16::MAX);
        let (ring, _) = driver.device();
        let memory = driver.memory.clone();
        let mut port = FullAtFirst::<false>::new();
        port.full = false;
        let mut side = Transmit::new(ring, port, 0, 12);
        let counters = Counters::default();
        let mut cx = TransmitContext { memory: &memory, counters: &counters, detour: None, guard: None };
        let error = side.run(&mut driver, &mut cx).expect_err("a broken ring").to_string();
        assert!(error.contains(rule), "{error}");
        assert_eq!(counters.snapshot().frames, LAST);
    }
}

/// Takes the first frame out.
struct First(Cell<bool>);

impl Detour for First {
    fn wants(&self, _start: &[u8]) -> bool {
        !self.0.replace(true)
    }

    fn take(&mut self, _frame: &[u8]) {}
}

/// The frame that did not fit comes again. The one before it was taken out, and does not.
#[test]
fn a_full_port_takes_no_finished_frame_out_of_the_capture() {
    let dir = tempfile::tempdir().expect("a folder");
    let target = CaptureTarget::File(dir.path().join("capture"));
    let options = CaptureOptions::new(target);
    let capture = Capture::start(&options, "a test").unwrap_or_else(|e| panic!("{e}"));
    let interface = capture.interface(LINKTYPE_ETHERNET, "vm", "").expect("any name");
    let mut driver = Driver::new(0);
    (0..2).for_each(|head| driver.describe(head, 64));
    (0..2).for_each(|_| driver.add(0));
    let (ring, _) = driver.device();
    let memory = driver.memory.clone();
    let mut side = Transmit::new(ring, FullAtFirst::<true>::new(), 0, 12);
    side.set_capture(Some(FrameCapture::new(&interface)));
    let (counters, mut detour) = (Counters::default(), First(Cell::new(false)));
    for _ in 0..2 {
        let detour: Option<&mut dyn Detour> = Some(&mut detour);
        let mut cx = TransmitContext { memory: &memory, counters: &counters, detour, guard: None };
        side.run(&mut driver, &mut cx).expect("a sound ring");
    }
    driver.reap();
    assert!(driver.out.is_empty(), "both chains are back");
    drop(side);
    assert!(capture.finish(Duration::from_secs(10)));
    assert_eq!(interface.stats().captured, 2);
}
