//! The tests of `zerowire-bench`, in one program.

mod bench_ab;
mod bench_arguments;
mod bench_peers;
mod bench_places;
mod bench_port;
mod bench_programs;
mod bench_replay;
mod bench_vsock_rx;
mod floor;
mod interrupt;
#[cfg(feature = "charts")]
mod measurements;
mod packet_tx;
mod ports;
mod support;
mod tcp_rx;
mod vsock;
mod vsock_rx;
