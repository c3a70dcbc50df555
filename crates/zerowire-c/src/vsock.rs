//! Mapped receive for C. What all functions ask of the caller is in the header's head
//! (cbindgen.toml).

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use zerowire::recv::vsock::{self, Dequeued, MappedListener, MappedOptions, Payload};
use zerowire_wire::mapped::{ENTRY_DIRECT, POLL_NOTHING};

use crate::arguments::{GivenOptions, NewHandle, Out, close, exported};
use crate::failure::{Failure, wrong};
use crate::types::{VsockConnection, VsockListener, VsockOptions, VsockPacket, WindowHandle};

exported! {
/// Connects to a port of the guest. `path` is the daemon's --uds with ".map" appended; options
/// NULL: the defaults.
///
/// -EINVAL: wrong options; -E2BIG: options of a later version; others: docs/mapped-receive.md.
fn zw_vsock_connect(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    connection: *mut *mut VsockConnection
) -> c_int = connect(path, port, options, connection);

/// Closes it. Windows that are held stay valid. NULL is allowed.
fn zw_vsock_close(connection: *mut VsockConnection) = close(connection);

/// Listens on a port of the host (CID 2), with path and options as those of zw_vsock_connect.
/// -EADDRINUSE: another program listens there, or a child of one that did, before its execve(2).
fn zw_vsock_listen(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    listener: *mut *mut VsockListener
) -> c_int = listen(path, port, options, listener);

/// The next connection: waits at most timeout_ms, or without a limit if it is negative; -EAGAIN if
/// none came.
fn zw_vsock_accept(
    listener: *mut VsockListener,
    timeout_ms: c_int,
    connection: *mut *mut VsockConnection
) -> c_int = accept(listener, timeout_ms, connection);

/// Readable when a connection waits, or the daemon is gone. It stays the listener's.
fn zw_vsock_listener_fd(listener: *const VsockListener) -> c_int
    = (|l: &VsockListener| Ok(l.0.as_fd().as_raw_fd()))(listener);

/// Stops listening. Connections that were accepted stay. NULL is allowed.
fn zw_vsock_listener_close(listener: *mut VsockListener) = close(listener);

/// Takes the next window: 1 and a window, 0 if no more data will come, -EAGAIN if there is nothing
/// yet. -ECONNRESET in place of 0: the guest reset the connection or is gone, and something may be
/// missing. -ENOBUFS: the next window is still held. -EPROTO: the daemon wrote something
/// impossible. Makes no system call.
fn zw_vsock_dequeue(connection: *mut VsockConnection, window: *mut *mut WindowHandle) -> c_int
    = dequeue(connection, window);

/// The next packet, up to packet.size bytes of the struct: 1, or 0 behind the last one. One thread
/// at a time.
fn zw_window_next(window: *mut WindowHandle, packet: *mut VsockPacket) -> c_int = next_packet(window, packet);

/// Begins with the first packet again.
fn zw_window_rewind(window: *mut WindowHandle) = rewind(window);

/// Bytes of payload in all packets.
fn zw_window_bytes(window: *const WindowHandle) -> u64
    = (|w: Option<&WindowHandle>| Ok(w.map_or(0, |w| w.lease.len())))(window);

/// Gives the window back to the daemon, in any order; its packets must not be used any more. NULL
/// is allowed.
fn zw_window_release(window: *mut WindowHandle) = close(window);

/// The state of the next window, to spin on without a system call: ZW_POLL_...
fn zw_vsock_poll_value(connection: *const VsockConnection) -> u32
    = (|c: Option<&VsockConnection>| Ok(c.map_or(POLL_NOTHING, |c| c.0.poll_value())))(connection);

/// Sleeps until there is a window or the end: 1; 0 after timeout_ms (negative: no limit);
/// -ECONNRESET: no daemon.
fn zw_vsock_wait(connection: *mut VsockConnection, timeout_ms: c_int) -> c_int
    = (|c: &VsockConnection, limit: Option<Duration>| Ok(c.0.wait(limit)?))(connection, timeout_ms);

/// For poll and epoll: after zw_vsock_arm returned 0, readable (POLLIN) when there is a window, the
/// end, or no daemon any more. Then call zw_vsock_disarm and dequeue. The descriptor stays the
/// connection's.
fn zw_vsock_fd(connection: *const VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.as_fd().as_raw_fd()))(connection);

/// Makes the descriptor tell of the next window: 0; or 1 if there is something already.
fn zw_vsock_arm(connection: *mut VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.arm()?))(connection);

/// The program is awake again: the descriptor is not written to any more.
fn zw_vsock_disarm(connection: *mut VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.disarm()?))(connection);

/// 1 if the daemon has closed its end.
fn zw_vsock_is_hung_up(connection: *mut VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.is_hung_up()?))(connection);

/// Removes the mapping; windows that are held stay valid. -EFAULT: it is not mapped.
fn zw_vsock_unmap(connection: *mut VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.unmap()?))(connection);

/// Maps again what zw_vsock_unmap removed. -EBUSY: it is mapped already.
fn zw_vsock_map(connection: *mut VsockConnection) -> c_int
    = (|c: &VsockConnection| Ok(c.0.map()?))(connection);

