//! The event queue: telling a driver that the transport was reset (virtio 1.3 §5.10.6.7).
//!
//! A driver may go on here that had another device behind it before. That device was on the host
//! that the driver migrated from, or in a back end that has ended. The driver then has connections
//! that nobody here knows. The event makes it end them all, also those that would wait for bytes
//! forever. Front ends that keep the queue to themselves, as QEMU does, get no event. There the
//! driver learns of the end of a connection from the reset that answers its next packet. Where a
//! process has left the names of its connections, each is reset by its name.
//!
//! A driver that takes the event ends all connections that it has by then, also new ones (Linux,
//! `virtio_vsock_event_handle`). It posts the buffer anew behind that. Until then none begins: see
//! [`Gate`].

use std::time::{Duration, Instant};

use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::{GuestMemory, access};
use zerowire_vhost::ring::{ChainCursor, RingError, RingRule};

use super::{Io, Timers};
use crate::rings::VmRings;
use crate::vm::GroupVm;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET` as `struct virtio_vsock_event` (virtio 1.3 §5.10.6.7).
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();

/// How long connections wait for a driver that takes no event, or has none from here.
const GATE_PATIENCE: Duration = Duration::from_secs(1);

/// Whether connections may begin. While the gate is not open, no REQUEST and no RESPONSE leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    /// They may.
    #[default]
    Open,
    /// The driver has connections that nobody here knows. The event is due.
    Due {
        /// The gate opens then at the latest.
        until: Instant,
    },
    /// It was told. When it has done what is due it posts the buffer anew.
    Told {
        /// The gate opens then at the latest.
        until: Instant,
        /// The available index of the event queue when it was told.
        available: u16,
    },
}

impl Gate {
    /// What it is after a look at the driver's event queue.
    fn pass(self, queue: &mut HostRing, memory: &GuestMemory, hint: &mut usize) -> Result<Self, RingError> {
        match self {
            Self::Open => Ok(self),
            Self::Due { until } => {
                let told = put_reset(queue, memory, hint)?;
                Ok(told.map_or(self, |available| Self::Told { until, available }))
            }
            Self::Told { available, .. } => {
                let ring = &mut queue.ring;
                // The driver kicks when it posts the next one.
                let left = available.wrapping_sub(ring.next_avail());
                let posted = ring.arm_for(left.saturating_add(1))?;
                Ok(if posted { Self::Open } else { self })
            }
        }
    }
}

/// A driver goes on whose connections, if `lost`, nobody here knows.
pub(super) fn set(vm: &mut GroupVm, lost: bool, timers: &mut Timers) {
    vm.gate = match lost {
        true => Gate::Due { until: timers.now() + GATE_PATIENCE },
        false => {
            vm.names.forget_lost();
            Gate::Open
        }
    };
    if lost {
        timers.look_after(GATE_PATIENCE);
    }
}

/// The session of another process goes on here, whose front end says nothing more of its rings.
/// Where it keeps the event queue to itself, nothing is waited for. Of a VM that is paused no ring
/// runs: its connections are reset behind the start of its rings, as those of any driver that goes
/// on.
pub(super) fn taken_up(vm: &mut GroupVm) {
    vm.doors.accept_those_that_wait();
    if vm.rings.tx.is_none() {
        return;
    }
    if vm.rings.events.is_none() || vm.gate == Gate::Open {
        give_up(vm);
    }
}

/// Tells a driver of the reset, if that is due and there is a buffer for it, and looks whether it
/// is done with it. Returns whether there was anything to do.
pub(super) fn tell_reset(vm: &mut GroupVm, io: &mut Io) -> bool {
    let before = vm.gate;
    if before == Gate::Open {
        return false;
    }
    let VmRings { events, memory, .. } = &mut vm.rings;
    let Some(queue) = events.as_deref_mut().filter(|q| q.is_active()) else { return false };
    match before.pass(queue, memory, &mut io.scratch.hint) {
        Ok(Gate::Open) => {
            vm.names.forget_lost();
            open(vm);
            true
        }
        Ok(gate) => {
            vm.gate = gate;
            gate != before
        }
        Err(e) => {
            queue.fail();
            give_up(vm);
            vm.ring_failed(&e);
            false
        }
    }
}

/// Connections may begin, those that wait for it first.
fn open(vm: &mut GroupVm) {
    vm.gate = Gate::Open;
    for slot in 0..vm.connections.slots() {
        if vm.connections.get(slot).is_some_and(|c| c.protocol.owes_beginning()) {
            vm.mark_ready(slot);
        }
    }
}

/// Opens the gate of a driver that takes no event. Connections whose names are known are reset.
fn give_up(vm: &mut GroupVm) {
    vm.reset_lost();
    open(vm);
}

/// Opens the gate of a driver that has not taken the event in time.
pub(super) fn scan(vm: &mut GroupVm, now: Instant, timers: &mut Timers) {
    let (Gate::Due { until } | Gate::Told { until, .. }) = vm.gate else { return };
    if until > now {
        timers.look_after(until - now);
    } else {
        give_up(vm);
    }
}

/// Writes the event into a buffer of the driver's, if there is one. Returns the available index
/// before the driver sees it.
fn put_reset(queue: &mut HostRing, memory: &GuestMemory, hint: &mut usize) -> Result<Option<u16>, RingError> {
    let ring = &mut queue.ring;
    // The driver kicks when it posts a buffer later.
    if ring.available()? == 0 && !ring.arm()? {
        return Ok(None);
    }
    let Some(head) = ring.take()? else { return Ok(None) };
    let mut segments = Vec::with_capacity(16);
    let mut cursor = ChainCursor::new(ring, head);
    let mut room = 0;
    while room < TRANSPORT_RESET.len() {
        let Some(d) = cursor.next(ring, memory, hint)? else {
            return Err(ring.error(RingRule::EventTooSmall(room as u32)));
        };
        if !d.is_writable() {
            return Err(ring.error(RingRule::ReadableInReceive));
        }
        if !memory.translate(d.addr, d.len, hint, &mut segments) {
            return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
        }
        room += d.len as usize;
    }
    access::write(&segments, 0, &TRANSPORT_RESET);
    memory.wrote(&segments, 0, TRANSPORT_RESET.len());
    ring.push_used(head, TRANSPORT_RESET.len() as u32);
    let available = ring.refresh()?.wrapping_add(ring.next_avail());
    queue.publish();
    Ok(Some(available))
}
