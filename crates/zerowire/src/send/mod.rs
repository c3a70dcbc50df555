//! Sending memory that is lent to the kernel, and being told when it is back.
//!
//! * [`Sender`]: one connected socket. Plain calls, `MSG_ZEROCOPY`, or io_uring underneath.
//! * [`Payload`]: what is sent: owned or leased memory, given to the sender by value.
//! * [`Ticket`], [`Completion`]: the name of a submission, and the notice that its memory is back.
//! * [`Choice`]: how payloads of a length go out, by measurement.
//! * [`frame`]: senders of whole frames; [`in_place`]: the same without a closure.
//!
//! # Who owns which bytes
//! A payload is moved into the sender, and the sender keeps it until the kernel's notification:
//! nothing can change, reuse or free the memory before. That is a matter of types, not of care:
//!
//! ```compile_fail,E0382
//! # use zerowire::area::Area;
//! # use zerowire::send::{SendError, Sender};
//! fn reuse(sender: &mut Sender, area: &Area) -> Result<(), SendError> {
//!     let Some(mut buffer) = area.lease() else { return Ok(()) };
//!     buffer.fill(1);
//!     sender.send(buffer)?;
//!     buffer.fill(2); // the kernel may still read the buffer: this line does not compile
//!     Ok(())
//! }
//! ```
//!
//! Memory that is only borrowed is not taken, since it could go before the kernel has done with it:
//!
//! ```compile_fail,E0597
//! # use zerowire::send::{SendError, Sender};
//! fn borrow(sender: &mut Sender) -> Result<(), SendError> {
//!     let buffer = vec![1; 4096];
//!     sender.send(&buffer[..])?; // the loan may outlive the buffer: this line does not compile
//!     Ok(())
//! }
//! ```
//!
//! Memory that is shared on purpose ([`Bytes`](bytes::Bytes), `Arc<[u8]>`,
//! [`Frozen`](crate::area::Frozen)) is read-only for everybody, and the sender's handle keeps it
//! alive:
//!
//! ```compile_fail,E0596
//! # use zerowire::area::Area;
//! # use zerowire::send::{SendError, Sender};
//! fn change(sender: &mut Sender, area: &Area) -> Result<(), SendError> {
//!     let Some(buffer) = area.lease() else { return Ok(()) };
//!     let mut buffer = buffer.freeze();
//!     sender.send(buffer.clone())?;
//!     buffer.fill(2); // who shares a buffer may only read it: this line does not compile
//!     Ok(())
//! }
//! ```

mod auto;
mod backend;
mod close;
mod error;
pub mod frame;
pub mod in_place;
mod kind;
mod limits;
mod numbers;
mod open;
mod options;
mod orphans;
mod payload;
mod segment;
mod sender;
mod socket;
#[cfg(feature = "testing")]
pub mod testing;
mod ticket;
#[cfg(feature = "uring")]
pub mod uring;
mod window;

pub use crate::socket_error::SocketError;
pub use auto::{Because, Choice, SendWay};
pub use close::{Close, CloseError, Closed};
pub use error::{Refused, SendError, Unfinished};
pub use options::{Notifications, SendBackend, SendMode, SendOptions};
pub use orphans::{Orphans, orphans};
pub use payload::{Payload, Segment};
pub use segment::longest_segment;
pub use sender::Sender;
pub(crate) use socket::errno::is_of_an_earlier;
pub use ticket::{Completion, Ticket};

use window::Window;
