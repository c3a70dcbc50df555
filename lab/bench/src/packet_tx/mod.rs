//! How fast a program sends to a network device, copying and lending: `zerowire-bench packet-tx`.
//!
//! The table's rows are payload lengths, its columns ([`Column`]) ways of sending. Each column is
//! measured twice: as a loop of bare system calls ([`bare`]) and through the library ([`library`]).
//! Frames go to an ifb device, which takes lent pages as they are. They also go over a veth pair to
//! a UDP socket, for which the kernel copies: the negative control. [`mod@reference`] holds the
//! published figures that rates are compared with. Further parts: [`auto`], [`cycles`].

pub mod auto;
pub mod bare;
pub mod case;
pub mod cycles;
pub mod lab;
pub mod library;
mod library_frames;
pub(crate) mod links;
pub mod options;
pub mod reference;
pub mod report;
pub mod run;
pub mod source;
pub mod way;

pub use case::Column;
pub use case::SinkKind;
pub use options::{MoreParts, PacketTxOptions};
pub use run::run_packet_tx;
