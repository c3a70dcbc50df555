//! Tests of what all devices stand on, by both of them: rings, memory, front ends.
//!
//! All of them are threads of one process. A test that depends on what is the process's says
//! `own_process!()` (`lab/testkit/src/process.rs`).

mod support;

mod cloud_hypervisor;
mod discard;
mod front_end_files;
mod in_order;
mod inflight;
mod mem_slots;
mod postcopy;
mod rings;
