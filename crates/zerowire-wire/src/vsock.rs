//! The header of a packet (virtio 1.3 §5.10.6).

/// Bytes of the header.
pub const HEADER_LEN: usize = 44;

/// The longest payload of a packet that this device makes, bytes: what the drivers of Linux expect
/// at most (`VIRTIO_VSOCK_MAX_PKT_BUF_SIZE`, include/linux/virtio_vsock.h).
pub const MAX_PAYLOAD: usize = 64 << 10;

/// The host's CID (virtio 1.3 §5.10.4).
pub const HOST_CID: u64 = 2;

/// What a packet wants (virtio 1.3 §5.10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Op {
    /// To connect.
    Request = 1,
    /// The connection is accepted.
    Response = 2,
    /// The connection is refused or over.
    Rst = 3,
    /// The sender will not send, or not receive, any more.
    Shutdown = 4,
    /// Payload.
    Rw = 5,
    /// The sender's credit fields.
    CreditUpdate = 6,
    /// Asks for a CREDIT_UPDATE.
    CreditRequest = 7,
}

impl Op {
    /// The operation of this number.
    #[inline]
    pub fn new(n: u16) -> Option<Self> {
        Some(match n {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Rst,
            4 => Self::Shutdown,
            5 => Self::Rw,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// Type of a socket (virtio 1.3 §5.10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A stream of bytes.
    Stream = 1,
    /// Messages with bounds.
    SeqPacket = 2,
}

impl Kind {
    /// The type of this number.
    #[inline]
    pub fn new(n: u16) -> Option<Self> {
        match n {
            1 => Some(Self::Stream),
            2 => Some(Self::SeqPacket),
            _ => None,
        }
    }
}

/// `VIRTIO_VSOCK_SHUTDOWN_F_RECEIVE`: the sender will not receive.
pub const SHUT_RECEIVE: u32 = 1;
/// `VIRTIO_VSOCK_SHUTDOWN_F_SEND`: the sender will not send.
pub const SHUT_SEND: u32 = 2;
/// Both.
pub const SHUT_BOTH: u32 = 3;

/// `VIRTIO_VSOCK_SEQ_EOM`: the last packet of a message.
pub const SEQ_EOM: u32 = 1;
/// `VIRTIO_VSOCK_SEQ_EOR`: the last packet of a record.
pub const SEQ_EOR: u32 = 2;

/// The header's fields, in host byte order; a guest may have put anything there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sender.
    pub src_cid: u64,
    /// Receiver.
    pub dst_cid: u64,
    /// Port of the sender.
    pub src_port: u32,
    /// Port of the receiver.
    pub dst_port: u32,
    /// Bytes of payload.
    pub len: u32,
    /// [`Kind`].
    pub kind: u16,
    /// [`Op`].
    pub op: u16,
    /// Of SHUTDOWN, and of RW on messages.
    pub flags: u32,
    /// The sender's buffer, bytes.
    pub buf_alloc: u32,
    /// Payload bytes that have left the sender's buffer, free-running.
    pub fwd_cnt: u32,
}

impl Header {
    /// As it lies in memory.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        b[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        b[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        b[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        b[24..28].copy_from_slice(&self.len.to_le_bytes());
        b[28..30].copy_from_slice(&self.kind.to_le_bytes());
        b[30..32].copy_from_slice(&self.op.to_le_bytes());
        b[32..36].copy_from_slice(&self.flags.to_le_bytes());
        b[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        b[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        b
    }

    /// From memory.
    #[inline]
    pub fn from_bytes(b: &[u8; HEADER_LEN]) -> Self {
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        Self {
            src_cid: u64_at(0),
            dst_cid: u64_at(8),
            src_port: u32_at(16),
            dst_port: u32_at(20),
            len: u32_at(24),
            kind: u16_at(28),
            op: u16_at(30),
            flags: u32_at(32),
            buf_alloc: u32_at(36),
            fwd_cnt: u32_at(40),
        }
    }

    /// The operation, if it is a known one.
    #[inline]
    pub fn op(&self) -> Option<Op> {
        Op::new(self.op)
    }

    /// The header of an answer: addresses exchanged, of the same type, without payload, flags and
    /// credit.
    pub fn answer(&self, op: Op) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: op as u16,
            ..Self::default()
        }
    }

    /// Checks what can be checked without knowing the connection: `cid` sent it, in a chain with
    /// `room` bytes behind the header.
    ///
    /// # Errors
    /// The first [`Fault`] that it has.
    #[inline]
    pub fn check(&self, cid: u64, room: usize) -> Result<(Op, Kind), Fault> {
        if self.src_cid != cid {
            return Err(Fault::Forged);
        }
        let Some(kind) = Kind::new(self.kind) else { return Err(Fault::Wrong) };
        let Some(op) = self.op() else { return Err(Fault::Wrong) };
        let flags = match op {
            Op::Shutdown => SHUT_BOTH,
            Op::Rw if kind == Kind::SeqPacket => SEQ_EOM | SEQ_EOR,
            _ => 0,
        };
        let len_is_right = if op == Op::Rw { self.len as usize <= room } else { self.len == 0 };
        if !len_is_right || self.flags & !flags != 0 {
            return Err(Fault::Wrong);
        }
        Ok((op, kind))
    }
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It names another sender than the one whose queue it came from: nobody to answer.
    Forged,
    /// It breaks a rule: its connection, or what it takes for one, is reset.
    Wrong,
}

#[cfg(test)]
mod tests;
