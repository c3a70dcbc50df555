//! Hooks for tests that show which bytes really go out, and what a refused frame does.

use super::PacketRing;

impl PacketRing {
    /// Changes bytes of a slot's frame even while the kernel has it, to show which bytes really go
    /// out.
    pub fn scribble(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        self.memory.scribble(slot, self.header_bytes + offset, bytes);
    }

    /// Makes the frame that was pushed last one that the kernel refuses (WRONG_FORMAT).
    pub fn spoil_last(&mut self) {
        if self.order.unsent() > 0 {
            let slot = self.order.slot_at(self.order.unsent_positions().end - 1);
            self.memory.spoil(slot);
        }
    }
}
