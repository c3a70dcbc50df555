//! Messages: a header of 16 bytes, then what it announces (`struct nlmsghdr`,
//! include/uapi/linux/netlink.h).

use super::attributes::aligned;
use super::error::Malformed;

/// Bytes of the header.
pub(super) const HEADER: usize = 16;
/// It is a question.
pub(super) const REQUEST: u16 = 1;
/// The kernel shall end its answer with an acknowledgement.
pub(super) const ACK: u16 = 4;
/// All that there are, not one (NLM_F_ROOT | NLM_F_MATCH).
pub(super) const DUMP: u16 = 0x300;
/// The list changed while it was made (NLM_F_DUMP_INTR).
pub(super) const INTERRUPTED: u16 = 0x10;

const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// What a received message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageBody<'a> {
    /// Part of the answer: what is behind the header.
    Data(&'a [u8]),
    /// The end: 0, or an error number.
    End(i32),
    /// Of no meaning.
    Nothing,
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetlinkMessage<'a> {
    /// The sequence number of the question.
    pub(super) sequence: u32,
    /// Flags of the header.
    pub(super) flags: u16,
    /// What it says.
    pub(super) body: MessageBody<'a>,
}

/// The messages of one datagram. One that can't be is an error, and the last item.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetlinkMessages<'a> {
    rest: &'a [u8],
}

impl<'a> NetlinkMessages<'a> {
    pub(super) fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for NetlinkMessages<'a> {
    type Item = Result<NetlinkMessage<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        let (&[l0, l1, l2, l3, t0, t1, f0, f1, s0, s1, s2, s3, ..], _) =
            rest.split_first_chunk::<HEADER>()?;
        // A length that doesn't fit the machine's word is longer than any datagram.
        let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        let Some(payload) = rest.get(HEADER..len) else {
            return Some(Err(Malformed("a message that is longer than its datagram")));
        };
        self.rest = rest.get(aligned(len)..).unwrap_or_default();
        let body = match u16::from_ne_bytes([t0, t1]) {
            NOOP => MessageBody::Nothing,
            // Both begin with a negative error number, or 0; a DONE without one is a good end.
            ERROR | DONE => match payload.first_chunk::<4>() {
                Some(number) => MessageBody::End(i32::from_ne_bytes(*number).wrapping_neg()),
                None if u16::from_ne_bytes([t0, t1]) == DONE => MessageBody::End(0),
                None => return Some(Err(Malformed("an error without a number"))),
            },
            _ => MessageBody::Data(payload),
        };
        let sequence = u32::from_ne_bytes([s0, s1, s2, s3]);
        Some(Ok(NetlinkMessage { sequence, flags: u16::from_ne_bytes([f0, f1]), body }))
    }
}

/// A question. `body`: the header of its protocol, then attributes.
pub(super) fn question(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    // The bodies of this crate have some dozens of bytes.
    let len = (HEADER + body.len()) as u32;
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    // The kernel fills in the port of the sender.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}
