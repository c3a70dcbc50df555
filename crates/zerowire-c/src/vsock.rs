//! Mapped receive for C. What all functions ask of the caller is in the header's head
//! (cbindgen.toml).
//!
//! SAFETY, for all functions: a handle is NULL or came from this library and was not closed; a
//! pointer to an argument or a result is NULL or valid for its type.
#![allow(clippy::missing_safety_doc, reason = "the contract is the one above, and the header's")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zerowire::recv::vsock::{self, Dequeued, MappedListener, MappedOptions, Payload};
use zerowire_wire::mapped::{ENTRY_DIRECT, POLL_NOTHING};

use crate::failure::{Failure, wrong};
use crate::guard::{guard, guard_int};
use crate::handle::{Out, close, get, make, null, put, sized, timeout};
use crate::types::{VsockConnection, VsockListener, VsockOptions, VsockPacket, WindowHandle};

/// # Safety
/// As the module says.
unsafe fn arguments(
    path: *const c_char,
    options: *const VsockOptions,
) -> Result<(&'static Path, MappedOptions), Failure> {
    if path.is_null() {
        return Err(null("path"));
    }
    // SAFETY: a C string by the contract; the callers do not keep it.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    // SAFETY: by the module's contract.
    let options = unsafe { sized(options, "zw_vsock_options") }?.unwrap_or_default();
    Ok((path, options.check()?))
}

/// Connects to a port of the guest. `path` is the daemon's --uds with ".map" appended; options
/// NULL: the defaults.
///
/// -EINVAL: wrong options; -E2BIG: options of a later version; others: docs/mapped-receive.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_connect(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    connection: *mut *mut VsockConnection,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe {
        make(connection, "connection", || {
            let (path, options) = arguments(path, options)?;
            Ok(VsockConnection(vsock::connect(path, port, &options)?))
        })
    }
}

/// Closes it. Windows that are held stay valid. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_close(connection: *mut VsockConnection) {
    // SAFETY: by the module's contract.
    unsafe { close(connection) }
}

/// Listens on a port of the host (CID 2), with path and options as those of zw_vsock_connect.
/// -EADDRINUSE: another program listens there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listen(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    listener: *mut *mut VsockListener,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe {
        make(listener, "listener", || {
            let (path, options) = arguments(path, options)?;
            Ok(VsockListener(MappedListener::bind(path, port, &options)?))
        })
    }
}

/// The next connection: waits at most timeout_ms, or without a limit if it is negative; -EAGAIN if
/// none came.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_accept(
    listener: *mut VsockListener,
    timeout_ms: c_int,
    connection: *mut *mut VsockConnection,
) -> c_int {
    // SAFETY: by the module's contract.
    unsafe {
        make(connection, "connection", || {
            let made = get(listener, "listener")?.0.accept_within(timeout(timeout_ms))?;
            made.map(VsockConnection).ok_or_else(|| Failure::new(libc::EAGAIN, "no connection yet"))
        })
    }
}

/// Readable when a connection waits, or the daemon is gone. It stays the listener's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listener_fd(listener: *const VsockListener) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(listener, "listener") }?.0.as_fd().as_raw_fd()))
}

/// Stops listening. Connections that were accepted stay. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listener_close(listener: *mut VsockListener) {
    // SAFETY: by the module's contract.
    unsafe { close(listener) }
}

/// Takes the next window: 1 and a window, 0 if no more data will come, -EAGAIN if there is nothing
/// yet. -ECONNRESET in place of 0: the guest reset the connection or is gone, and something may be
/// missing. -ENOBUFS: the next window is still held. -EPROTO: the daemon wrote something
/// impossible. Makes no system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_dequeue(
    connection: *mut VsockConnection,
    window: *mut *mut WindowHandle,
) -> c_int {
    guard_int(|| {
        if window.is_null() {
            return Err(null("window"));
        }
        // SAFETY: by the module's contract.
        match unsafe { get(connection, "connection") }?.0.dequeue()? {
            Dequeued::Window(lease) => {
                // SAFETY: not NULL.
                unsafe { put(WindowHandle { lease, next: 0 }, window) };
                Ok(1)
            }
            Dequeued::End => Ok(0),
            Dequeued::NotYet => Ok(-libc::EAGAIN),
        }
    })
}

/// The next packet, up to packet.size bytes of the struct: 1, or 0 behind the last one. One thread
/// at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_next(window: *mut WindowHandle, packet: *mut VsockPacket) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(packet, "packet", "zw_packet") }?;
        // SAFETY: by the module's contract, and one thread at a time.
        let window = unsafe { window.as_mut() }.ok_or_else(|| null("window"))?;
        let Some(next) = window.lease.packet(window.next) else { return Ok(0) };
        let (data, direct) = match next.payload() {
            Payload::Window(bytes) => (bytes.as_ptr(), 0),
            Payload::Guest(bytes) => (bytes.as_ptr(), ENTRY_DIRECT),
        };
        out.write(&VsockPacket {
            size: size_of::<VsockPacket>(),
            data: data.cast(),
            length: next.len(),
            flags: next.flags() | direct,
            reserved: 0,
        });
        window.next += 1;
        Ok(1)
    })
}

