//! The tests of the program `zerowire`, in one program.

mod crash;
mod crash_order;
mod doctor;
mod doctor_queue;
mod exit_status;
mod idle;
mod install;
mod ledger_page;
mod log;
mod net_arguments;
mod net_service;
mod net_xdp;
mod progress;
mod recv;
mod recv_errors;
mod replay;
mod replay_errors;
mod send;
mod send_memlock;
mod send_mtu;
mod send_receivers;
mod send_waiting;
mod statistics;
mod support;
mod vsock_arguments;
mod vsock_service;
