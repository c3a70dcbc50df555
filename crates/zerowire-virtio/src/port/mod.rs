//! Where frames go: the ports of a device.

mod packet;
mod spec;
mod tap;
mod watch;

pub use packet::{
    Arrived, Frames, InterfaceState, PacketError, PacketSocket, Promiscuous, SLOT_BYTES, SLOTS, Slots, Tag,
};
pub(crate) use spec::six_bytes;
pub use spec::{
    FollowLink, PacketReceive, PacketRings, PacketSpec, PortSpec, PortSpecError, XdpMatch, XdpMode, XdpPin,
    XdpSpec,
};
pub use tap::{MAX_QUEUES, Tap, TapError, TapOffloads, TapSpec};
pub use watch::LinkWatch;
