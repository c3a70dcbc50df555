//! What the device has on the heap: a bound a connection, and no allocation for a packet.

mod bounds;
mod device;
mod heap;
mod host;
mod packets;