/// What was agreed on, up to options.size bytes: the options as they were asked for, with the
/// values that 0 stood for.
fn zw_vsock_agreed(connection: *const VsockConnection, options: *mut VsockOptions) -> c_int
    = agreed(connection, options);

/// The connection's ports: the one that this program has at the guest's side, and the guest's.
/// Either may be NULL.
fn zw_vsock_ports(connection: *const VsockConnection, host_port: *mut u32, guest_port: *mut u32) -> c_int
    = ports(connection, host_port, guest_port);

/// Whether zw_vsock_read and zw_vsock_write return -EAGAIN in place of waiting.
fn zw_vsock_set_nonblocking(connection: *mut VsockConnection, on: c_int) -> c_int
    = (|c: &VsockConnection, on: c_int| Ok(c.0.set_nonblocking(on != 0)?))(connection, on);

/// Copying receive, as read does on a socket; 0 is the end, -ECONNRESET one that is cut short.
fn zw_vsock_read(connection: *mut VsockConnection, to: *mut c_void, length: libc::size_t) -> libc::ssize_t
    = (|c: &VsockConnection, to: &mut [MaybeUninit<u8>]| Ok(c.0.read_uninit(to)?))(connection, [to, length]);

/// Sends, as write does on a socket, and returns how many bytes went. -EPIPE: the connection has
/// ended. -EAGAIN: no room, on a connection that does not block.
fn zw_vsock_write(
    connection: *mut VsockConnection,
    from: *const c_void,
    length: libc::size_t
) -> libc::ssize_t = (|c: &VsockConnection, from: &[u8]| Ok((&c.0).write(from)?))(connection, [from, length]);

/// SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>. The guest hears of either. After SHUT_RD what
/// was published can still be taken; the end comes behind it.
fn zw_vsock_shutdown(connection: *mut VsockConnection, how: c_int) -> c_int = shutdown(connection, how);
}

fn file(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

fn checked(options: &GivenOptions<'_, VsockOptions>) -> Result<MappedOptions, Failure> {
    options.get().copied().unwrap_or_default().check()
}

fn connect(
    path: &CStr,
    port: u32,
    options: GivenOptions<'_, VsockOptions>,
    connection: NewHandle<'_, VsockConnection>,
) -> Result<c_int, Failure> {
    connection.put(VsockConnection(vsock::connect(file(path), port, &checked(&options)?)?));
    Ok(0)
}

fn listen(
    path: &CStr,
    port: u32,
    options: GivenOptions<'_, VsockOptions>,
    listener: NewHandle<'_, VsockListener>,
) -> Result<c_int, Failure> {
    listener.put(VsockListener(MappedListener::bind(file(path), port, &checked(&options)?)?));
    Ok(0)
}

fn accept(
    listener: &VsockListener,
    limit: Option<Duration>,
    connection: NewHandle<'_, VsockConnection>,
) -> Result<c_int, Failure> {
    let made = listener.0.accept_within(limit)?;
    connection.put(VsockConnection(made.ok_or_else(|| Failure::new(libc::EAGAIN, "no connection yet"))?));
    Ok(0)
}

fn dequeue(connection: &VsockConnection, window: NewHandle<'_, WindowHandle>) -> Result<c_int, Failure> {
    match connection.0.dequeue()? {
        Dequeued::Window(lease) => {
            window.put(WindowHandle { lease, next: 0 });
            Ok(1)
        }
        Dequeued::End => Ok(0),
        Dequeued::NotYet => Ok(-libc::EAGAIN),
    }
}

fn next_packet(window: &mut WindowHandle, packet: Out<'_, VsockPacket>) -> Result<c_int, Failure> {
    let Some(next) = window.lease.packet(window.next) else { return Ok(0) };
    let (data, direct) = match next.payload() {
        Payload::Window(bytes) => (bytes.as_ptr(), 0),
        Payload::Guest(bytes) => (bytes.as_ptr(), ENTRY_DIRECT),
    };
    packet.write(&VsockPacket {
        size: size_of::<VsockPacket>(),
        data: data.cast(),
        length: next.len(),
        flags: next.flags() | direct,
        reserved: 0,
    });
    window.next += 1;
    Ok(1)
}

fn rewind(window: Option<&mut WindowHandle>) -> Result<(), Failure> {
    if let Some(window) = window {
        window.next = 0;
    }
    Ok(())
}

fn agreed(connection: &VsockConnection, options: Out<'_, VsockOptions>) -> Result<c_int, Failure> {
    options.write(&VsockOptions::of(connection.0.kind(), connection.0.options()));
    Ok(0)
}

fn ports(
    connection: &VsockConnection,
    host_port: Option<&mut MaybeUninit<u32>>,
    guest_port: Option<&mut MaybeUninit<u32>>,
) -> Result<c_int, Failure> {
    host_port.map(|to| to.write(connection.0.host_port()));
    guest_port.map(|to| to.write(connection.0.guest_port()));
    Ok(0)
}

fn shutdown(connection: &VsockConnection, how: c_int) -> Result<c_int, Failure> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        n => return wrong(format!("shutdown {n}: use SHUT_RD, SHUT_WR or SHUT_RDWR")),
    };
    connection.0.shutdown(how)?;
    Ok(0)
}
