//! Makes virtual interfaces with rtnetlink(7): an ifb device, and a pair of veth devices whose
//! other end lies in another network namespace. No external program is needed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// `VETH_INFO_PEER` (include/uapi/linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
/// Length of `struct nlmsghdr` and of `struct ifinfomsg` (include/uapi/linux/netlink.h,
/// rtnetlink.h).
const HEADER_LEN: usize = 16;

/// Makes the ifb device `name` in the network namespace of the calling thread. It takes frames and
/// drops them.
pub fn add_ifb(name: &str) -> Result<()> {
    let mut message = NewLink::new();
    message.interface(name);
    message.nest(libc::IFLA_LINKINFO, |message| message.attribute(libc::IFLA_INFO_KIND, b"ifb"));
    message.send().with_context(|| format!("can't make the ifb device {name}"))
}

/// Makes a pair of veth devices: `name` in the namespace of the calling thread, `peer` in
/// `namespace`.
pub fn add_veth(name: &str, peer: &str, namespace: BorrowedFd<'_>) -> Result<()> {
    let mut message = NewLink::new();
    message.interface(name);
    message.nest(libc::IFLA_LINKINFO, |message| {
        message.attribute(libc::IFLA_INFO_KIND, b"veth");
        message.nest(libc::IFLA_INFO_DATA, |message| {
            message.nest(VETH_INFO_PEER, |message| {
                // The peer begins with a struct ifinfomsg of its own.
                message.bytes.extend([0; HEADER_LEN]);
                message.interface(peer);
                message.attribute(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
            });
        });
    });
    message.send().with_context(|| format!("can't make the veth pair {name}, {peer}"))
}

/// A request `RTM_NEWLINK` that makes an interface.
struct NewLink {
    bytes: Vec<u8>,
}

impl NewLink {
    fn new() -> Self {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut bytes = Vec::with_capacity(256);
        // struct nlmsghdr: length (written last), type, flags, sequence number, port.
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(libc::RTM_NEWLINK.to_ne_bytes());
        bytes.extend((flags as u16).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([0; HEADER_LEN]);
        Self { bytes }
    }

    /// Name and queue of an interface. With several queues the kernel would look into each frame to
    /// choose one, and the sender would pay for it.
    fn interface(&mut self, name: &str) {
        self.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        self.attribute(libc::IFLA_NUM_TX_QUEUES, &1u32.to_ne_bytes());
        self.attribute(libc::IFLA_NUM_RX_QUEUES, &1u32.to_ne_bytes());
    }

    /// `struct rtattr` with a value, padded to four bytes.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.bytes.extend(value));
    }

    /// An attribute whose value `fill` appends.
    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        fill(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends the request and reads the kernel's answer.
    fn send(mut self) -> Result<()> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        // Without a protocol it is NETLINK_ROUTE; without an address the message goes to the
        // kernel.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        send(&socket, &self.bytes, SendFlags::empty())?;
        let mut answer = [0u8; 1024];
        let (len, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
        match error_of(&answer[..len.min(answer.len())]) {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error).into()),
            None => bail!("the kernel's answer of {len} bytes is no acknowledgement"),
        }
    }
}

/// The error number of an acknowledgement (`NLMSG_ERROR`): 0 for success, else negative.
fn error_of(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(HEADER_LEN..HEADER_LEN + 4)?.try_into().ok()?);
    (i32::from(kind) == libc::NLMSG_ERROR).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_nest_and_are_padded() {
        let mut message = NewLink { bytes: Vec::new() };
        message.nest(18, |message| message.attribute(1, b"ifb"));
        assert_eq!(message.bytes, [12, 0, 18, 0, 7, 0, 1, 0, b'i', b'f', b'b', 0]);
    }

    #[test]
    fn answers_that_are_none_are_told_apart() {
        let mut answer = [0u8; 36];
        assert_eq!(error_of(&answer), None);
        answer[4] = 2;
        assert_eq!(error_of(&answer), Some(0));
        answer[16..20].copy_from_slice(&(-17i32).to_ne_bytes());
        assert_eq!(error_of(&answer), Some(-17));
        assert_eq!(error_of(&answer[..18]), None);
    }
}
