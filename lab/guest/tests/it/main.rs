//! The guest's tests, in one program.

mod closing_order;
mod misbehave;
mod net;
mod ring;
mod support;
mod vsock;
mod vsock_model;
mod vsock_rules;
mod vsock_stack;
