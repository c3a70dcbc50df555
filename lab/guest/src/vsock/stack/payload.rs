//! Where payload goes: it is kept in place, copied to the inbox, or drained. And how it leaves the
//! buffers again.

use super::conn::fault;
use super::core::Core;
use super::{ConnId, Drain};
use crate::vsock::lease::Returned;
use crate::vsock::rx::Kept;
use crate::vsock::{RW_EOM, RW_EOR, RxPacket, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType, VsockRx};

/// Most lists of packets that are kept to be filled again without an allocation.
const SPARE_LISTS: usize = 16;

impl Core {
    /// Takes what leases gave back: `rx` gets its buffers, and senders their credit.
    pub(super) fn take_returns(&mut self, rx: &mut VsockRx) {
        while let Ok(Returned { read, mut list }) = self.returned.try_recv() {
            rx.take_back(list.drain(..).filter_map(|piece| piece.buffer()));
            if self.spare.len() < SPARE_LISTS && list.capacity() > 0 {
                self.spare.push(list);
            }
            if let Some((id, bytes)) = read
                && let Some(conn) = self.get_mut(id)
            {
                conn.count_read(bytes);
                self.after_read(id);
            }
        }
    }

    pub(super) fn payload(&mut self, id: ConnId, packet: &RxPacket<'_>) -> Result<Kept, String> {
        let header = &packet.header;
        let mut in_place = self.in_place;
        let Some(conn) = self.get_mut(id) else { return Ok(Kept::No) };
        if conn.shutdown.peer & SHUTDOWN_SEND != 0 {
            let rule = "payload after the peer said that it sends no more (5.10.6.5)";
            return Err(fault(rule, header));
        }
        conn.count_received(header)?;
        if conn.given_up || conn.shutdown.own & SHUTDOWN_RCV != 0 {
            // It crossed the SHUTDOWN.
            conn.rx.taken = conn.rx.received;
            return Ok(Kept::No);
        }
        if let Some(arrived) = &mut conn.in_place {
            let kept = arrived.push(packet, &mut in_place);
            self.in_place = in_place;
            return Ok(kept);
        }
        let kind = conn.kind;
        let message = kind == SocketType::SeqPacket && header.flags & RW_EOM != 0;
        if conn.bulk.drain == Drain::Off {
            packet.append_to(&mut conn.inbox.bytes);
            if kind == SocketType::SeqPacket {
                conn.inbox.partial += packet.len();
            }
            if message {
                let len = std::mem::take(&mut conn.inbox.partial);
                conn.inbox.messages.push_back((len, header.flags & RW_EOR != 0));
            }
            if !conn.readable() {
                // A part of a message may have used up the credit, and no read comes to tell of
                // more before its rest is here.
                self.after_read(id);
            }
            return Ok(Kept::No);
        }
        if conn.bulk.drain == Drain::Sum {
            let mut chunk = [0; 1024];
            for at in (0..packet.len()).step_by(chunk.len()) {
                let now = chunk.len().min(packet.len() - at);
                packet.read(at, &mut chunk[..now]);
                conn.bulk.sum.update(&chunk[..now]);
            }
        }
        conn.bulk.drained.bytes += u64::from(header.len);
        conn.bulk.drained.messages += u64::from(message);
        conn.rx.taken = conn.rx.taken.wrapping_add(header.len);
        self.after_read(id);
        Ok(Kept::No)
    }
}
