//! The event queue: telling a driver that the transport was reset (virtio 1.3 §5.10.6.7).
//!
//! A driver that goes on here after it had another device behind it, on the host that it migrated from or in a back end that
//! has ended, has connections that nobody here knows. The event makes it end them all, also those that would wait for bytes
//! forever. Front ends that keep the queue to themselves, as QEMU does, are not told so: there the driver learns of the end of
//! a connection from the reset that answers its next packet.
//!
//! A driver that takes the event ends all connections that it has by then, also new ones (Linux,
//! `virtio_vsock_event_handle`), and posts the buffer anew behind that. Until then none begins: see
//! [`Gate`].

use std::time::{Duration, Instant};

use super::Switch;
use crate::memory::access;
use crate::ring::{ChainCursor, RingError, RingRule};
use crate::vsock::queues::Queue;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET` as `struct virtio_vsock_event` (virtio 1.3 §5.10.6.7).
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();

/// How long connections wait for a driver that takes no event, or has none from here.
const GATE_PATIENCE: Duration = Duration::from_secs(1);

/// Whether connections may begin. While the gate is not open, no REQUEST and no RESPONSE leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::vsock) enum Gate {
    /// They may.
    #[default]
    Open,
    /// The driver has connections that nobody here knows, and is to be told so.
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

impl Switch {
    /// A driver goes on whose connections, if `lost`, nobody here knows.
    pub fn set_gate(&mut self, v: usize, lost: bool) {
        self.vms[v].gate = match lost {
            true => Gate::Due { until: self.io.timers.now() + GATE_PATIENCE },
            false => Gate::Open,
        };
        if lost {
            self.io.timers.look_after(GATE_PATIENCE);
        }
    }

    /// Tells a driver of the reset, if that is due and there is a buffer for it, and looks whether
    /// it is done with it. Returns whether there was anything to do.
    pub fn tell_reset(&mut self, v: usize) -> bool {
        let vm = &mut self.vms[v];
        if vm.gate == Gate::Open {
            return false;
        }
        let Some(mut queue) = vm.rings.events.take() else { return false };
        let outcome = if queue.is_active() { self.pass_gate(v, &mut queue) } else { Ok(false) };
        if outcome.is_err() {
            queue.fail();
        }
        self.vms[v].rings.events = Some(queue);
        outcome.unwrap_or_else(|e| {
            self.open_gate(v);
            self.ring_failed(v, &e);
            false
        })
    }

    /// One step of [`Self::tell_reset`].
    fn pass_gate(&mut self, v: usize, queue: &mut Queue) -> Result<bool, RingError> {
        match self.vms[v].gate {
            Gate::Open => Ok(false),
            Gate::Due { until } => {
                let told = self.put_reset(v, queue)?;
                if let Some(available) = told {
                    self.vms[v].gate = Gate::Told { until, available };
                }
                Ok(told.is_some())
            }
            Gate::Told { available, .. } => {
                let ring = &mut queue.ring;
                // The next one that is posted is told of by a kick.
                let left = available.wrapping_sub(ring.next_avail());
                let posted = ring.arm_for(left.saturating_add(1))?;
                if posted {
                    self.open_gate(v);
                }
                Ok(posted)
            }
        }
    }

    /// Connections may begin, those that wait for it first.
    pub(super) fn open_gate(&mut self, v: usize) {
        let vm = &mut self.vms[v];
        vm.gate = Gate::Open;
        for slot in 0..vm.connections.slots() {
            if vm.connections.get(slot).is_some_and(|c| c.protocol.owes_beginning()) {
                vm.mark_ready(slot);
            }
        }
    }

    /// Opens the gate of a driver that has not taken the event in time.
    pub(super) fn scan_gate(&mut self, v: usize, now: Instant) {
        let (Gate::Due { until } | Gate::Told { until, .. }) = self.vms[v].gate else { return };
        if until > now {
            self.io.timers.look_after(until - now);
        } else {
            self.open_gate(v);
        }
    }

    /// Writes the event into a buffer of the driver's, if there is one. Returns the available index
    /// before the driver sees it.
    fn put_reset(&mut self, v: usize, queue: &mut Queue) -> Result<Option<u16>, RingError> {
        let memory = self.vms[v].rings.memory.clone();
        let ring = &mut queue.ring;
        // A buffer that comes later is told of by a kick.
        if ring.available()? == 0 && !ring.arm()? {
            return Ok(None);
        }
        let Some(head) = ring.take()? else { return Ok(None) };
        let mut segments = Vec::with_capacity(16);
        let mut cursor = ChainCursor::new(ring, head);
        let mut room = 0;
        while room < TRANSPORT_RESET.len() {
            let Some(d) = cursor.next(ring, &memory, &mut self.io.scratch.hint)? else {
                return Err(ring.error(RingRule::EventTooSmall(room as u32)));
            };
            if !d.is_writable() {
                return Err(ring.error(RingRule::ReadableInReceive));
            }
            if !memory.translate(d.addr, d.len, &mut self.io.scratch.hint, &mut segments) {
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
}
