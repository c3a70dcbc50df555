//! Which back end serves a socket.

use super::backend::AnyBackend;
use super::kind::{SocketFamily, SocketKind};
use super::socket::SocketBackend;
#[cfg(feature = "uring")]
use super::uring::{Engine, EngineError, EngineOptions, Registration, backend::UringBackend};
use super::{SendBackend, SendError, SendMode, SendOptions, SocketError};
use crate::area::Area;
use std::os::fd::OwnedFd;

/// A call that the peer's credit does not cover is copied, in whole or in part. MSG_ZEROCOPY's
/// notifications say so; those of SEND_ZC don't (`virtio_transport_init_zcopy_skb`,
/// net/vmw_vsock/virtio_transport_common.c: the flag is set in notifications of the socket's own
/// only). Seen with Linux 7.3.
pub(super) const UNTOLD_ON_VSOCK: &str =
    "io_uring does not say what the kernel copies of memory that is lent to vsock; socket calls lend there";

/// Sets the socket up. Returns the back end, and why it is that one.
pub(super) fn open(
    socket: OwnedFd,
    kind: SocketKind,
    options: &SendOptions,
    areas: &[Area],
) -> Result<(AnyBackend, String), SocketError<SendError>> {
    let (socket, why) = match options.backend {
        SendBackend::Socket => (socket, "asked for".to_owned()),
        SendBackend::Auto if options.mode == SendMode::Copy => {
            (socket, "copying gains nothing from io_uring".to_owned())
        }
        SendBackend::Auto if areas.is_empty() => (socket, "no areas to register with io_uring".to_owned()),
        SendBackend::Auto if kind.kind == SocketFamily::Unix => {
            (socket, "unix sockets lend nothing".to_owned())
        }
        SendBackend::Auto if kind.kind == SocketFamily::Vsock => (socket, UNTOLD_ON_VSOCK.to_owned()),
        SendBackend::Uring | SendBackend::Auto => match on_ring(socket, kind, options, areas) {
            Ok(opened) => return Ok(opened),
            Err(SocketError { socket, error }) if options.backend == SendBackend::Uring => {
                return Err(SocketError { socket, error: SendError::Uring(error) });
            }
            Err(SocketError { socket, error }) => (socket, format!("in place of io_uring: {error}")),
        },
    };
    Ok((AnyBackend::Socket(SocketBackend::new(socket, kind, options)?), why))
}

/// Sets the socket up on a ring of its own. With an error comes why not, for people.
#[cfg(feature = "uring")]
fn on_ring(
    socket: OwnedFd,
    kind: SocketKind,
    options: &SendOptions,
    areas: &[Area],
) -> Result<(AnyBackend, String), SocketError<String>> {
    let strict = options.backend == SendBackend::Uring && options.mode == SendMode::ZeroCopy;
    let registration = if strict { Registration::Required } else { Registration::IfAllowed };
    let ring = EngineOptions { registration, ..EngineOptions::for_one_sender() };
    let back = UringBackend::new(socket, kind, options, &ring, areas)
        .map_err(|SocketError { socket, error }| SocketError { socket, error: error.to_string() })?;
    let why = match options.backend {
        SendBackend::Uring => "asked for",
        _ if back.all_registered() => "areas are registered",
        _ => "areas were to be registered",
    };
    Ok((AnyBackend::Uring(back), why.to_owned()))
}

#[cfg(not(feature = "uring"))]
fn on_ring(
    socket: OwnedFd,
    _: SocketKind,
    _: &SendOptions,
    _: &[Area],
) -> Result<(AnyBackend, String), SocketError<String>> {
    Err(SocketError { socket, error: "zerowire was built without the feature uring".to_owned() })
}

/// Sets the socket up on an engine.
#[cfg(feature = "uring")]
pub(super) fn open_on(
    engine: &Engine,
    socket: OwnedFd,
    kind: SocketKind,
    options: &SendOptions,
) -> Result<(AnyBackend, String), SocketError<SendError>> {
    if !engine.is_own_thread() {
        return Err(SocketError { socket, error: SendError::Uring(EngineError::WrongThread.to_string()) });
    }
    Ok((AnyBackend::Uring(UringBackend::on(engine, socket, kind, options)), "on a shared engine".to_owned()))
}
