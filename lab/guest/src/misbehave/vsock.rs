//! Packet headers that break one rule each.

use crate::vsock::{Op, PacketHeader, SHUTDOWN_BOTH, SocketType};

/// What a packet is answered by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// One RST.
    Reset,
    /// One RESPONSE: a connection begins anew.
    Response,
}

/// What a packet is to a device that counts what it does not take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It is odd and breaks no rule: it is taken.
    None,
    /// Its header breaks a rule by itself.
    Malformed,
    /// The connection doesn't exist, or is not in the state for it.
    OutOfPlace,
    /// More bytes have left the guest's buffer than were ever sent.
    Credit,
    /// Fewer bytes have left it than an earlier packet said. It is taken, but for its credit
    /// fields, since threads of a driver may overtake each other.
    StaleCredit,
    /// It asks for a connection that nobody takes.
    Refused,
}

/// A packet that no driver should send.
#[derive(Clone, Copy, Debug)]
pub struct BadPacket {
    /// What is wrong with it.
    pub name: &'static str,
    /// Its header, to be sent as it is.
    pub header: PacketHeader,
    /// Bytes of payload to send with it, whatever the header says.
    pub payload_len: usize,
    /// Whether its addresses are those of the sound connection, which the
    /// device may reset for it (virtio 1.3 §5.10.6.4).
    pub on_connection: bool,
    /// How it is answered.
    pub answer: Answer,
    /// What is wrong with it, in the words of a device's statistics.
    pub fault: Fault,
}

impl BadPacket {
    /// Whether the sound connection is over with it.
    pub fn ends_connection(&self) -> bool {
        self.on_connection && (self.answer != Answer::Nothing || self.header.op() == Some(Op::Rst))
    }

    /// Bytes of its payload that reach the other side.
    pub fn delivered(&self) -> usize {
        let sound = matches!(self.fault, Fault::None | Fault::StaleCredit);
        let taken = self.on_connection && self.answer == Answer::Nothing && sound;
        if taken { self.header.len as usize } else { 0 }
    }
}

/// Bytes of payload where a packet has some.
const PAYLOAD: usize = 100;

