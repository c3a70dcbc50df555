//! Devices for virtual machines: virtio-net and virtio-vsock over vhost-user, without a copy in
//! user space on the usual path.
//!
//! * [`memory`]: the guest's RAM in this process, and the rules for touching it.
//! * [`ring`]: the device side of a split virtqueue.
//! * [`io`]: batches of reads and writes on a port.
//! * [`net`]: virtio-net: headers, transmit, receive.
//! * [`port`]: where frames go.
//! * [`vsock`]: virtio-vsock: connections, credit, and where they end.
//! * [`host`]: what serves a ring, whatever its device.
//! * [`daemon`]: serving front ends.
#![warn(missing_docs)]

pub mod daemon;
pub mod host;
pub mod io;
pub mod memory;
pub mod net;
pub mod port;
pub mod ring;
pub mod vsock;
