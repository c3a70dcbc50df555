//! What the thread of a group watches, and what epoll tells it by.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventFlags as F};

use crate::connection::Interest;
use crate::doors::Door;
use crate::table::SlotKey;

/// What epoll tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The thread has commands.
    Wake,
    /// A driver notified its device.
    Kick { vm: usize, queue: u16 },
    /// A host program connects.
    Listener { vm: usize, door: Door },
    /// A host program has said something, or hung up.
    Handshake { vm: usize, place: SlotKey },
    /// A connection's socket.
    Connection { vm: usize, place: SlotKey },
    /// The program of a mapped connection released a window.
    Released { vm: usize, place: SlotKey },
    /// A program that asked for mapped connections has said something, or hung up.
    MapClient { vm: usize, place: SlotKey },
    /// It may be time to look at credit that guests don't know of.
    Review,
}

/// The event as epoll's number, and back.
pub(crate) mod token {
    use super::{Door, Event, SlotKey};

    pub fn of(event: Event) -> u64 {
        let at =
            |tag: u64, vm: usize, slot: u64, tenant: u64| tag << 60 | (vm as u64) << 48 | tenant << 24 | slot;
        match event {
            Event::Wake => 0,
            Event::Kick { vm, queue } => at(1, vm, u64::from(queue), 0),
            Event::Listener { vm, door } => at(2, vm, door as u64, 0),
            Event::Handshake { vm, place } => at(3, vm, u64::from(place.slot), u64::from(place.tenant)),
            Event::Connection { vm, place } => at(4, vm, u64::from(place.slot), u64::from(place.tenant)),
            Event::Released { vm, place } => at(5, vm, u64::from(place.slot), u64::from(place.tenant)),
            Event::MapClient { vm, place } => at(6, vm, u64::from(place.slot), u64::from(place.tenant)),
            Event::Review => at(7, 0, 0, 0),
        }
    }

    pub fn event(n: u64) -> Event {
        let vm = (n >> 48 & 0xfff) as usize;
        let place = SlotKey { slot: (n & 0xff_ffff) as u32, tenant: (n >> 24 & 0xff_ffff) as u32 };
        match n >> 60 {
            1 => Event::Kick { vm, queue: place.slot as u16 },
            2 => Event::Listener { vm, door: Door::ALL[place.slot as usize % Door::ALL.len()] },
            3 => Event::Handshake { vm, place },
            4 => Event::Connection { vm, place },
            5 => Event::Released { vm, place },
            6 => Event::MapClient { vm, place },
            7 => Event::Review,
            _ => Event::Wake,
        }
    }
}

/// The thread's epoll. All is watched edge-triggered, by one call in its life, but for
/// [`Self::change`].
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Of nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches a descriptor.
    pub fn add(&self, fd: &OwnedFd, event: Event) -> io::Result<()> {
        let flags = match event {
            Event::Connection { .. } | Event::Handshake { .. } | Event::MapClient { .. } => {
                F::IN | F::RDHUP | F::ET
            }
            _ => F::IN | F::ET,
        };
        Ok(epoll::add(&self.epoll, fd.as_fd(), epoll::EventData::new_u64(token::of(event)), flags)?)
    }

    /// Asks for other news of a connection's socket.
    pub fn change(&self, fd: &OwnedFd, event: Event, interest: Interest) -> io::Result<()> {
        let mut flags = F::IN | F::RDHUP | F::ET;
        flags.set(F::OUT, interest == Interest::InOut);
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token::of(event)), flags)?)
    }

    /// Watches a descriptor no more.
    pub fn forget(&self, fd: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// What the thread sleeps in.
    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_event() {
        let place = SlotKey { slot: 0xfe_dcba, tenant: 0x12_3456 };
        for event in [
            Event::Wake,
            Event::Kick { vm: 255, queue: 1 },
            Event::Listener { vm: 3, door: Door::Messages },
            Event::Listener { vm: 0, door: Door::Streams },
            Event::Handshake { vm: 7, place },
            Event::Connection { vm: 255, place },
            Event::Released { vm: 1, place },
            Event::Listener { vm: 2, door: Door::Mapped },
            Event::MapClient { vm: 3, place },
        ] {
            assert_eq!(token::event(token::of(event)), event);
        }
    }
}
