//! Just enough TCP to ask the metadata service one thing from inside a guest.

use super::{Guest, frames};

const SERVICE: [u8; 4] = [169, 254, 169, 254];
const GUEST: [u8; 4] = [10, 0, 0, 2];
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

struct Segment {
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

/// The body of the answer to GET `path`, asked from source port `port`.
pub fn get(guest: &mut Guest, port: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n");
    send(guest, port, &Segment { seq: 1000, ack: 0, flags: SYN, payload: Vec::new() });
    let first = receive(guest, port);
    assert_eq!(first.flags & (SYN | ACK), SYN | ACK, "the connection is accepted");
    let mut next = first.seq.wrapping_add(1);
    send(guest, port, &Segment { seq: 1001, ack: next, flags: ACK, payload: request.clone().into_bytes() });
    let mine = 1001 + request.len() as u32;
    let mut answer = Vec::new();
    loop {
        let s = receive(guest, port);
        if s.seq == next {
            answer.extend_from_slice(&s.payload);
            next = next.wrapping_add(s.payload.len() as u32);
            if s.flags & FIN != 0 {
                send(
                    guest,
                    port,
                    &Segment { seq: mine, ack: next.wrapping_add(1), flags: FIN | ACK, payload: Vec::new() },
                );
                break;
            }
        }
        send(guest, port, &Segment { seq: mine, ack: next, flags: ACK, payload: Vec::new() });
    }
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer with a head: {text}"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

fn send(guest: &mut Guest, port: u16, s: &Segment) {
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&port.to_be_bytes());
    tcp.extend_from_slice(&80u16.to_be_bytes());
    tcp.extend_from_slice(&s.seq.to_be_bytes());
    tcp.extend_from_slice(&s.ack.to_be_bytes());
    tcp.extend_from_slice(&[0x50, s.flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend_from_slice(&s.payload);
    let pseudo = [&GUEST[..], &SERVICE, &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
    let sum = !frames::sum(&tcp, u32::from(frames::sum(&pseudo, 0)));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut frame = frames::ipv4(GUEST, SERVICE, 6, tcp.len());
    frame.extend_from_slice(&tcp);
    guest.send(&frame);
}

/// The service's next segment for `port`.
fn receive(guest: &mut Guest, port: u16) -> Segment {
    loop {
        let f = guest.expect();
        // ARP requests of the service and other connections are passed over.
        if f.len() < 54 || f[12..14] != [8, 0] || f[26..30] != SERVICE || f[36..38] != port.to_be_bytes() {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([f[16], f[17]]));
        let tcp = &f[34..14 + total];
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four bytes"));
        let header = usize::from(tcp[12] >> 4) * 4;
        return Segment { seq: word(4), ack: word(8), flags: tcp[13], payload: tcp[header..].to_vec() };
    }
}
