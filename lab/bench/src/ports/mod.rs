//! `zerowire-bench net --port xdp|packet`: ports on an ordinary interface, measured on pairs of
//! veth devices, beside the tap's.
//!
//! ```text
//!   worker's CPU                                               driver's CPU
//!   back end, or a bare loop ── port ══ veth ══ peer ── IP layer (drops what is transmitted)
//!   kernel thread of the port's                     └── packet socket (sends what is received)
//!   receive queue
//! ```
//!
//! **What is counted.** Transmit: all threads of the back end. A veth device delivers in the
//! context of the sender, so the drop at the peer is part of it, as it is on a tap.
//!
//! Receive: all threads of the back end, and the port's kernel thread. That thread takes frames
//! from the port's queue, runs the XDP program and copies (`threaded` NAPI;
//! Documentation/networking/napi.rst). Without it the copy would be made, and counted, wherever the
//! sender happens to run.
//!
//! **Saturation.** Received frames come in bursts. While a burst is queued the worker's CPU is
//! [held](hold), so that queue, back end and loop find it whole.
//!
//! **Bandwidth and load.** While a burst is queued the clock stands. So these have runs of their
//! own, of the longest frames. A stream is received while it is sent, some frames ahead
//! ([`bursts::Arrivals`]).
//!
//! Each variant has a pair of its own. The floor, [`bare_xdp`], is a loop over the four rings with
//! memory of its own.

pub mod bare;
pub mod bare_xdp;
pub mod bursts;
pub mod hold;
mod measured;
pub mod published;
pub mod raw;
pub mod report;
pub mod run;
pub mod served;
pub mod veth;

pub use report::PortReport;
pub use run::run_ports;
