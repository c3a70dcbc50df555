//! What vhost-user devices stand on, whatever they are: the guest's memory, its rings, and the
//! front end. It knows no frame and no packet.
//!
//! * [`memory`]: the guest's RAM in this process, and the rules for touching it.
//! * [`ring`]: the device side of a split virtqueue.
//! * [`host`]: what serves a ring.
//! * [`limit`]: what a VM may move in a second.
//! * [`session`]: one connection with a front end (QEMU docs/interop/vhost-user.rst).
//! * [`serve`]: a VM's socket and its control thread.
//! * [`answer`]: what one thread answers another.
//! * [`files`]: files whose file system may never answer.
//! * [`news`]: what the log hears of that can happen all the time.
//! * [`queue`]: what threads put in, and one thread takes.
//!
//! **Threads.** Each VM has a control thread ([`serve`]), which listens on its socket and speaks
//! the protocol ([`session`]) for a [`Device`](serve::Device). The device has its rings served by
//! threads of its own ([`host`]). Threads share no locks on the way of a frame or a packet. A VM
//! that misbehaves holds up only the threads that serve it.
//!
//! This is not a stable interface: it is public for the devices of zerowire (`zerowire-net`,
//! `zerowire-vsock`), and any release may change it. Programs need [`serve::Endpoint`],
//! [`serve::SocketAccess`], [`session::SessionImage`] and the errors of both modules alone.
#![warn(missing_docs)]

pub mod answer;
pub mod files;
pub mod host;
pub mod limit;
pub mod memory;
pub mod news;
pub mod queue;
pub mod ring;
pub mod serve;
pub mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
