//! The server: takes one client, sends, says what it took.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, accept_with, send, shutdown};
use zerowire_cli::af_vsock;

use super::options::{RxPlace, ServerOptions};
use super::output::{ServerOutput, printed};
use super::tally::process_time;
use crate::held::Held;
use crate::vsock::host::{port_path, sum_of};

/// The byte at `at` of what the server sends, again and again from its buffer's start.
pub fn byte_at(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Runs the server for one client.
pub fn run_server(options: &ServerOptions) -> Result<ServerOutput> {
    options.verify()?;
    match &options.place {
        RxPlace::Kernel => serve(&af_vsock::listen(options.port)?, options),
        RxPlace::Host(uds) => {
            let path = port_path(uds, options.port);
            let (_held, listener) = Held::file(&path, || bind(&path))?;
            serve(&listener.into(), options)
        }
        RxPlace::Device(_) => {
            bail!("--device: the server sends by AF_VSOCK or, on the host, by --uds PATH: leave --device out")
        }
    }
}

/// Listens at `path`; a socket that nobody listens at any more is replaced.
fn bind(path: &Path) -> Result<UnixListener> {
    let context = || format!("can't listen at {}", path.display());
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if !is_socket {
                return Err(error).with_context(|| format!("{}: it is there, and no socket", path.display()));
            }
            // A connection would be the other program's client. A socket of another type gets none:
            // the error says whether somebody is there (net/unix/af_unix.c, unix_find_bsd).
            let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
            if !asked.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                return Err(error)
                    .with_context(|| format!("{}: another program listens there", path.display()));
            }
            std::fs::remove_file(path).with_context(context)?;
            UnixListener::bind(path).with_context(context)
        }
        other => other.with_context(context),
    }
}

fn serve(listener: &OwnedFd, options: &ServerOptions) -> Result<ServerOutput> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = loop {
        match accept_with(listener, flags) {
            Ok(socket) => break socket,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno).context("accept"),
        }
    };
    let len = usize::try_from(options.bytes).unwrap_or(usize::MAX).min(options.tx_buffer);
    let buffer: Vec<u8> = (0..len).map(byte_at).collect();
    let (cpu, begin) = (process_time()?, Instant::now());
    let mut left = options.bytes;
    let mut at = 0;
    while left > 0 {
        let end = buffer.len().min(at + usize::try_from(left).unwrap_or(usize::MAX));
        match send(&socket, &buffer[at..end], SendFlags::NOSIGNAL) {
            Ok(count) => {
                left -= count as u64;
                at = if at + count == buffer.len() { 0 } else { at + count };
            }
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(errno).with_context(|| {
                    format!("send after {} of {} bytes", options.bytes - left, options.bytes)
                });
            }
        }
    }
    let (send_seconds, cpu) = (begin.elapsed(), process_time()? - cpu);
    shutdown(&socket, Shutdown::Write).context("shutdown")?;
    let sum = options.check.then(|| printed(sum_of(&buffer, options.bytes)));
    wait_for_client(&socket);
    Ok(ServerOutput {
        bytes: options.bytes,
        send_seconds: send_seconds.as_secs_f64(),
        cpu_seconds: cpu.as_secs_f64(),
        sum,
    })
}

/// The client closes when it has all. What a program has sent and closed goes on in the kernel, but
/// the one that measures should not begin something else before.
fn wait_for_client(socket: &OwnedFd) {
    let mut byte = [0];
    // The client sends nothing: this is its end, or an error that means the same.
    let _ = rustix::net::recv(socket, &mut byte, rustix::net::RecvFlags::empty());
}
