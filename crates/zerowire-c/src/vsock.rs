//! Mapped receive for C. Each function's contract is in include/zerowire.h; what all of them ask of the caller is there, too.
//!
//! SAFETY, for all functions: a handle is NULL or came from this library and was not closed; a pointer to an argument or a
//! result is NULL or valid for its type.
#![allow(clippy::missing_safety_doc, reason = "the contract is the header's, and the one above")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use zerowire::recv::layout::{ENTRY_DIRECT, MapOptions, POLL_NOTHING};
use zerowire::recv::vsock::{self, Connection, Dequeued, Kind, Listener, Options, Payload, WindowLease};

use crate::guard::{Failure, guard, guard_int};

/// struct zw_vsock_options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VsockOptions {
    kind: u32,
    windows: u32,
    header_pages: u32,
    data_pages: u32,
    lowat: u32,
    credit: u32,
    flags: u32,
    reserved: u32,
}

/// struct zw_packet.
#[repr(C)]
#[derive(Debug)]
pub struct VsockPacket {
    data: *const c_void,
    length: usize,
    flags: u32,
    reserved: u32,
}

/// zw_window.
#[derive(Debug)]
pub struct Window {
    lease: WindowLease,
    next: usize,
}

const PACKED: u32 = 1;
const DIRECT: u32 = 2;

fn default_options() -> VsockOptions {
    let o = MapOptions::default();
    VsockOptions {
        kind: 1,
        windows: o.windows,
        header_pages: o.header_pages,
        data_pages: o.data_pages,
        lowat: o.lowat,
        credit: o.credit,
        flags: if o.packed { PACKED } else { 0 },
        reserved: 0,
    }
}

impl VsockOptions {
    fn check(&self) -> Result<Options, Failure> {
        let wrong = |text: String| Err(Failure::new(libc::EINVAL, text));
        let kind = match self.kind {
            1 => Kind::Stream,
            2 => Kind::SeqPacket,
            n => return wrong(format!("kind {n}: ZW_STREAM is 1, ZW_SEQPACKET is 2")),
        };
        if self.flags & !(PACKED | DIRECT) != 0 {
            return wrong(format!("flags {:#x}: ZW_PACKED is 1, ZW_DIRECT is 2", self.flags));
        }
        if self.reserved != 0 {
            return wrong(format!("reserved is {}: call zw_vsock_options_init first", self.reserved));
        }
        let map = MapOptions {
            windows: self.windows,
            header_pages: self.header_pages,
            data_pages: self.data_pages,
            packed: self.flags & PACKED != 0,
            lowat: self.lowat,
            credit: self.credit,
            direct: self.flags & DIRECT != 0,
        };
        Ok(Options::from(map).kind(kind))
    }
}

fn null(what: &str) -> Failure {
    Failure::new(libc::EINVAL, format!("{what} is NULL"))
}

/// # Safety
/// As the module says.
unsafe fn get<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: by the module's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// As the module says.
unsafe fn put<T>(value: T, to: *mut *mut T) {
    // SAFETY: the callers have checked for NULL; the rest is the module's contract.
    unsafe { to.write(Box::into_raw(Box::new(value))) };
}

/// # Safety
/// As the module says; the handle is not used again.
unsafe fn close<T>(handle: *mut T) {
    if !handle.is_null() {
        guard(|| {
            // SAFETY: made by `put`, and not closed yet.
            drop(unsafe { Box::from_raw(handle) });
            Ok(0)
        });
    }
}

/// # Safety
/// As the module says.
unsafe fn arguments(
    path: *const c_char,
    options: *const VsockOptions,
) -> Result<(&'static Path, Options), Failure> {
    if path.is_null() {
        return Err(null("path"));
    }
    // SAFETY: a C string by the contract; the callers do not keep it.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    // SAFETY: by the module's contract.
    let options = unsafe { options.as_ref() }.copied().unwrap_or_else(default_options);
    Ok((path, options.check()?))
}

fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_options_init(options: *mut VsockOptions) {
    if !options.is_null() {
        // SAFETY: not NULL; by the module's contract.
        unsafe { options.write(default_options()) };
    }
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_connect(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    connection: *mut *mut Connection,
) -> c_int {
    guard_int(|| {
        if connection.is_null() {
            return Err(null("connection"));
        }
        // SAFETY: by the module's contract.
        let (path, options) = unsafe { arguments(path, options) }?;
        let made = vsock::connect(path, port, &options)?;
        // SAFETY: not NULL.
        unsafe { put(made, connection) };
        Ok(0)
    })
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_close(connection: *mut Connection) {
    // SAFETY: by the module's contract.
    unsafe { close(connection) }
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listen(
    path: *const c_char,
    port: u32,
    options: *const VsockOptions,
    listener: *mut *mut Listener,
) -> c_int {
    guard_int(|| {
        if listener.is_null() {
            return Err(null("listener"));
        }
        // SAFETY: by the module's contract.
        let (path, options) = unsafe { arguments(path, options) }?;
        let made = Listener::bind(path, port, &options)?;
        // SAFETY: not NULL.
        unsafe { put(made, listener) };
        Ok(0)
    })
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_accept(
    listener: *mut Listener,
    timeout_ms: c_int,
    connection: *mut *mut Connection,
) -> c_int {
    guard_int(|| {
        if connection.is_null() {
            return Err(null("connection"));
        }
        // SAFETY: by the module's contract.
        let listener = unsafe { get(listener, "listener") }?;
        let Some(made) = listener.accept_within(timeout(timeout_ms))? else {
            return Err(Failure::new(libc::EAGAIN, "no connection yet"));
        };
        // SAFETY: not NULL.
        unsafe { put(made, connection) };
        Ok(0)
    })
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listener_fd(listener: *const Listener) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(listener, "listener") }?.as_fd().as_raw_fd()))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_listener_close(listener: *mut Listener) {
    // SAFETY: by the module's contract.
    unsafe { close(listener) }
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_dequeue(connection: *mut Connection, window: *mut *mut Window) -> c_int {
    guard_int(|| {
        if window.is_null() {
            return Err(null("window"));
        }
        // SAFETY: by the module's contract.
        match unsafe { get(connection, "connection") }?.dequeue()? {
            Dequeued::Window(lease) => {
                // SAFETY: not NULL.
                unsafe { put(Window { lease, next: 0 }, window) };
                Ok(1)
            }
            Dequeued::End => Ok(0),
            Dequeued::NotYet => Ok(-libc::EAGAIN),
        }
    })
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_next(window: *mut Window, packet: *mut VsockPacket) -> c_int {
    guard_int(|| {
        if packet.is_null() {
            return Err(null("packet"));
        }
        // SAFETY: by the module's contract, and one thread at a time.
        let window = unsafe { window.as_mut() }.ok_or_else(|| null("window"))?;
        let Some(next) = window.lease.packet(window.next) else { return Ok(0) };
        let (data, direct) = match next.payload() {
            Payload::Window(bytes) => (bytes.as_ptr(), 0),
            Payload::Guest(bytes) => (bytes.as_ptr(), ENTRY_DIRECT),
        };
        let found =
            VsockPacket { data: data.cast(), length: next.len(), flags: next.flags() | direct, reserved: 0 };
        window.next += 1;
        // SAFETY: not NULL.
        unsafe { packet.write(found) };
        Ok(1)
    })
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_rewind(window: *mut Window) {
    // SAFETY: by the module's contract, and one thread at a time.
    if let Some(window) = unsafe { window.as_mut() } {
        window.next = 0;
    }
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_bytes(window: *const Window) -> u64 {
    // SAFETY: by the module's contract.
    unsafe { window.as_ref() }.map_or(0, |w| w.lease.len())
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_window_release(window: *mut Window) {
    // SAFETY: by the module's contract.
    unsafe { close(window) }
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_poll_value(connection: *const Connection) -> u32 {
    // SAFETY: by the module's contract.
    unsafe { connection.as_ref() }.map_or(POLL_NOTHING, Connection::poll_value)
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_wait(connection: *mut Connection, timeout_ms: c_int) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.wait(timeout(timeout_ms))?.into()))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_fd(connection: *const Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.as_fd().as_raw_fd()))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_arm(connection: *mut Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.arm()?.into()))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_disarm(connection: *mut Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.disarm().map(|()| 0)?))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_is_hung_up(connection: *mut Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.is_hung_up()?.into()))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_unmap(connection: *mut Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.unmap().map(|()| 0)?))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_map(connection: *mut Connection) -> c_int {
    // SAFETY: by the module's contract.
    guard_int(|| Ok(unsafe { get(connection, "connection") }?.map().map(|()| 0)?))
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_read(connection: *mut Connection, to: *mut c_void, length: usize) -> isize {
    guard(|| {
        // SAFETY: by the module's contract.
        let mut connection = unsafe { get(connection, "connection") }?;
        if to.is_null() {
            return Err(null("to"));
        }
        let length = length.min(isize::MAX as usize);
        // Rust must not see memory that was never written.
        // SAFETY: writable for `length` bytes by the contract.
        unsafe { to.cast::<u8>().write_bytes(0, length.min(READ_AT_ONCE)) };
        // SAFETY: the bytes were written just now.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length.min(READ_AT_ONCE)) };
        Ok(connection.read(to)? as i64)
    }) as isize
}

/// Bytes that one read takes at most; it may always take fewer than asked for.
const READ_AT_ONCE: usize = 256 << 10;

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_write(
    connection: *mut Connection,
    from: *const c_void,
    length: usize,
) -> isize {
    guard(|| {
        // SAFETY: by the module's contract.
        let mut connection = unsafe { get(connection, "connection") }?;
        if from.is_null() {
            return Err(null("from"));
        }
        // SAFETY: readable for `length` bytes by the contract.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.min(isize::MAX as usize)) };
        Ok(connection.write(from)? as i64)
    }) as isize
}

/// See zerowire.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zw_vsock_shutdown(connection: *mut Connection, how: c_int) -> c_int {
    guard_int(|| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            n => {
                return Err(Failure::new(
                    libc::EINVAL,
                    format!("shutdown {n}: use SHUT_RD, SHUT_WR or SHUT_RDWR"),
                ));
            }
        };
        // SAFETY: by the module's contract.
        unsafe { get(connection, "connection") }?.shutdown(how)?;
        Ok(0)
    })
}
