//! Headers of any bytes, one behind the other, against the checks, the state machine and the credit of a connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zerowire_virtio::vsock::credit::{FromGuest, ToGuest};
use zerowire_virtio::vsock::lifecycle::{Control, Effect, Lifecycle, Phase};
use zerowire_virtio::vsock::packet::{HEADER_LEN, Header, Op, SHUT_BOTH, SHUT_SEND};

const BUFFER: u32 = 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let offered = first & 1 != 0;
    let mut life = if offered { Lifecycle::offered() } else { Lifecycle::asked() };
    let (mut incoming, mut outgoing) = (FromGuest::new(BUFFER), ToGuest::default());
    let (mut waits, mut sent) = (0u32, 0u32);
    let mut told = 0;
    let mut resets = 0;
    // Each record: what this side does, then a header.
    for record in rest.chunks_exact(HEADER_LEN + 2) {
        let (own, head) = record.split_at(2);
        let head: &[u8; HEADER_LEN] = head.try_into().expect("44 bytes");
        match own[0] % 8 {
            0 => life.accepted(),
            1 => life.far_ends(u32::from(own[1])),
            2 => life.owe_update(),
            3 => life.owe_credit_request(),
            4 => {
                let n = u32::from(own[1]).min(waits);
                incoming.forward(n);
                waits -= n;
            }
            5 if life.takes_payload() => {
                let n = (u32::from(own[1]) * 64).min(outgoing.free());
                outgoing.send(n, 1, true);
                sent = sent.wrapping_add(n);
                assert!(outgoing.free() + n <= outgoing.alloc(), "more is sent than the guest has room for");
            }
            6 if own[1] & 7 == 0 => life.reset(),
            _ => {}
        }
        let delivered = own[1] & 1 != 0;
        let due = life.has_control(delivered);
        let control = life.next_control(delivered);
        assert_eq!(due, control.is_some());
        match control {
            Some(Control::Rst) => {
                assert!(delivered && life.phase() == Phase::Resetting);
                resets += 1;
            }
            Some(Control::Shutdown(flags)) => {
                assert!(flags & !SHUT_BOTH == 0 && flags != 0);
                // What was said before is said again.
                assert!(flags & SHUT_SEND & !told == 0 || delivered, "the end is said before the last byte");
                told |= flags;
            }
            Some(Control::Request) => assert!(offered),
            Some(Control::Response) => assert!(!offered),
            _ => {}
        }
        if resets > 0 {
            return;
        }
        let h = Header::from_bytes(head);
        assert_eq!(h.to_bytes(), *head);
        let Ok((op, _)) = h.check(h.src_cid, 65_536) else { continue };
        assert!(op == Op::Rw || h.len == 0);
        let before = sent.wrapping_sub(outgoing.forwarded());
        let _ = outgoing.update(h.buf_alloc, h.fwd_cnt);
        let in_flight = sent.wrapping_sub(outgoing.forwarded());
        assert!(in_flight <= before, "the guest takes back what it took");
        let ended = life.guest_ended();
        match life.take(op, h.flags) {
            Effect::Payload => {
                assert!(op == Op::Rw && ended & SHUT_SEND == 0 && life.phase() == Phase::Open);
                if incoming.receive(h.len) {
                    waits += h.len;
                }
                assert!(waits <= BUFFER, "{waits} bytes wait for a credit of {BUFFER}");
            }
            Effect::Accepted => assert!(offered && op == Op::Response),
            Effect::Shutdown => assert_eq!(life.guest_ended(), ended | h.flags),
            Effect::Violation => life.reset(),
            Effect::Refused | Effect::Ended => return,
            Effect::Renewed => assert_eq!(op, Op::Request),
            Effect::None | Effect::Stray => {}
        }
    }
});
