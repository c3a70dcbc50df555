//! Loaded frames: written into their slots once, sent as often as wanted without being touched.

use super::{PacketRing, Slot};
use crate::send::frame::FrameError;
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;
use zerowire_wire::vnet::VnetHeader;

impl PacketRing {
    /// The slot that the next frame goes into: frames go out in the order of the slots, round and round.
    pub fn next_slot(&self) -> usize {
        self.head.slot
    }

    /// Loads a frame into a slot, from where [`PacketRing::send_loaded`] sends it as often as wanted. `header` is
    /// [`VnetHeader::NONE`] without offload. Loading is a copy (`outside`), counted with the first time it is sent.
    ///
    /// # Errors
    /// [`FrameError::Slot`] when there is no such slot or its frame is under way; otherwise as `push`.
    pub fn load(&mut self, slot: usize, header: &VnetHeader, frame: &[u8]) -> Result<(), FrameError> {
        self.link.check(self.next_number, frame.len(), self.slot_frame_bytes(), header)?;
        let slots = self.slots.len();
        if slot >= slots {
            return Err(FrameError::Slot { slot, slots, rule: "there is no such place" });
        }
        self.collect();
        if self.in_use(slot) {
            return Err(FrameError::Slot { slot, slots, rule: "its frame is under way: drain first" });
        }
        self.slots[slot].loaded = false;
        let ethertype = self.fill(slot, header, frame.len(), |to| to.copy_from_slice(frame))?;
        let described = self.described(header, frame.len());
        self.slots[slot] = Slot { outside: true, loaded: true, ethertype, ..described };
        Ok(())
    }

    /// Pushes up to `count` of the next loaded frames in the order of the slots, without touching their bytes. Returns
    /// how many: fewer where the next slot is not back yet, or can't be sent: then the next call says why. Flush hands them
    /// over.
    ///
    /// # Errors
    /// [`FrameError::Slot`] where the next slot holds no loaded frame, [`FrameError::LongerThanMtu`] where the MTU shrank
    /// and the kernel doesn't look (options `offload` and `copy_up_to`): nothing was pushed by this call.
    #[inline]
    pub fn send_loaded(&mut self, count: usize) -> Result<usize, FrameError> {
        for done in 0..count {
            if self.used() == self.slots.len() {
                self.collect();
                if self.used() == self.slots.len() {
                    return Ok(done);
                }
            }
            let slot = self.head.slot;
            let wire = self.slots[slot].wire;
            let is_too_long = self.header_bytes > 0 && wire > self.link.longest() + VLAN_TAG_BYTES;
            if done > 0 && (is_too_long || !self.slots[slot].loaded) {
                return Ok(done);
            }
            if !self.slots[slot].loaded {
                let rule = "no frame is loaded there: load one";
                return Err(FrameError::Slot { slot, slots: self.slots.len(), rule });
            }
            if is_too_long {
                return Err(self.link.too_long(self.next_number, wire));
            }
            self.slots[slot].number = self.next_number;
            self.waiting.add(self.slots[slot].ethertype);
            self.memory.request(slot, self.header_bytes + self.slots[slot].len);
            self.next_number += 1;
            self.head.step(self.slots.len());
        }
        Ok(count)
    }

    /// Whether a slot's frame is between tail and head.
    pub(super) fn in_use(&self, slot: usize) -> bool {
        let n = self.slots.len();
        (slot + n - self.tail.slot) % n < self.used()
    }
}
