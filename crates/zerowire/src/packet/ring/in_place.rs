//! A ring's slots, given out before their frames are pushed.

use std::time::Duration;

use super::PacketRing;
use crate::send::frame::{ETHERNET_HEADER_BYTES, FrameError};
use crate::send::in_place::{FrameSlot, InPlace};
use zerowire_wire::vnet::VnetHeader;

impl InPlace for PacketRing {
    fn reserve(&mut self, len: usize) -> Result<Option<FrameSlot<'_>>, FrameError> {
        let capacity = self.slot_frame_bytes();
        if !self.link.offloads() || len < ETHERNET_HEADER_BYTES {
            self.link.check(self.order.next_number(), len, capacity, &VnetHeader::NONE)?;
        } else if len > capacity {
            return Err(FrameError::TooLong { frame_bytes: len, slot_bytes: capacity });
        }
        self.collect();
        if self.order.is_full() {
            return Ok(None);
        }
        let (number, skip) = (self.order.head(), self.header_bytes);
        self.order[number].loaded = false;
        Ok(self.memory.data_mut(number).map(|data| FrameSlot { number, bytes: &mut data[skip..skip + len] }))
    }

    fn commit(&mut self, len: usize, header: &VnetHeader) -> Result<bool, FrameError> {
        self.place(header, len, false, |_| {})
    }

    fn is_out(&self, place: usize) -> bool {
        self.order.in_use(place)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        self.wait(timeout)
    }

    fn path(&self) -> String {
        self.path()
    }
}
