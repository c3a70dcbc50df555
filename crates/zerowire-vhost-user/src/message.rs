//! A received message and its checked readers.

use std::os::fd::OwnedFd;

use crate::payload::{self, Config, Inflight, LogRegion, MemoryTable, SingleRegion};
use crate::{
    FLAG_NEED_REPLY, FLAG_REPLY, Header, MemoryRegion, Request, StateTransfer, VringAddr, VringState,
    WireError,
};

/// One message: header, payload and the descriptors that came with it. It owns the descriptors
/// until a caller takes them, and closes the rest when it is dropped.
#[derive(Debug)]
pub struct Message {
    header: Header,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// Payload of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR.
#[derive(Debug)]
pub struct VringFd {
    /// Index of the ring (bits 0 to 7).
    pub index: usize,
    /// The descriptor; none when bit 8 says so (the back end must poll the ring).
    pub fd: Option<OwnedFd>,
}

/// Bit 8 of a vring descriptor payload: no descriptor comes along.
pub(crate) const VRING_NO_FD: u64 = 1 << 8;

/// Readers of a payload that is one value.
macro_rules! readers {
    ($($(#[$about:meta])* $name:ident: $value:ty, $decode:path;)*) => {$(
        $(#[$about])*
        ///
        /// # Errors
        /// [`WireError::BadSize`]; [`WireError::BadValue`] where a field is out of its range.
        pub fn $name(&self) -> Result<$value, WireError> {
            $decode(self.header.request, &self.body)
        }
    )*};
}

impl Message {
    /// Puts a message together, as a receiver does; ignores `header.size`.
    pub fn new(header: Header, body: Vec<u8>, fds: Vec<OwnedFd>) -> Message {
        Message { header, body, fds }
    }

    /// The header as it came.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The payload's bytes.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The request.
    ///
    /// # Errors
    /// [`WireError::UnknownRequest`].
    pub fn request(&self) -> Result<Request, WireError> {
        Request::try_from(self.header.request)
    }

    /// Whether the sender awaits an acknowledgement (flag NEED_REPLY). The protocol has it ask only
    /// where REPLY_ACK was negotiated.
    pub fn wants_reply(&self) -> bool {
        self.header.flags & FLAG_NEED_REPLY != 0
    }

    /// Whether this is a reply.
    pub fn is_reply(&self) -> bool {
        self.header.flags & FLAG_REPLY != 0
    }

    /// Checks that the payload is empty. Front ends may send one u64 with requests that need none,
    /// so that one is accepted.
    ///
    /// # Errors
    /// [`WireError::BadSize`].
    pub fn empty(&self) -> Result<(), WireError> {
        match self.body.len() {
            0 | 8 => Ok(()),
            got => Err(WireError::BadSize { request: self.header.request, got, rule: "none" }),
        }
    }

    readers! {
        /// A payload of one u64.
        u64: u64, payload::decode_u64;
        /// A ring and a number.
        vring_state: VringState, VringState::decode;
        /// The addresses of a ring.
        vring_addr: VringAddr, VringAddr::decode;
        /// A part of configuration space.
        config: Config, Config::decode;
        /// The dirty log's place.
        log_region: LogRegion, LogRegion::decode;
        /// The in-flight region's place.
        inflight: Inflight, Inflight::decode;
        /// Payload of SET_DEVICE_STATE_FD.
        state_transfer: StateTransfer, StateTransfer::decode;
    }

    /// The memory table with its descriptors, one a region, in order.
    ///
    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`],
    /// [`WireError::BadFdCount`].
    pub fn memory_table(&mut self) -> Result<Vec<(MemoryRegion, OwnedFd)>, WireError> {
        let table = MemoryTable::decode(self.header.request, &self.body)?;
        if self.fds.len() != table.regions.len() {
            return Err(self.bad_fds("one for each region"));
        }
        Ok(table.regions.into_iter().zip(self.fds.drain(..)).collect())
    }

    /// The one region of ADD_MEM_REG or REM_MEM_REG. A descriptor that came
    /// along stays in the message: ADD_MEM_REG takes it with
    /// [`Message::take_fd`]; with REM_MEM_REG some front ends send one that
    /// has no use.
    ///
    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`].
    pub fn single_region(&self) -> Result<MemoryRegion, WireError> {
        Ok(SingleRegion::decode(self.header.request, &self.body)?.0)
    }

    /// Ring and descriptor of SET_VRING_KICK, _CALL and _ERR: bits 0 to 7 the
    /// ring, bit 8 "no descriptor", the others 0.
    ///
    /// # Errors
    /// [`WireError::BadSize`], [`WireError::BadValue`];
    /// [`WireError::BadFdCount`] when bit 8 and the descriptors disagree.
    pub fn vring_fd(&mut self) -> Result<VringFd, WireError> {
        let value = self.u64()?;
        if value & !(VRING_NO_FD | 0xff) != 0 {
            let field = "the ring index with its no-descriptor bit";
            return payload::bad(self.header.request, field, value, "at most 0x1ff");
        }
        let index = (value & 0xff) as usize;
        let fd = if value & VRING_NO_FD != 0 {
            self.no_fds()?;
            None
        } else {
            Some(self.take_fd()?)
        };
        Ok(VringFd { index, fd })
    }

    /// The descriptors that came along.
    pub(crate) fn descriptors_mut(&mut self) -> &mut [OwnedFd] {
        &mut self.fds
    }

    /// Takes the one descriptor that came along.
    ///
    /// # Errors
    /// [`WireError::BadFdCount`] unless exactly one is left.
    pub fn take_fd(&mut self) -> Result<OwnedFd, WireError> {
        match (self.fds.len(), self.fds.pop()) {
            (1, Some(fd)) => Ok(fd),
            (got, _) => Err(WireError::BadFdCount { request: self.header.request, got, rule: "1" }),
        }
    }

    /// Takes all descriptors that came along.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Number of descriptors not yet taken.
    pub fn fd_count(&self) -> usize {
        self.fds.len()
    }

    /// Checks that no descriptor came along.
    ///
    /// # Errors
    /// [`WireError::BadFdCount`].
    pub fn no_fds(&self) -> Result<(), WireError> {
        if self.fds.is_empty() { Ok(()) } else { Err(self.bad_fds("none")) }
    }

    fn bad_fds(&self, rule: &'static str) -> WireError {
        WireError::BadFdCount { request: self.header.request, got: self.fds.len(), rule }
    }
}
