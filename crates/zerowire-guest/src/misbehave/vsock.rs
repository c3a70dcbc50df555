//! Packet headers that break one rule each.

use crate::vsock::{Op, PacketHeader, SHUTDOWN_BOTH, SocketType};

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
}

/// Bytes of payload where a packet has some.
const PAYLOAD: usize = 100;

/// Every way to spoil a packet of payload. `sound` is the header of an RW
/// packet of an open connection, with its true credit fields; its length and
/// flags don't matter.
pub fn bad_packets(sound: &PacketHeader) -> impl Iterator<Item = BadPacket> + use<> {
    let stream = sound.socket_type == SocketType::Stream as u16;
    let rw = PacketHeader { op: Op::Rw as u16, len: PAYLOAD as u32, flags: 0, ..*sound };
    let plain = |op: Op| PacketHeader { op: op as u16, len: 0, ..rw };
    let other = if stream { SocketType::Seqpacket } else { SocketType::Stream };
    let away = |header: PacketHeader| PacketHeader { src_port: !sound.src_port, ..header };
    let on: [(&'static str, PacketHeader, usize); 26] = [
        ("len one beyond the chain", PacketHeader { len: rw.len + 1, ..rw }, PAYLOAD),
        ("len far beyond the chain", PacketHeader { len: u32::MAX, ..rw }, PAYLOAD),
        ("len beyond a chain without payload", rw, 0),
        ("len less than the chain", PacketHeader { len: rw.len - 1, ..rw }, PAYLOAD),
        ("len 0 with payload in the chain", PacketHeader { len: 0, ..rw }, PAYLOAD),
        ("RW without payload", PacketHeader { len: 0, ..rw }, 0),
        ("operation 0", PacketHeader { op: 0, ..rw }, PAYLOAD),
        ("operation 8", PacketHeader { op: 8, ..rw }, PAYLOAD),
        ("operation 65535", PacketHeader { op: u16::MAX, ..rw }, PAYLOAD),
        ("type 0", PacketHeader { socket_type: 0, ..rw }, PAYLOAD),
        ("type 3", PacketHeader { socket_type: 3, ..rw }, PAYLOAD),
        ("type 65535", PacketHeader { socket_type: u16::MAX, ..rw }, PAYLOAD),
        ("the other type", PacketHeader { socket_type: other as u16, ..rw }, PAYLOAD),
        ("unknown flags of RW", PacketHeader { flags: 0xffff_fffc, ..rw }, PAYLOAD),
        ("SHUTDOWN without flags", plain(Op::Shutdown), 0),
        ("SHUTDOWN with unknown flags", PacketHeader { flags: !SHUTDOWN_BOTH, ..plain(Op::Shutdown) }, 0),
        ("payload of CREDIT_UPDATE", PacketHeader { op: Op::CreditUpdate as u16, ..rw }, PAYLOAD),
        ("payload of CREDIT_REQUEST", PacketHeader { op: Op::CreditRequest as u16, ..rw }, PAYLOAD),
        ("a second REQUEST", plain(Op::Request), 0),
        ("a RESPONSE out of place", plain(Op::Response), 0),
        ("fwd_cnt one beyond what came", PacketHeader { fwd_cnt: rw.fwd_cnt.wrapping_add(1), ..rw }, PAYLOAD),
        ("fwd_cnt half around", PacketHeader { fwd_cnt: rw.fwd_cnt.wrapping_add(1 << 31), ..rw }, PAYLOAD),
        ("fwd_cnt backwards", PacketHeader { fwd_cnt: rw.fwd_cnt.wrapping_sub(1), ..rw }, PAYLOAD),
        ("buf_alloc 0", PacketHeader { buf_alloc: 0, ..plain(Op::CreditUpdate) }, 0),
        ("buf_alloc of all 32 bits", PacketHeader { buf_alloc: u32::MAX, ..plain(Op::CreditUpdate) }, 0),
        ("fwd_cnt with RST", PacketHeader { fwd_cnt: u32::MAX, ..plain(Op::Rst) }, 0),
    ];
    let off: [(&'static str, PacketHeader, usize); 16] = [
        ("src_cid of the host", PacketHeader { src_cid: 2, ..rw }, PAYLOAD),
        ("src_cid of another guest", PacketHeader { src_cid: rw.src_cid + 1, ..rw }, PAYLOAD),
        ("src_cid 0", PacketHeader { src_cid: 0, ..rw }, PAYLOAD),
        ("src_cid of more than 32 bits", PacketHeader { src_cid: rw.src_cid | 1 << 32, ..rw }, PAYLOAD),
        ("dst_cid 0", PacketHeader { dst_cid: 0, ..rw }, PAYLOAD),
        ("dst_cid 1", PacketHeader { dst_cid: 1, ..rw }, PAYLOAD),
        ("dst_cid of the sender", PacketHeader { dst_cid: rw.src_cid, ..rw }, PAYLOAD),
        ("dst_cid of nobody", PacketHeader { dst_cid: 0xffff_fff0, ..rw }, PAYLOAD),
        ("dst_cid ANY", PacketHeader { dst_cid: 0xffff_ffff, ..rw }, PAYLOAD),
        ("dst_cid of more than 32 bits", PacketHeader { dst_cid: rw.dst_cid | 1 << 32, ..rw }, PAYLOAD),
        ("RW on no connection", away(rw), PAYLOAD),
        ("SHUTDOWN on no connection", PacketHeader { flags: SHUTDOWN_BOTH, ..away(plain(Op::Shutdown)) }, 0),
        ("CREDIT_UPDATE on no connection", away(plain(Op::CreditUpdate)), 0),
        ("CREDIT_REQUEST on no connection", away(plain(Op::CreditRequest)), 0),
        ("RESPONSE on no connection", away(plain(Op::Response)), 0),
        ("RST on no connection", away(plain(Op::Rst)), 0),
    ];
    let made = |on_connection| {
        move |(name, header, payload_len)| BadPacket { name, header, payload_len, on_connection }
    };
    on.into_iter().map(made(true)).chain(off.into_iter().map(made(false)))
}
