//! Generic netlink: families that are found by name (include/uapi/linux/genetlink.h).

use rustix::net::netlink;

use super::attributes::{Attributes, Builder};
use super::error::{Malformed, NetlinkError};
use super::socket::{Extent, Socket};

/// Bytes of `struct genlmsghdr`: command, version, two reserved.
const HEADER: usize = 4;
/// Message type of the family that knows the others (GENL_ID_CTRL).
const CONTROL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A socket on one family.
#[derive(Debug)]
pub(super) struct Family {
    socket: Socket,
    id: u16,
}

impl Family {
    /// Looks the family up. `since`: the kernel that brought it, for the message.
    pub(super) fn open(name: &'static str, since: &'static str) -> Result<Self, NetlinkError> {
        const WHAT: &str = "looking for a netlink family";
        let mut socket = Socket::open(Some(netlink::GENERIC))?;
        let body = body(CTRL_CMD_GETFAMILY, Builder::default().text(CTRL_ATTR_FAMILY_NAME, name));
        let parts = socket.ask(WHAT, CONTROL, Extent::One, &body).map_err(|e| match e.errno() {
            Some(libc::ENOENT) => NetlinkError::NoFamily { family: name, since },
            _ => e,
        })?;
        let id = parts.first().ok_or(Malformed("no answer")).and_then(|p| family_id(p));
        Ok(Self { socket, id: id.map_err(|e| e.of(WHAT))? })
    }

    /// Asks `command`; the parts of the answer without their headers.
    pub(super) fn ask(
        &mut self,
        what: &'static str,
        command: u8,
        extent: Extent,
        attributes: Builder,
    ) -> Result<Vec<Vec<u8>>, NetlinkError> {
        let mut parts = self.socket.ask(what, self.id, extent, &body(command, attributes))?;
        for part in &mut parts {
            if part.len() < HEADER {
                return Err(Malformed("a message without its family's header").of(what));
            }
            part.drain(..HEADER);
        }
        Ok(parts)
    }

    /// The same for one thing, which must be in the answer; `parse` takes its attributes.
    pub(super) fn ask_one<T>(
        &mut self,
        what: &'static str,
        command: u8,
        attributes: Builder,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, NetlinkError> {
        let parts = self.ask(what, command, Extent::One, attributes)?;
        parts.first().ok_or(Malformed("no answer")).and_then(|p| parse(p)).map_err(|e| e.of(what))
    }
}

/// All families of these have version 1.
fn body(command: u8, attributes: Builder) -> Vec<u8> {
    let mut bytes = vec![command, 1, 0, 0];
    bytes.extend_from_slice(&attributes.finish());
    bytes
}

/// The family's number in an answer with its header.
pub(super) fn family_id(part: &[u8]) -> Result<u16, Malformed> {
    let attributes = part.get(HEADER..).ok_or(Malformed("a message without its family's header"))?;
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == CTRL_ATTR_FAMILY_ID {
            let id = u16::try_from(attribute.number()?);
            return id.map_err(|_| Malformed("a family number above 16 bits"));
        }
    }
    Err(Malformed("no family number"))
}
