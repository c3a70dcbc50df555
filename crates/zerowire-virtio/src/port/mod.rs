//! Where frames go: the ports of a device.

mod spec;
mod tap;

pub use spec::{PacketSpec, PortSpec, PortSpecError, XdpMatch, XdpMode, XdpSpec};
pub use tap::{MAX_QUEUES, Tap, TapError, TapOffloads, TapSpec};
