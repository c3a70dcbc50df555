//! Receives a guest's streams and messages in mapped memory, from `zerowire vsock`
//! (docs/mapped-receive.md).
//!
//! ```no_run
//! use zerowire::recv::vsock::{self, Dequeued, MappedOptions};
//!
//! let options = MappedOptions::stream().lowat(65536);
//! let guest = vsock::connect("/run/vm.vsock.map".as_ref(), 5000, &options)?;
//! let mut sum = 0u64;
//! loop {
//!     match guest.dequeue()? {
//!         Dequeued::Window(window) => {
//!             for packet in window.packets() {
//!                 let bytes = packet.bytes().unwrap_or_default();
//!                 sum += bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
//!             }
//!         } // the window goes back to the daemon here
//!         Dequeued::NotYet => {
//!             guest.wait(None)?;
//!         }
//!         Dequeued::End => break,
//!     }
//! }
//! # Ok::<(), vsock::Error>(())
//! ```
//!
//! # Who owns the memory
//! The daemon makes two files in memory for each connection. It alone can write the data pages: it
//! seals that file, so a program can map it for reading only. A published window belongs to the
//! program (`poll_value` 1) until its [`WindowLease`] is dropped. The daemon does not touch it
//! before, so the library gives its bytes out as plain slices. This is a promise of the daemon,
//! which the program trusts as it trusts the kernel with a socket's data. A daemon that breaks it
//! changes bytes under the program's eyes. What the daemon's memory *says* is not trusted. Lengths,
//! offsets and counts are read once and checked, and a wrong one is [`Error::BrokenWindow`], never
//! a fault. The guest can write neither file. It can change payload that stays in guest memory
//! (direct entries) at any time; this payload is given out as a [`VolatileSlice`].

/// `Read` and `Write` of a type by those of its reference.
macro_rules! by_reference {
    ($type:ty) => {
        impl std::io::Read for $type {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                (&*self).read(to)
            }
        }

        impl std::io::Write for $type {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                (&*self).write(bytes)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

mod connection;
mod copy;
mod core;
mod error;
mod handshake;
mod lease;
mod listener;
mod options;
mod read;
mod wait;
mod window;
mod write;

pub use connection::{Dequeued, MappedConnection, connect};
pub use copy::{CopyConnection, connect_copy};
pub use error::Error;
pub use lease::{Packets, Payload, WindowLease, WindowPacket};
pub use listener::MappedListener;
pub use options::{MappedKind, MappedOptions};
pub use zerowire_sys::volatile::VolatileSlice;
