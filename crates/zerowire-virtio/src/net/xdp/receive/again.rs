//! Buffers that were posted and have to be posted once more: their frame was dropped, or their
//! socket is another one now.

use zerowire::ledger::{Counters, DropReason};

use super::{XdpReceive, unseen};
use crate::memory::{GuestMemory, Segment};
use crate::net::xdp::geometry::Geometry;
use crate::net::xdp::link::Link;
use crate::net::xdp::posted::Buffer;

impl XdpReceive {
    /// A buffer whose frame was dropped, or whose socket is another one now. One that can't be
    /// posted as it is any more waits for frames that come over the slab.
    #[cold]
    pub(super) fn post_once_more(
        &mut self,
        link: &mut Link,
        geometry: Geometry,
        buffer: Buffer,
        memory: &GuestMemory,
    ) {
        match buffer {
            Buffer::Place(place) => self.post_place(link, place),
            Buffer::Guest { head, taken, at } => {
                let list: Vec<Segment> = at.into_iter().flatten().collect();
                match self.place_of(link, geometry, &list) {
                    Some((chunk, at)) if link.fill(chunk) => {
                        self.posted.post(chunk, Buffer::Guest { head, taken, at });
                    }
                    _ => {
                        self.posted_chains -= 1;
                        self.keep(head, taken, geometry, memory);
                    }
                }
            }
        }
    }

    /// Has a chain that was posted wait here; one that can't be parsed any more is given back
    /// empty.
    #[cold]
    fn keep(&mut self, head: u16, taken: u16, geometry: Geometry, memory: &GuestMemory) {
        let need = self.setup.header_len + geometry.frame_bytes() as usize;
        if self.chains.put_back(head, need, &self.host.ring, memory, self.setup.header_len) {
            self.kept.push_back(taken);
        } else {
            self.host.ring.push_used(head, 0);
            self.order.used(taken);
        }
    }

    /// Drops frames that wait in these places.
    pub(super) fn drop_pending(&mut self, which: impl Fn(u16) -> bool, counters: &Counters) {
        for waits in std::mem::take(&mut self.pending) {
            if which(waits.place) {
                self.places.push(waits.place);
                counters.dropped(DropReason::NoRoom);
            } else {
                self.pending.push_back(waits);
            }
        }
    }

    /// Another socket: all buffers go to it that the one before had.
    #[cold]
    pub(super) fn post_again(
        &mut self,
        link: &mut Link,
        geometry: Geometry,
        memory: &GuestMemory,
        counters: &Counters,
    ) {
        self.generation = link.generation();
        self.in_pieces = false;
        // Frames wait in the slab of the registration that they came to; the first places are in
        // the fill ring already.
        let moved = std::mem::replace(&mut self.registration, link.registration()) != link.registration();
        let first = link.first_places;
        self.drop_pending(|place| moved || usize::from(place) < first, counters);
        let buffers: Vec<Buffer> = self.posted.take_all().collect();
        buffers.iter().for_each(|buffer| unseen(buffer, 0..self.device_reach, memory));
        let reach = self.setup.header_len + geometry.frame_bytes() as usize;
        self.device_reach = if geometry.zero_copy() { reach } else { 0 };
        let (places, chains): (Vec<_>, Vec<_>) =
            buffers.into_iter().partition(|b| matches!(b, Buffer::Place(_)));
        self.places
            .extend(places.iter().filter_map(|b| if let Buffer::Place(p) = b { Some(*p) } else { None }));
        for place in 0..first as u16 {
            self.places.retain(|p| *p != place);
            if let Some((slab, _)) = link.memory() {
                self.posted.post(slab.receive_chunk(place), Buffer::Place(place));
            }
        }
        for buffer in chains {
            self.post_once_more(link, geometry, buffer, memory);
        }
    }
}
