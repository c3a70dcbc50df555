//! Buffers that were posted and have to be posted once more: their frame was dropped, or their
//! socket is another one now.

use zerowire::ledger::Counters;
use zerowire_vhost::memory::{GuestMemory, Segment};

use super::{SlabSide, XdpInlet, place_of, unseen};
use crate::port::xdp::geometry::Geometry;
use crate::port::xdp::link::Link;
use crate::port::xdp::posted::Buffer;
use crate::receive::ReceiveContext;

impl XdpInlet {
    /// A buffer whose frame was dropped, or whose socket is another one now. One that can't be
    /// posted as it is any more waits for frames that come over the slab.
    #[cold]
    pub(super) fn post_once_more(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        geometry: Geometry,
        buffer: Buffer,
        memory: &GuestMemory,
    ) {
        match buffer {
            Buffer::Place(place) => self.post_place(link, place),
            Buffer::Guest { head, taken, at } => {
                let list: Vec<Segment> = at.into_iter().flatten().collect();
                match place_of(side, link, geometry, &list) {
                    Some((chunk, at)) if link.fill(chunk) => {
                        self.posted.post(chunk, Buffer::Guest { head, taken, at });
                    }
                    _ => {
                        self.posted_chains -= 1;
                        self.keep(side, (head, taken), geometry, memory);
                    }
                }
            }
        }
    }

    /// Has a chain that was posted wait here; one that can't be parsed any more is given back
    /// empty.
    #[cold]
    fn keep(
        &mut self,
        side: &mut SlabSide,
        (head, taken): (u16, u16),
        geometry: Geometry,
        memory: &GuestMemory,
    ) {
        let need = side.setup.header_len + geometry.frame_bytes as usize;
        if side.put_back(head, need, memory) {
            self.kept.numbers.push_back(taken);
        } else {
            side.host.ring.push_used(head, 0);
            self.kept.order.used(taken);
        }
    }

    /// Drops frames that wait in these places.
    pub(super) fn drop_waiting(
        &mut self,
        side: &mut SlabSide,
        which: impl Fn(u16) -> bool,
        counters: &Counters,
    ) {
        side.drop_waiting(counters, |frame| {
            let drops = which(frame.place);
            if drops {
                self.places.push(frame.place);
            }
            drops
        });
    }

    /// Another socket: all buffers go to it that the one before had.
    #[cold]
    pub(super) fn post_again(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        geometry: Geometry,
        cx: &ReceiveContext<'_>,
    ) {
        self.generation = link.generation;
        self.in_pieces = false;
        // Frames wait in the slab of the registration that they came to; the first places are in
        // the fill ring already.
        let moved = std::mem::replace(&mut self.registration, link.registered.id()) != link.registered.id();
        let first = link.first_places;
        self.drop_waiting(side, |place| moved || usize::from(place) < first, cx.counters);
        let buffers: Vec<Buffer> = self.posted.take_all().collect();
        buffers.iter().for_each(|buffer| unseen(buffer, 0..self.device_reach, cx.memory));
        let reach = side.setup.header_len + geometry.frame_bytes as usize;
        self.device_reach = if geometry.zero_copy { reach } else { 0 };
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
            self.post_once_more(side, link, geometry, buffer, cx.memory);
        }
    }
}
