//! Areas that several receivers use, that are added to a receiver, and that are DMA buffers, for C.

use std::ffi::c_int;

use zerowire::recv::{self, Dmabuf, SharedArea};

use crate::area::area_options;
use crate::arguments::{GivenDmabuf, GivenOptions, NewHandle, close, exported};
use crate::failure::Failure;
use crate::recv::{Receiver, receiver_options};
use crate::recv_types::ReceiverOptions;

/// The area of a receiver, for others to use. Any thread may use it.
#[derive(Debug)]
pub struct RecvArea(SharedArea);

/// A DMA buffer to make a receiver's area of. Any thread may use it.
#[derive(Debug)]
pub struct RecvDmabuf(pub(crate) Dmabuf);

exported! {
/// Gives a receiver one more area, at any time (ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE; Linux 7.3): so
/// many buffers more that the program may hold and the kernel can fill. buffers * buffer_bytes
/// counts, which is cut into buffers of the length that the first area has. flags: 0,
/// ZW_HUGE_PAGES. It stays until the receiver and all buffers that are held of it have gone.
/// Receivers that share the area use it, too; this one may hold more from now on.
///
/// -EOPNOTSUPP: it receives in another way, or the kernel is too old; -EINVAL: out of range, or its
/// area is a DMA buffer; -ENOMEM: no memory, or beyond RLIMIT_MEMLOCK. The receiver is as it was
/// before then.
fn zw_receiver_add_area(
    receiver: *mut Receiver,
    buffer_bytes: libc::size_t,
    buffers: libc::size_t,
    flags: u32
) -> c_int = add_area(receiver, buffer_bytes, buffers, flags);

/// Lets other receivers of this process use this one's area (ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE;
/// Linux 7.0): zw_receiver_import. The memory and, with a queue, the queue are kept until the last
/// receiver, the last buffer that is held of all of them, and this handle have gone.
///
/// Each of them counts in its own ledger what it was given. Which of them counts a piece that the
/// kernel copied is left to chance; the sums are right.
///
/// -EOPNOTSUPP: it receives in another way, or the kernel is too old; -EMFILE, -ENFILE: no
/// descriptor is free.
fn zw_receiver_export(receiver: *mut Receiver, area: *mut *mut RecvArea) -> c_int = export(receiver, area);

/// Makes a receiver on the area of another one, for the thread that calls this, which may be
/// another one: with a ring and sockets of its own. A receiver that holds many buffers leaves fewer
/// to the others.
///
/// Of the options, buffers times buffer_bytes is how much of the area it may hold; the way to
/// receive and the memory are those of the area. Where that is a DMA buffer, give dmabuf here as
/// well: then this process sees what the device wrote on every machine.
///
/// -EPERM: no CAP_NET_ADMIN; others as zw_receiver_new.
fn zw_receiver_import(
    area: *const RecvArea,
    options: *const ReceiverOptions,
    receiver: *mut *mut Receiver
) -> c_int = import(area, options, receiver);

/// Bytes of the area; 0 for NULL.
fn zw_shared_area_bytes(area: *const RecvArea) -> libc::size_t
    = (|a: Option<&RecvArea>| Ok(a.map_or(0, |a| a.0.area_bytes())))(area);

/// Buffers of the area, as the kernel cuts it; 0 for NULL.
fn zw_shared_area_buffers(area: *const RecvArea) -> libc::size_t
    = (|a: Option<&RecvArea>| Ok(a.map_or(0, |a| a.0.buffers())))(area);

/// Gives the handle up; receivers that were made of it go on. NULL is allowed.
fn zw_shared_area_close(area: *mut RecvArea) = close(area);

/// Takes the descriptor of a DMA buffer, of the udmabuf device, a DMA heap or a GPU whose memory
/// can be mapped, for the options of a receiver (ZW_RECV_QUEUE, Linux 6.16). If it returns 0 the
/// descriptor is the library's, until the handle and all receivers that have the buffer are gone.
/// After an error it is still yours, and open.
///
/// The NIC places payload in it; what the NIC leaves beside the headers the kernel can't copy
/// there, so that such a connection waits for ever. Not tested with a NIC. Whoever else has the
/// buffer mapped must leave it alone while the receiver and its buffers are there.
///
/// -EBADF; -EMFILE; -ENOTTY: no DMA buffer.
fn zw_dmabuf_new(fd: c_int, dmabuf: *mut *mut RecvDmabuf) -> c_int = new_dmabuf(fd, dmabuf);

/// Its length in bytes; 0 for NULL.
fn zw_dmabuf_length(dmabuf: *const RecvDmabuf) -> libc::size_t
    = (|d: Option<&RecvDmabuf>| Ok(d.map_or(0, |d| d.0.len())))(dmabuf);

/// Gives the handle up; receivers that have the buffer keep it. NULL is allowed.
fn zw_dmabuf_close(dmabuf: *mut RecvDmabuf) = close(dmabuf);
}

fn add_area(receiver: &Receiver, buffer_bytes: usize, buffers: usize, flags: u32) -> Result<c_int, Failure> {
    let options = area_options(buffer_bytes, buffers, flags)?;
    receiver.own()?.receiver.add_area(options)?;
    Ok(0)
}

fn export(receiver: &Receiver, area: NewHandle<'_, RecvArea>) -> Result<c_int, Failure> {
    area.put(RecvArea(receiver.own()?.receiver.export()?));
    Ok(0)
}

fn import(
    area: &RecvArea,
    options: GivenOptions<'_, ReceiverOptions>,
    receiver: NewHandle<'_, Receiver>,
) -> Result<c_int, Failure> {
    receiver.put(Receiver::of(recv::Receiver::import(&area.0, receiver_options(&options)?)?));
    Ok(0)
}

fn new_dmabuf(fd: GivenDmabuf, dmabuf: NewHandle<'_, RecvDmabuf>) -> Result<c_int, Failure> {
    dmabuf.put(RecvDmabuf(fd.take()?));
    Ok(0)
}
