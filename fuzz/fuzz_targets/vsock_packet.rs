//! Headers of any bytes, one behind the other, against the checks, the state machine and the credit
//! of a connection.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use zerowire_vsock::credit::FromGuest;
use zerowire_vsock::packet::{HEADER_LEN, Header, Op, SHUT_BOTH, SHUT_SEND};
use zerowire_vsock::protocol::{ControlPacket, Over, Phase, Protocol, Shut, Verdict};

const BUFFER: u32 = 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let offered = first & 1 != 0;
    let (from, now) = (FromGuest::new(BUFFER), Instant::now());
    let asked = || Protocol::asked(from, 0, 0).expect("a new connection's counts");
    let mut protocol = if offered { Protocol::offered(from, now) } else { asked() };
    let (mut waits, mut sent) = (0u32, 0u32);
    let mut told = 0;
    let mut resets = 0;
    // Each record: what this side does, then a header.
    for record in rest.chunks_exact(HEADER_LEN + 2) {
        let (own, head) = record.split_at(2);
        let head: &[u8; HEADER_LEN] = head.try_into().expect("44 bytes");
        match own[0] % 8 {
            0 => protocol.accepted(),
            1 => protocol.far_ends(Shut::of(u32::from(own[1]))),
            2 => protocol.owe_update(),
            3 => protocol.ask(),
            4 => {
                let n = u32::from(own[1]).min(waits);
                protocol.from.forward(n);
                waits -= n;
            }
            5 if protocol.takes_payload() => {
                let n = (u32::from(own[1]) * 64).min(protocol.to.free());
                protocol.to.send(n, 1, true);
                sent = sent.wrapping_add(n);
                assert!(
                    protocol.to.free() + n <= protocol.to.alloc,
                    "more is sent than the guest has room for"
                );
            }
            6 if own[1] & 7 == 0 => _ = protocol.reset(now),
            _ => {}
        }
        let delivered = own[1] & 1 != 0;
        let due = protocol.has_control(delivered);
        let control = protocol.next_control(delivered);
        assert_eq!(due, control.is_some());
        match control {
            Some(ControlPacket::Rst) => {
                assert!(delivered && matches!(protocol.phase(), Phase::Resetting { .. }));
                resets += 1;
            }
            Some(ControlPacket::Shutdown(shut)) => {
                let flags = shut.flags();
                assert!(flags & !SHUT_BOTH == 0 && flags != 0);
                // What was said before is said again.
                assert!(flags & SHUT_SEND & !told == 0 || delivered, "the end is said before the last byte");
                told |= flags;
            }
            Some(ControlPacket::Request) => assert!(offered),
            Some(ControlPacket::Response) => assert!(!offered),
            _ => {}
        }
        if resets > 0 {
            return;
        }
        let h = Header::from_bytes(head);
        assert_eq!(h.to_bytes(), *head);
        let Ok((op, _)) = h.check(h.src_cid, 65_536) else { continue };
        assert!(op == Op::Rw || h.len == 0);
        let before = sent.wrapping_sub(protocol.to.forwarded);
        let ended = protocol.guest();
        let (_, verdict) = protocol.take_packet(op, &h, true);
        let in_flight = sent.wrapping_sub(protocol.to.forwarded);
        assert!(in_flight <= before, "the guest takes back what it took");
        match verdict {
            Verdict::Payload => {
                let open = matches!(protocol.phase(), Phase::Open { .. });
                assert!(op == Op::Rw && !ended.sends_no_more() && open);
                if protocol.from.receive(h.len) {
                    waits += h.len;
                }
                assert!(waits <= BUFFER, "{waits} bytes wait for a credit of {BUFFER}");
            }
            Verdict::Accepted => assert!(offered && op == Op::Response),
            Verdict::Shut(_) => assert_eq!(protocol.guest(), ended | Shut::of(h.flags)),
            Verdict::OutOfPlace | Verdict::Broken(_) => _ = protocol.reset(now),
            Verdict::Over(Over::Refused | Over::Reset) => return,
            Verdict::Over(Over::Renewed) => assert_eq!(op, Op::Request),
            Verdict::AsksCredit | Verdict::TellsCredit | Verdict::Stray => {}
        }
    }
});
