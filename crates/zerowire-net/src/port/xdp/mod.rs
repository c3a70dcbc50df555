//! virtio-net over AF_XDP, with the guest's own memory as the UMEM
//! (Documentation/networking/af_xdp.rst).
//!
//! ```text
//!  transmit:  [vnet header | frame …][ … ]       receive:   A      A+256+h        A+c
//!              read once      │        │                     [room  | frame        ]   one chunk
//!                             ▼        ▼                            ▲              ▲
//!  TX ring:               { piece } { piece }    guest:     [header | frame        ]   buffer
//!                                                           G       G+12           G+12+F
//! ```
//!
//! **Transmit.** The pieces of a frame lie in the guest's memory and go to the kernel as they are.
//! Their chain is *lent* (`loans`) until the completion ring says that they were sent. Then it
//! goes back to the guest, in the order of completion. Where the front end keeps no in-flight
//! region, it goes back in the order in which chains became available, as far as that can be. How
//! many chains may be lent and how long is bounded. Past that, and where pieces can't go as they
//! are, a frame is copied into a private slab and its chain goes back at once.
//!
//! **Receive.** A guest's buffer goes to the fill ring such that the frame lands right behind the
//! place of the virtio-net header. The chunk ends with the longest frame ([`geometry`]). So the
//! kernel itself refuses a longer one, and no byte lands outside the buffer. The header is written
//! when the frame has come. Buffers that can't go as they are stay here; frames for them come over
//! the slab.
//!
//! **Who owns these bytes.** The guest can read and write its own memory at any time, also while
//! the kernel does. It can't reach the slab, the rings, and memory of other guests. Nothing that
//! decides anything is read from guest memory twice.

mod account;
mod control;
pub mod geometry;
mod handed;
mod inlet;
mod kept;
mod link;
mod loans;
mod outlet;
mod pieces;
mod posted;
mod promiscuous;
mod queues;
mod registrar;
mod slab;
mod spec;
mod steering;
mod system_calls;
mod trust;
mod umem;

use std::time::Duration;

use control::XdpPort;
pub use handed::XdpAccess;
pub use inlet::XdpInlet;
pub use link::{Link, LinkOptions};
pub use outlet::XdpOutlet;
pub use promiscuous::Promiscuous;
pub use queues::XdpQueues;
pub use registrar::Registrar;
pub use spec::{XdpMatch, XdpPin, XdpSpec};
pub use system_calls::SYSTEM_CALLS;
pub use trust::driver_has_zero_copy;
pub use umem::VmUmem;
pub use zerowire_sys::xdp::Mode as XdpMode;

/// Copies on the way of frames that no process makes.
pub const KERNEL_COPIES: &str = "in copy mode one each way, between the guest's memory and the kernel's buffers (net/xdp/xsk.c); none in zero-copy mode";

/// Entries of each of a socket's rings.
pub const RING_ENTRIES: u32 = 2048;

/// How long the kernel may be without completing anything before frames are copied rather than
/// lent.
const HOLD: Duration = Duration::from_millis(20);
