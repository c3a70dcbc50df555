//! Networks of a test's own: namespaces, and the interfaces in them.

pub mod lab;
mod netns;
mod peer;
pub mod tap;
pub mod veth;

pub use netns::{in_netns, interface};
pub use peer::{PEER_HEADER, Peer, PeerFrame};
