//! Loaded frames: written into their slots once, sent as often as wanted without being touched.

use super::PacketRing;
use super::order::PacketSlot;
use crate::send::frame::FrameError;
use zerowire_wire::ethernet::TAG_BYTES as VLAN_TAG_BYTES;
use zerowire_wire::vnet::VnetHeader;

impl PacketRing {
    /// The slot that the next frame goes into: frames go out in the order of the slots, round and
    /// round.
    pub fn next_slot(&self) -> usize {
        self.order.head()
    }

    /// Loads a frame into a slot, from where [`PacketRing::send_loaded`] sends it as often as
    /// wanted. `header` is [`VnetHeader::NONE`] without offload. Loading is a copy (`outside`),
    /// counted with the first time it is sent.
    ///
    /// # Errors
    /// [`FrameError::Slot`] when there is no such slot or its frame is under way; otherwise as
    /// `push`.
    pub fn load(&mut self, slot: usize, header: &VnetHeader, frame: &[u8]) -> Result<(), FrameError> {
        self.link.check(self.order.next_number(), frame.len(), self.slot_frame_bytes(), header)?;
        let slots = self.order.len();
        if slot >= slots {
            return Err(FrameError::Slot { slot, slots, rule: "there is no such place" });
        }
        self.collect();
        if self.order.in_use(slot) {
            return Err(FrameError::Slot { slot, slots, rule: "its frame is under way: drain first" });
        }
        self.order[slot].loaded = false;
        let ethertype = self.fill(slot, header, frame.len(), |to| to.copy_from_slice(frame))?;
        let described = self.described(header, frame.len());
        self.order[slot] = PacketSlot { outside: true, loaded: true, ethertype, ..described };
        Ok(())
    }

    /// Pushes up to `count` of the next loaded frames in the order of the slots, without touching
    /// their bytes. Returns how many: fewer where the next slot is not back yet, or can't be sent:
    /// then the next call says why. Flush hands them over.
    ///
    /// # Errors
    /// [`FrameError::Slot`] where the next slot holds no loaded frame,
    /// [`FrameError::LongerThanMtu`] where the MTU shrank and the kernel doesn't look (options
    /// `offload` and `copy_up_to`): nothing was pushed by this call.
    #[inline]
    pub fn send_loaded(&mut self, count: usize) -> Result<usize, FrameError> {
        for done in 0..count {
            if self.order.is_full() {
                self.collect();
                if self.order.is_full() {
                    return Ok(done);
                }
            }
            let slot = self.order.head();
            let wire = self.order[slot].wire;
            let is_too_long = self.header_bytes > 0 && wire > self.link.longest() + VLAN_TAG_BYTES;
            if done > 0 && (is_too_long || !self.order[slot].loaded) {
                return Ok(done);
            }
            if !self.order[slot].loaded {
                let rule = "no frame is loaded there: load one";
                return Err(FrameError::Slot { slot, slots: self.order.len(), rule });
            }
            if is_too_long {
                return Err(self.link.too_long(self.order.next_number(), wire));
            }
            self.order[slot].number = self.order.next_number();
            self.waiting.add(self.order[slot].ethertype);
            self.memory.request(slot, self.header_bytes + self.order[slot].len);
            self.order.push();
        }
        Ok(count)
    }
}
