//! Tests of the vsock device by front ends, guests, host programs and siblings.
//!
//! All of them are threads of one process. A test that depends on what is the process's says
//! `own_process!()` (`lab/testkit/src/process.rs`).

mod support;

mod answers;
mod capture;
mod config;
mod credit;
mod ends;
mod few_buffers;
mod hand_over;
mod handed;
mod hostile;
mod hostile_hosts;
mod inplace;
mod kicks;
mod lifecycle;
mod limits;
mod mapped;
mod mapped_bounds;
mod mapped_hostile;
mod mapped_quota;
mod mapped_users;
mod message_batches;
mod messages;
mod migration;
mod model;
mod muxer;
mod names;
mod parts;
mod quotas;
mod relay;
mod requests;
mod server_changes;
mod siblings;
mod slow_host;
mod streams;
mod timers;
mod turns;
mod unasked;
