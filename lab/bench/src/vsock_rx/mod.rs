//! How fast a program receives by vsock: `zerowire-bench vsock-rx`.
//!
//! A server sends a number of megabytes, a client receives them in one of several ways
//! ([`ReceiveMode`]) and says what that took. Both run on the host and in a guest, from one program
//! ([`run_server`], [`run_client`]).
//!
//! [`run_table`] runs a whole experiment with a guest without a VM. Beside its figures it prints
//! those published for a kernel's receive path of the same kind ([`mod@reference`]).

pub mod client;
pub mod connection;
pub mod experiment;
pub mod floor;
pub mod guest_receive;
pub mod options;
pub mod output;
pub mod reference;
pub mod report;
pub mod run;
pub mod server;
pub mod tally;
pub mod variant;

pub use client::run_client;
pub use options::ReceiveMode;
pub use options::{ClientOptions, RxPlace, ServerOptions, TableOptions};
pub use run::run_table;
pub use server::run_server;
