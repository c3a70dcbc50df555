//! Networks of a test's own: namespaces, and the interfaces in them.

mod command;
pub mod lab;
mod netns;
mod packet_socket;
mod pairs;
mod peer;
pub mod tap;
pub mod veth;

pub use command::{ip, run};
pub use netns::{in_netns, interface};
pub use packet_socket::set_option;
pub use pairs::{tcp_pair, udp_pair};
pub use peer::{PEER_HEADER, Peer, PeerFrame};
