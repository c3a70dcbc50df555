//! Tests of the network device by front ends, guests and peers, most of them in network namespaces.
//!
//! All of them are threads of one process. A test that depends on what is the process's says
//! `own_process!()` (`lab/testkit/src/process.rs`).

mod support;

mod capture;
mod errors;
mod features;
mod guard;
mod hand_over;
mod hostile;
mod kicks;
mod leaks;
mod lifecycle;
mod limits;
mod link_state;
mod memory;
mod migration;
mod net_config;
mod offload_kernel;
mod packet;
mod packet_hostile;
mod packet_ledger;
mod packet_lifecycle;
mod packet_ring;
mod packet_segments;
mod packet_slots;
mod packet_still;
mod packet_tagged;
mod packet_wake;
mod protocol;
mod receive;
mod receive_chains;
mod server_changes;
mod tap_again;
mod transmit;
mod truth;
mod vring_base;
mod xdp;
mod xdp_bounds;
mod xdp_frames;
mod xdp_hostile;
mod xdp_leaks;
mod xdp_lifecycle;
mod xdp_migration;
mod xdp_mtu;
mod xdp_offload;
mod xdp_order;
mod xdp_pin;
mod xdp_promiscuous;
mod xdp_recover;
mod xdp_steering;
mod xdp_turns;
