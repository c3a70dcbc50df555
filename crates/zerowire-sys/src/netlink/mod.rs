//! Asks the kernel about a network interface by netlink. The answers describe its link, its rings
//! and channels, how it spreads flows over its queues, and who has taken a queue.
//!
//! Questions need no privilege; what changes a setting begins with `set_`. A question is one
//! message, the answer one or several (netlink(7), Documentation/userspace-api/netlink/intro.rst).
//! Interfaces are those of the network namespace of the thread that opened the socket.
//!
//! | type | asks | kernel file |
//! | --- | --- | --- |
//! | [`LinkInfo`] | route netlink | include/uapi/linux/if_link.h |
//! | [`Ethtool`] | generic netlink, family "ethtool" | Documentation/netlink/specs/ethtool.yaml |
//! | [`Netdev`] | generic netlink, family "netdev" | Documentation/netlink/specs/netdev.yaml |
//!
//! Memory: what is received lies in a buffer of the socket, and the caller owns what is returned.
//! Every length in a message is checked against the bytes that are there before it is used. Unknown
//! attributes are skipped, since each kernel adds some.

mod attributes;
mod error;
mod ethtool;
mod generic;
mod link;
mod message;
mod netdev;
mod socket;

#[cfg(test)]
mod tests;

pub use error::NetlinkError;
pub use ethtool::{Channels, DataSplit, Ethtool, Features, Rings, Rss};
pub use link::{LinkInfo, XdpAttached};
pub use netdev::{Device, Netdev, Queue, QueueUser};
