//! Loaded frames: written into their slots once, sent as often as wanted without being touched.

use super::PacketRing;
use super::order::PacketSlot;
use crate::send::frame::FrameError;
use zerowire_wire::vnet::VnetHeader;

impl PacketRing {
    /// The slot that the next frame goes into: frames go out in the order of the slots, round and
    /// round.
    pub fn next_slot(&self) -> usize {
        self.slots.order.head()
    }

    /// Loads a frame into a slot, from where [`PacketRing::send_loaded`] sends it as often as
    /// wanted. `header` is [`VnetHeader::NONE`] without offload. Loading is a copy (`outside`),
    /// counted with the first time it is sent.
    ///
    /// # Errors
    /// [`FrameError::Slot`] when the ring doesn't have the slot or its frame is under way;
    /// otherwise as `push`.
    pub fn load(&mut self, slot: usize, header: &VnetHeader, frame: &[u8]) -> Result<(), FrameError> {
        self.link.check(self.slots.order.next_number(), frame.len(), self.slot_frame_bytes(), header)?;
        let slots = self.slots.order.len();
        if slot >= slots {
            return Err(FrameError::Slot { slot, slots, rule: "there is no such place" });
        }
        self.slots.collect();
        if self.slots.order.in_use(slot) {
            return Err(FrameError::Slot { slot, slots, rule: "its frame is under way: drain first" });
        }
        self.slots.order[slot].loaded = false;
        let ethertype =
            self.slots.fill(&mut self.link, slot, header, frame.len(), |to| to.copy_from_slice(frame))?;
        let described = self.slots.described(header, frame.len());
        self.slots.order[slot] = PacketSlot { outside: true, loaded: true, ethertype, ..described };
        Ok(())
    }

    /// Pushes up to `count` of the next loaded frames in the order of the slots, without touching
    /// their bytes. Returns how many. These are fewer where the next slot is not back yet, or can't
    /// be sent: then the next call says why. Flush hands them over.
    ///
    /// # Errors
    /// [`FrameError::Slot`] where the next slot holds no loaded frame,
    /// [`FrameError::LongerThanMtu`] where the MTU shrank and the kernel doesn't look (options
    /// `offload` and `copy_up_to`). This call then pushed nothing.
    #[inline]
    pub fn send_loaded(&mut self, count: usize) -> Result<usize, FrameError> {
        for done in 0..count {
            if self.slots.order.is_full() {
                self.slots.collect();
                if self.slots.order.is_full() {
                    return Ok(done);
                }
            }
            let slot = self.slots.order.head();
            let wire = self.slots.order[slot].wire;
            let is_too_long = self.is_too_long(wire);
            if done > 0 && (is_too_long || !self.slots.order[slot].loaded) {
                return Ok(done);
            }
            if !self.slots.order[slot].loaded {
                let rule = "no frame is loaded there: load one";
                return Err(FrameError::Slot { slot, slots: self.slots.order.len(), rule });
            }
            if is_too_long {
                return Err(self.link.too_long(self.slots.order.next_number(), wire));
            }
            self.slots.order[slot].number = self.slots.order.next_number();
            let PacketSlot { len, ethertype, .. } = self.slots.order[slot];
            self.slots.push(slot, len, ethertype);
        }
        Ok(count)
    }
}
