//! Calls that give a socket a value, or ask for one: options and addresses.
//!
//! An option stands here beside the type of its value, so that calls by it are safe. A value holds
//! no address that the kernel would follow; a filter, which does, has a function.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::plain::PlainData;
use crate::syscall::{call, checked};

/// An option whose value is a `T`.
#[derive(Debug)]
pub(crate) struct SocketOption<T> {
    level: i32,
    name: i32,
    value: PhantomData<fn(T)>,
}

impl<T: PlainData> SocketOption<T> {
    const fn new(level: i32, name: i32) -> Self {
        Self { level, name, value: PhantomData }
    }

    /// Asks for the value; zeroes stand behind a shorter one.
    #[inline]
    pub(crate) fn get(&self, socket: impl AsFd) -> io::Result<T> {
        let mut value = T::zeroed();
        self.get_list(socket, std::slice::from_mut(&mut value)).map_err(|(error, _)| error)?;
        Ok(value)
    }

    /// Asks for a list of values. How many the kernel wrote; with an error, the number that it
    /// says.
    #[inline]
    pub(crate) fn get_list(&self, socket: impl AsFd, list: &mut [T]) -> Result<usize, (io::Error, usize)> {
        let fd = socket.as_fd().as_raw_fd() as usize;
        let mut len = size_of_val(list) as libc::socklen_t;
        let (at, len_at) = (list.as_mut_ptr() as usize, &raw mut len as usize);
        let arguments = [fd, self.level as usize, self.name as usize, at, len_at, 0];
        // SAFETY: the kernel writes at most `len` bytes of the list, and any bytes are values.
        let asked = unsafe { call(libc::SYS_getsockopt, arguments) };
        let count = len as usize / size_of::<T>();
        match asked {
            Ok(_) => Ok(count),
            Err(errno) => Err((io::Error::from_raw_os_error(errno), count)),
        }
    }

    /// Sets the value.
    #[inline]
    pub(crate) fn set(&self, socket: impl AsFd, value: &T) -> io::Result<()> {
        // SAFETY: an option of this type reads one value, and follows no address in it.
        unsafe { set(socket, self.level, self.name, value) }
    }
}

/// `SO_NETNS_COOKIE` (Linux 5.14), `SO_MEMINFO`, `SO_PEERGROUPS`
/// (include/uapi/asm-generic/socket.h); `SO_PEERCRED`: process, user, group.
pub(crate) const NETNS_COOKIE: SocketOption<u64> = SocketOption::new(libc::SOL_SOCKET, 71);
pub(crate) const MEMINFO: SocketOption<[u32; 9]> = SocketOption::new(libc::SOL_SOCKET, 55);
pub(crate) const PEERCRED: SocketOption<[u32; 3]> = SocketOption::new(libc::SOL_SOCKET, libc::SO_PEERCRED);
pub(crate) const PEERGROUPS: SocketOption<u32> = SocketOption::new(libc::SOL_SOCKET, 59);

pub(crate) const PACKET_RX_RING: SocketOption<libc::tpacket_req> =
    SocketOption::new(libc::SOL_PACKET, libc::PACKET_RX_RING);
/// `struct tpacket_req3`.
pub(crate) const PACKET_TX_RING: SocketOption<[u32; 7]> = SocketOption::new(libc::SOL_PACKET, 13);
pub(crate) const PACKET_STATISTICS: SocketOption<libc::tpacket_stats> =
    SocketOption::new(libc::SOL_PACKET, libc::PACKET_STATISTICS);
pub(crate) const PACKET_ADD_MEMBERSHIP: SocketOption<libc::packet_mreq> =
    SocketOption::new(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
pub(crate) const PACKET_DROP_MEMBERSHIP: SocketOption<libc::packet_mreq> =
    SocketOption::new(libc::SOL_PACKET, libc::PACKET_DROP_MEMBERSHIP);

/// Credit of a connection, and the most that a program may request: `SO_VM_SOCKETS_BUFFER_SIZE`,
/// `SO_VM_SOCKETS_BUFFER_MAX_SIZE` (include/uapi/linux/vm_sockets.h).
pub(crate) const VSOCK_BUFFER_SIZE: SocketOption<u64> = SocketOption::new(libc::AF_VSOCK, 0);
pub(crate) const VSOCK_BUFFER_MAX_SIZE: SocketOption<u64> = SocketOption::new(libc::AF_VSOCK, 2);

/// Asks for an option that is an int. One that has another type gives its first bytes, or an error.
///
/// # Errors
/// Those of getsockopt(2); EINVAL for a filter, whose length the kernel takes as instructions.
pub fn get_int(socket: impl AsFd, level: i32, option: i32) -> io::Result<i32> {
    if (level, option) == (libc::SOL_SOCKET, libc::SO_GET_FILTER) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    SocketOption::new(level, option).get(socket)
}

/// Sets a socket option that is an int.
pub fn set_int(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    SocketOption::new(level, option).set(socket, &value)
}

/// The process that made the connection of a unix socket, as a descriptor (SO_PEERPIDFD, Linux
/// 6.5).
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd = crate::check(get_int(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD)?)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the socket a filter (SO_ATTACH_FILTER; Documentation/networking/filter.rst).
///
/// # Errors
/// Those of setsockopt(2): EINVAL for a program that the kernel doesn't take.
pub fn attach_filter(socket: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the instructions that the structure points to, and copies both.
    unsafe { set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Connects to an address.
pub(crate) fn connect<A: PlainData>(socket: impl AsFd, address: &A) -> io::Result<()> {
    with_address(libc::SYS_connect, socket, address)
}

/// Binds to an address.
pub(crate) fn bind<A: PlainData>(socket: impl AsFd, address: &A) -> io::Result<()> {
    with_address(libc::SYS_bind, socket, address)
}

/// The address that the socket is bound to; zeroes stand behind a shorter one.
pub(crate) fn bound_address<A: PlainData>(socket: impl AsFd) -> io::Result<A> {
    let (mut address, mut len) = (A::zeroed(), size_of::<A>() as libc::socklen_t);
    let (at, len_at) = (&raw mut address as usize, &raw mut len as usize);
    let arguments = [socket.as_fd().as_raw_fd() as usize, at, len_at, 0, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes of the address, and any bytes are one.
    unsafe { checked(libc::SYS_getsockname, arguments) }.map(|_| address)
}

fn with_address<A: PlainData>(number: libc::c_long, socket: impl AsFd, address: &A) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd() as usize;
    let arguments = [fd, std::ptr::from_ref(address) as usize, size_of::<A>(), 0, 0, 0];
    // SAFETY: one of two calls that read an address of this length, which lives until they return.
    unsafe { checked(number, arguments) }.map(drop)
}

/// # Safety
/// Addresses in the value are valid for what the kernel does with them before it returns.
#[inline]
unsafe fn set<T>(socket: impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd() as usize;
    let (at, len) = (std::ptr::from_ref(value) as usize, size_of::<T>());
    // SAFETY: the kernel reads the value; what it points to is by the contract.
    unsafe { checked(libc::SYS_setsockopt, [fd, level as usize, name as usize, at, len, 0]) }.map(drop)
}

#[cfg(test)]
mod tests;
