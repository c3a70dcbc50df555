//! The wire protocol's tests, in one program.

mod connection;
mod payloads;
