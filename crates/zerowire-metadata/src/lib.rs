//! The guest metadata service: HTTP on `169.254.169.254` and `fd00:ec2::254`,
//! port 80, answered inside the process that serves the virtual machine's network device.
//!
//! Theory of operation: a network device asks [`wants`] about the first bytes
//! of each frame that its guest sends. Frames for the service are handed to
//! [`MetadataService::ingest`], all others go their usual way. The service is
//! plain code without I/O, clocks or threads: Ethernet frames in, Ethernet
//! frames out, the time as an argument. One service serves one guest.
//!
//! ```text
//!  guest frame ── wants? ── no ──▶ port
//!                   │ yes
//!                   ▼
//!        ingest ─▶ ARP, neighbours (stack) ─────┐
//!                └▶ IP ─▶ TCP (smoltcp) ─▶ HTTP ─▶ tree, tokens
//!                                               │
//!        pop_frame ◀── frames for the guest ◀───┘
//! ```
//!
//! The behaviour follows what cloud images expect from version 2 of such services. A client gets a
//! token with a lifetime by `PUT /latest/api/token`, then sends it with a `GET` of each path of a
//! JSON tree. Directories list one name a line. Answers to a PUT have hop limit 1: the guest's
//! stack takes them and forwards them to nobody. Requests for another host are refused.
//!
//! Memory and aliasing rules: every frame is copied into private memory before any of it is read. A
//! guest that changes its memory meanwhile changes nothing here. Named constants bound queues,
//! connections, buffers and tokens, whatever a guest sends.
//!
//! Not supported: VLAN tags, IPv6 extension headers, IP fragments, TLS, ranges, compression.

mod config;
mod connection;
mod http;
mod neighbours;
mod service;
mod stack;
mod stats;
mod token;
mod tree;
mod wants;

pub use config::{Config, DEFAULT_MAC, DEFAULT_MTU_BYTES, MAX_MTU_BYTES, MIN_MTU_BYTES};
pub use config::{MetadataError, TokenPolicy};
pub use http::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_TARGET_BYTES};
pub use service::{MAX_CONNECTIONS, MetadataService};
pub use stack::{MAX_FRAME_BYTES, MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES};
pub use stats::{Stats, Traffic};
pub use token::{MAX_TOKEN_TTL_SECONDS, MAX_TOKENS};
pub use tree::{MAX_DEPTH, MAX_TREE_BYTES, MetadataTree};
pub use wants::{SERVICE_ADDRESS, SERVICE_ADDRESS_V6, SERVICE_PORT, wants};
