//! The event queue: telling a driver that the transport was reset (virtio 1.3 §5.10.6.7).
//!
//! A driver that goes on here after it had another device behind it, on the host that it migrated from or in a back end that
//! has ended, has connections that nobody here knows. The event makes it end them all, also those that would wait for bytes
//! forever. Front ends that keep the queue to themselves, as QEMU does, are not told so: there the driver learns of the end of
//! a connection from the reset that answers its next packet.

use super::Switch;
use crate::memory::access;
use crate::ring::{ChainCursor, RingError, RingRule};
use crate::vsock::queues::Queue;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET` as `struct virtio_vsock_event` (virtio 1.3 §5.10.6.7).
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();

impl Switch {
    /// Tells a driver of the reset, if that is due and there is a buffer for it. Returns whether it was told.
    pub fn tell_reset(&mut self, v: usize) -> bool {
        let vm = &mut self.vms[v];
        if !vm.reset_due {
            return false;
        }
        let Some(mut queue) = vm.events.take() else { return false };
        let outcome = if queue.is_active() { self.put_reset(v, &mut queue) } else { Ok(false) };
        let (told, failed) = match outcome {
            Ok(told) => (told, None),
            Err(e) => {
                queue.fail();
                (false, Some(e))
            }
        };
        let vm = &mut self.vms[v];
        vm.events = Some(queue);
        vm.reset_due &= !told && failed.is_none();
        if let Some(e) = failed {
            self.ring_failed(v, &e);
        }
        told
    }

    fn put_reset(&mut self, v: usize, queue: &mut Queue) -> Result<bool, RingError> {
        let memory = self.vms[v].memory.clone();
        let ring = &mut queue.ring;
        // A buffer that comes later is told of by a kick.
        if ring.available()? == 0 && !ring.arm()? {
            return Ok(false);
        }
        let Some(head) = ring.take()? else { return Ok(false) };
        let mut segments = Vec::with_capacity(16);
        let mut cursor = ChainCursor::new(ring, head);
        let mut room = 0;
        while room < TRANSPORT_RESET.len() {
            let Some(d) = cursor.next(ring, &memory, &mut self.hint)? else {
                return Err(ring.error(RingRule::EventTooSmall(room as u32)));
            };
            if !d.is_writable() {
                return Err(ring.error(RingRule::ReadableInReceive));
            }
            if !memory.translate(d.addr, d.len, &mut self.hint, &mut segments) {
                return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
            }
            room += d.len as usize;
        }
        access::write(&segments, 0, &TRANSPORT_RESET);
        memory.wrote(&segments, 0, TRANSPORT_RESET.len());
        ring.push_used(head, TRANSPORT_RESET.len() as u32);
        queue.publish();
        Ok(true)
    }
}
