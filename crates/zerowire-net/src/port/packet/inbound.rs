//! Whether frames to the guest come by a ring shared with the kernel, and what happens if it can't
//! be opened or stands still.
//!
//! **A ring that stands still.** The kernel has no virtio-net header for some frames (UDP to be
//! fragmented, SCTP to be segmented). Such a frame marks its slot as being written, for good. That
//! frame and all that come after it are dropped and counted, though the ring is empty
//! (net/packet/af_packet.c, `tpacket_rcv`; seen on Linux 6.18). Who can send such a frame to the
//! interface must not stop a guest. So an empty ring is closed if frames were dropped while nothing
//! was taken from it.

use std::time::{Duration, Instant};

use crate::port::packet::{PacketReceive, PacketSocket, SLOT_BYTES, SLOTS, Slots};

/// How long to wait before another attempt to open a ring.
const RETRY: Duration = Duration::from_millis(500);

/// How long a frame may be in the socket's queue before its slot says so: far longer than the
/// kernel takes to write one.
const STRAY: Duration = Duration::from_secs(1);

/// How frames to the guest come.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Whether to use a ring, or why not.
    wanted: Result<(), String>,
    /// True: if the ring can't be opened, retry again and again (`receive=ring`).
    insists: bool,
    slots: Option<Slots>,
    /// Why a ring that is wanted does not exist.
    problem: Option<String>,
    retry_at: Option<Instant>,
    /// How many slots had been given back when the ring was found empty, and when that was found
    /// first.
    empty: Option<(u64, Instant)>,
}

impl Inbound {
    /// `refused`: why not to use a ring, whatever was asked for.
    pub(super) fn new(receive: PacketReceive, refused: Option<&str>) -> Self {
        let wanted = match (refused, receive) {
            (Some(why), _) => Err(format!("no receive ring, since {why}")),
            (None, PacketReceive::Socket) => Err("no receive ring, as asked".to_owned()),
            (None, PacketReceive::Ring | PacketReceive::Auto) => Ok(()),
        };
        let insists = receive == PacketReceive::Ring;
        Self { wanted, insists, slots: None, problem: None, retry_at: None, empty: None }
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        match (&self.wanted, &self.slots) {
            (_, Some(_)) => {
                format!(
                    "frames in by a TPACKET_V2 ring of {SLOTS} slots of {SLOT_BYTES} bytes, longer ones by the socket"
                )
            }
            (Err(why), None) => why.clone(),
            (Ok(()), None) => self.problem.clone().unwrap_or_else(|| "no receive ring yet".to_owned()),
        }
    }

    /// The ring.
    #[inline]
    pub(super) fn slots(&mut self) -> Option<&mut Slots> {
        self.slots.as_mut()
    }

    /// Opens the ring if it is wanted, does not exist, and its time has come. Returns whether the
    /// description is another one.
    pub(super) fn open(&mut self, socket: &PacketSocket, interface: &str, header_bytes: usize) -> bool {
        let now = Instant::now();
        if self.wanted.is_err() || self.slots.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        match socket.open_slots(header_bytes) {
            Ok(slots) => {
                (self.slots, self.problem, self.retry_at, self.empty) = (Some(slots), None, None, None);
                true
            }
            Err(e) => self.fail(format!("can't be opened: {e}"), interface),
        }
    }

    /// Notes why the ring does not exist now. Returns whether that is news.
    fn fail(&mut self, why: String, interface: &str) -> bool {
        if !self.insists {
            tracing::warn!(
                "interface {interface}: the receive ring {why}; frames come by the packet socket from now on (receive=auto; with \
                 receive=ring it would be tried again)"
            );
            self.wanted = Err(format!("no receive ring: it {why}; not tried again (receive=auto)"));
            return true;
        }
        self.retry_at = Some(Instant::now() + RETRY);
        let problem = Some(format!("no receive ring: it {why}; tried again"));
        if self.problem == problem {
            return false;
        }
        tracing::error!(
            "interface {interface}: the receive ring {why}; frames come by the packet socket until there is one (receive=ring)"
        );
        self.problem = problem;
        true
    }

    /// Closes the ring, if there is one. Returns how many frames were lost in it.
    pub(super) fn close(&mut self, socket: &PacketSocket, interface: &str) -> u64 {
        let Some(slots) = self.slots.take() else { return 0 };
        let lost = (0..SLOTS).take_while(|ahead| slots.arrived(*ahead).is_some()).count();
        if let Err(e) = socket.close_slots(slots) {
            // The kernel goes on to fill it. Nothing comes then, which must not be silent.
            tracing::error!(
                "interface {interface}: the receive ring can't be closed: {e}; the guest receives nothing"
            );
        }
        lost as u64
    }

    /// Whether nothing has come by the ring for `time`.
    pub(super) fn is_idle_for(&self, time: Duration) -> bool {
        let (Some(slots), Some((at, since))) = (&self.slots, self.empty) else { return false };
        slots.given_back() == at && since.elapsed() >= time
    }

    /// Looks whether the ring stands still: `dropped` frames were counted by the kernel since this
    /// was called last. Returns whether it was closed, so that the description is another one.
    pub(super) fn check(&mut self, socket: &PacketSocket, interface: &str, dropped: u32) -> bool {
        let Some(slots) = &self.slots else { return false };
        let (now, given_back) = (Instant::now(), slots.given_back());
        let before = self.empty.filter(|(at, _)| *at == given_back);
        self.empty = slots.arrived(0).is_none().then(|| before.unwrap_or((given_back, now)));
        let still = match (before, self.empty) {
            (Some(_), Some(_)) if dropped > 0 => true,
            // A queue that has a frame without a slot would be called readable for ever; one whose
            // slot is being written has it too.
            (Some((_, since)), Some(_)) => now - since >= STRAY && socket.has_queued(),
            _ => false,
        };
        if still {
            self.close(socket, interface);
            self.fail(
                "stood still, as one of the kernel's does after a frame without virtio-net header".to_owned(),
                interface,
            );
        }
        still
    }
}

#[cfg(test)]
mod tests;
