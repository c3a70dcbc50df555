//! The metadata service's tests, in one program.

mod hostile;
mod http;
mod network;
mod support;
