//! The C library's tests, in one program.

mod c_daemon;
mod c_example;
mod c_frames;
mod c_recv;
mod c_send;
mod c_versions;
mod header;
mod manual;
mod support;