/// What is wrong, the header, and bytes of payload.
type Row = (&'static str, PacketHeader, usize);

/// Every way to spoil a packet. `sound` is the header of an RW packet of an open connection to a
/// host program. Its credit fields are true; its length and flags don't matter. Nobody may listen
/// on the ports whose bits are those of `sound`'s reversed.
pub fn bad_packets(sound: &PacketHeader) -> impl Iterator<Item = BadPacket> + use<> {
    let rw = PacketHeader { op: Op::Rw as u16, len: PAYLOAD as u32, flags: 0, ..*sound };
    let on = wrong(rw).chain(wrong_resets(rw)).chain(odd_on_connection(rw));
    on.chain(forged(rw)).chain(wrong_and_away(rw)).chain(nowhere(rw)).chain(refused(rw)).chain(odd_away(rw))
}

/// A packet without payload.
fn plain(rw: PacketHeader, op: Op) -> PacketHeader {
    PacketHeader { op: op as u16, len: 0, ..rw }
}

/// The same packet from a port without a connection.
fn away(header: PacketHeader) -> PacketHeader {
    PacketHeader { src_port: !header.src_port, ..header }
}

/// A sound REQUEST. Its own credit counts begin anew.
fn asks(rw: PacketHeader) -> PacketHeader {
    PacketHeader { fwd_cnt: 0, ..away(plain(rw, Op::Request)) }
}

/// The type that the connection has not.
fn other_type(rw: PacketHeader) -> u16 {
    let stream = rw.kind == SocketType::Stream as u16;
    if stream { SocketType::SeqPacket as u16 } else { SocketType::Stream as u16 }
}

/// Packets with one answer and one fault.
fn all<const N: usize>(
    rows: [Row; N],
    on_connection: bool,
    answer: Answer,
    fault: Fault,
) -> impl Iterator<Item = BadPacket> {
    rows.into_iter().map(move |(name, header, payload_len)| BadPacket {
        name,
        header,
        payload_len,
        on_connection,
        answer,
        fault,
    })
}

/// Packets of the connection that are wrong by themselves.
fn wrong(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    // Of a stream any flag is one too many.
    let flag = if other_type(rw) == SocketType::SeqPacket as u16 { 1 } else { 4 };
    let shutdown = plain(rw, Op::Shutdown);
    let rows = [
        ("len one beyond the chain", PacketHeader { len: rw.len + 1, ..rw }, PAYLOAD),
        ("len far beyond the chain", PacketHeader { len: u32::MAX, ..rw }, PAYLOAD),
        ("len beyond a chain without payload", rw, 0),
        ("operation 0", PacketHeader { op: 0, ..rw }, PAYLOAD),
        ("operation 8", PacketHeader { op: 8, ..rw }, PAYLOAD),
        ("operation 65535", PacketHeader { op: u16::MAX, ..rw }, PAYLOAD),
        ("type 0", PacketHeader { kind: 0, ..rw }, PAYLOAD),
        ("type 3", PacketHeader { kind: 3, ..rw }, PAYLOAD),
        ("type 65535", PacketHeader { kind: u16::MAX, ..rw }, PAYLOAD),
        ("the other type", PacketHeader { kind: other_type(rw), ..rw }, PAYLOAD),
        ("a flag of RW that its type has not", PacketHeader { flags: flag, ..rw }, PAYLOAD),
        ("unknown flags of RW", PacketHeader { flags: 0xffff_fffc, ..rw }, PAYLOAD),
        ("SHUTDOWN with unknown flags", PacketHeader { flags: !SHUTDOWN_BOTH, ..shutdown }, 0),
        ("payload of CREDIT_UPDATE", PacketHeader { op: Op::CreditUpdate as u16, ..rw }, PAYLOAD),
        ("payload of CREDIT_REQUEST", PacketHeader { op: Op::CreditRequest as u16, ..rw }, PAYLOAD),
    ];
    all(rows, true, Answer::Reset, Fault::Malformed)
}

/// Resets that are wrong by themselves, which nobody answers.
fn wrong_resets(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let reset = plain(rw, Op::Rst);
    let rows = [
        ("payload of RST", PacketHeader { op: Op::Rst as u16, ..rw }, PAYLOAD),
        ("len of RST beyond the chain", PacketHeader { len: 1, ..reset }, 0),
        ("flags of RST", PacketHeader { flags: 1, ..reset }, 0),
        ("RST of type 0", PacketHeader { kind: 0, ..reset }, 0),
        ("RST of the other type", PacketHeader { kind: other_type(rw), ..reset }, 0),
    ];
    all(rows, true, Answer::Nothing, Fault::Malformed)
}

/// Packets with another sender.
fn forged(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let asks = asks(rw);
    let rows = [
        ("src_cid of the host", PacketHeader { src_cid: 2, ..rw }, PAYLOAD),
        ("src_cid of another guest", PacketHeader { src_cid: rw.src_cid + 1, ..rw }, PAYLOAD),
        ("src_cid 0", PacketHeader { src_cid: 0, ..rw }, PAYLOAD),
        ("src_cid of more than 32 bits", PacketHeader { src_cid: rw.src_cid | 1 << 32, ..rw }, PAYLOAD),
        ("REQUEST from another guest", PacketHeader { src_cid: rw.src_cid + 1, ..asks }, 0),
    ];
    all(rows, false, Answer::Nothing, Fault::Malformed)
}

/// Packets of no connection that are wrong by themselves.
fn wrong_and_away(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let asks = asks(rw);
    let rows = [
        ("len beyond the chain on no connection", away(rw), 0),
        ("operation 0 on no connection", PacketHeader { op: 0, ..away(rw) }, PAYLOAD),
        ("type 0 on no connection", PacketHeader { kind: 0, ..away(rw) }, PAYLOAD),
        ("payload of REQUEST", PacketHeader { len: rw.len, ..asks }, PAYLOAD),
        ("flags of REQUEST", PacketHeader { flags: 1, ..asks }, 0),
        ("REQUEST of type 0", PacketHeader { kind: 0, ..asks }, 0),
    ];
    all(rows, false, Answer::Reset, Fault::Malformed)
}

/// Packets to a connection that is not there.
fn nowhere(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let shutdown = plain(rw, Op::Shutdown);
    let swapped = PacketHeader { src_port: rw.dst_port, dst_port: rw.src_port, ..rw };
    let rows = [
        ("dst_cid 0", PacketHeader { dst_cid: 0, ..rw }, PAYLOAD),
        ("dst_cid 1", PacketHeader { dst_cid: 1, ..rw }, PAYLOAD),
        ("dst_cid of the sender", PacketHeader { dst_cid: rw.src_cid, ..rw }, PAYLOAD),
        ("dst_cid of another guest", PacketHeader { dst_cid: rw.src_cid + 1, ..rw }, PAYLOAD),
        ("dst_cid of nobody", PacketHeader { dst_cid: 0xffff_fff0, ..rw }, PAYLOAD),
        ("dst_cid ANY", PacketHeader { dst_cid: 0xffff_ffff, ..rw }, PAYLOAD),
        ("dst_cid of more than 32 bits", PacketHeader { dst_cid: rw.dst_cid | 1 << 32, ..rw }, PAYLOAD),
        ("dst_port on which nobody listens", PacketHeader { dst_port: !rw.dst_port, ..rw }, PAYLOAD),
        ("the ports of the other direction", swapped, PAYLOAD),
        ("RW on no connection", away(rw), PAYLOAD),
        ("SHUTDOWN on no connection", PacketHeader { flags: SHUTDOWN_BOTH, ..away(shutdown) }, 0),
        ("CREDIT_UPDATE on no connection", away(plain(rw, Op::CreditUpdate)), 0),
        ("CREDIT_REQUEST on no connection", away(plain(rw, Op::CreditRequest)), 0),
        ("RESPONSE on no connection", away(plain(rw, Op::Response)), 0),
    ];
    all(rows, false, Answer::Reset, Fault::OutOfPlace)
}

/// Requests that nobody takes.
fn refused(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let asks = asks(rw);
    let rows = [
        ("REQUEST to a port of nobody", PacketHeader { dst_port: !asks.dst_port, ..asks }, 0),
        ("REQUEST to a CID of nobody", PacketHeader { dst_cid: 0xffff_fff0, ..asks }, 0),
        ("REQUEST to the sender's CID", PacketHeader { dst_cid: asks.src_cid, ..asks }, 0),
        ("REQUEST with fwd_cnt", PacketHeader { fwd_cnt: 1, ..asks }, 0),
        ("REQUEST with fwd_cnt backwards", PacketHeader { fwd_cnt: u32::MAX, ..asks }, 0),
    ];
    all(rows, false, Answer::Reset, Fault::Refused)
}

/// Packets of the connection that are odd, each in its way.
fn odd_on_connection(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    use {Answer as A, Fault as F};
    let (reset, shutdown) = (plain(rw, Op::Rst), plain(rw, Op::Shutdown));
    let rows = [
        ("len less than the chain", PacketHeader { len: rw.len - 1, ..rw }, PAYLOAD, A::Nothing, F::None),
        ("len 0 with payload in the chain", PacketHeader { len: 0, ..rw }, PAYLOAD, A::Nothing, F::Malformed),
        ("RW without payload", PacketHeader { len: 0, ..rw }, 0, A::Nothing, F::Malformed),
        ("SHUTDOWN without flags", shutdown, 0, A::Nothing, F::None),
        ("a second REQUEST", PacketHeader { fwd_cnt: 0, ..plain(rw, Op::Request) }, 0, A::Response, F::None),
        ("a RESPONSE out of place", plain(rw, Op::Response), 0, A::Nothing, F::OutOfPlace),
        ("fwd_cnt one beyond what came", forwarded(&rw, 1), PAYLOAD, A::Reset, F::Credit),
        ("fwd_cnt half around", forwarded(&rw, 1 << 31), PAYLOAD, A::Nothing, F::StaleCredit),
        ("fwd_cnt backwards", forwarded(&rw, u32::MAX), PAYLOAD, A::Nothing, F::StaleCredit),
        ("buf_alloc 0", PacketHeader { buf_alloc: 0, ..plain(rw, Op::CreditUpdate) }, 0, A::Nothing, F::None),
        (
            "buf_alloc of all 32 bits",
            PacketHeader { buf_alloc: u32::MAX, ..plain(rw, Op::CreditUpdate) },
            0,
            A::Nothing,
            F::None,
        ),
        ("fwd_cnt backwards with RST", forwarded(&reset, u32::MAX), 0, A::Nothing, F::None),
        ("fwd_cnt one beyond with RST", forwarded(&reset, 1), 0, A::Nothing, F::None),
    ];
    let each = |(name, header, len, answer, fault)| all([(name, header, len)], true, answer, fault);
    rows.into_iter().flat_map(each)
}

/// Resets of no connection, which nobody answers.
fn odd_away(rw: PacketHeader) -> impl Iterator<Item = BadPacket> {
    let reset = away(plain(rw, Op::Rst));
    let sound = all([("RST on no connection", reset, 0)], false, Answer::Nothing, Fault::None);
    let flags = [("flags of RST on no connection", PacketHeader { flags: 1, ..reset }, 0)];
    sound.chain(all(flags, false, Answer::Nothing, Fault::Malformed))
}

/// The packet, with `more` added to the bytes that have left the guest's buffer.
fn forwarded(header: &PacketHeader, more: u32) -> PacketHeader {
    PacketHeader { fwd_cnt: header.fwd_cnt.wrapping_add(more), ..*header }
}
