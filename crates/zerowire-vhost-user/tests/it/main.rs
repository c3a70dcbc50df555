//! The wire protocol's tests, in one program.

mod message_socket;
mod payloads;