/// Begins with the first packet again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_rewind(window: *mut WindowHandle) {
    // SAFETY: by the module's contract, and one thread at a time.
    if let Some(window) = unsafe { window.as_mut() } {
        window.next = 0;
    }
}

/// Bytes of payload in all packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_bytes(window: *const WindowHandle) -> u64 {
    // SAFETY: by the module's contract.
    unsafe { window.as_ref() }.map_or(0, |w| w.lease.len())
}

/// Gives the window back to the daemon, in any order; its packets must not be used any more. NULL
/// is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_release(window: *mut WindowHandle) {
    // SAFETY: by the module's contract.
    unsafe { close(window) }
}

/// The state of the next window, to spin on without a system call: ZW_POLL_...
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_poll_value(connection: *const VsockConnection) -> u32 {
    // SAFETY: by the module's contract.
    unsafe { connection.as_ref() }.map_or(POLL_NOTHING, |c| c.0.poll_value())
}

/// Sleeps until there is a window or the end: 1; 0 after timeout_ms (negative: no limit);
/// -ECONNRESET: no daemon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_wait(connection: *mut VsockConnection, timeout_ms: c_int) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.wait(timeout(timeout_ms))?.into()))
}

/// For poll and epoll: after zw_vsock_arm returned 0, readable (POLLIN) when there is a window, the
/// end, or no daemon any more. Then call zw_vsock_disarm and dequeue. The descriptor stays the
/// connection's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_fd(connection: *const VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.as_fd().as_raw_fd()))
}

/// Makes the descriptor tell of the next window: 0; or 1 if there is something already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_arm(connection: *mut VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.arm()?.into()))
}

/// The program is awake again: the descriptor is not written to any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_disarm(connection: *mut VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.disarm().map(|()| 0)?))
}

/// 1 if the daemon has closed its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_is_hung_up(connection: *mut VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.is_hung_up()?.into()))
}

/// Removes the mapping; windows that are held stay valid. -EFAULT: it is not mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_unmap(connection: *mut VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.unmap().map(|()| 0)?))
}

/// Maps again what zw_vsock_unmap removed. -EBUSY: it is mapped already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_map(connection: *mut VsockConnection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.map().map(|()| 0)?))
}

/// What was agreed on, up to options.size bytes: the options as they were asked for, with the
/// values that 0 stood for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_agreed(
    connection: *const VsockConnection,
    options: *mut VsockOptions,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let connection = &unsafe { get(connection, "connection") }?.0;
        // SAFETY: by the module's contract.
        let out = unsafe { Out::new(options, "options", "zw_vsock_options") }?;
        out.write(&VsockOptions::of(connection.kind(), connection.options()));
        Ok(0)
    })
}

/// The connection's ports: the one that this program has at the guest's side, and the guest's.
/// Either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_ports(
    connection: *const VsockConnection,
    host_port: *mut u32,
    guest_port: *mut u32,
) -> c_int {
    guard_int(|| {
        // SAFETY: by the module's contract.
        let connection = &unsafe { get(connection, "connection") }?.0;
        for (to, port) in [(host_port, connection.host_port()), (guest_port, connection.guest_port())] {
            if !to.is_null() {
                // SAFETY: not NULL.
                unsafe { to.write(port) };
            }
        }
        Ok(0)
    })
}

/// Whether zw_vsock_read and zw_vsock_write return -EAGAIN in place of waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_set_nonblocking(connection: *mut VsockConnection, on: c_int) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.0.set_nonblocking(on != 0).map(|()| 0)?))
}

/// Copying receive, as read does on a socket; 0 is the end, -ECONNRESET one that is cut short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_read(
    connection: *mut VsockConnection,
    to: *mut c_void,
    length: libc::size_t,
) -> libc::ssize_t {
    guard(|| {
        // SAFETY: by the module's contract.
        let connection = &unsafe { get(connection, "connection") }?.0;
        if to.is_null() {
            return Err(null("to"));
        }
        let length = length.min(isize::MAX as usize);
        // SAFETY: writable for `length` bytes by the contract; they may be uninitialised.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<u8>>(), length) };
        Ok(connection.read_uninit(to)? as i64)
    }) as libc::ssize_t
}

/// Sends, as write does on a socket, and returns how many bytes went. -EPIPE: the connection has
/// ended. -EAGAIN: no room, on a connection that does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_write(
    connection: *mut VsockConnection,
    from: *const c_void,
    length: libc::size_t,
) -> libc::ssize_t {
    guard(|| {
        // SAFETY: by the module's contract.
        let mut connection = &unsafe { get(connection, "connection") }?.0;
        if from.is_null() {
            return Err(null("from"));
        }
        // SAFETY: readable for `length` bytes by the contract.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.min(isize::MAX as usize)) };
        Ok(connection.write(from)? as i64)
    }) as libc::ssize_t
}

/// SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>. The guest is told of either. After SHUT_RD what
/// was published can still be taken; the end comes behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_shutdown(connection: *mut VsockConnection, how: c_int) -> c_int {
    guard_int(|| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            n => return wrong(format!("shutdown {n}: use SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        // SAFETY: by the module's contract.
        unsafe { get(connection, "connection") }?.0.shutdown(how)?;
        Ok(0)
    })
}
