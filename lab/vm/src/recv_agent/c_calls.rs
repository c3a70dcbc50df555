//! Areas that are shared, and areas that are DMA buffers, through the C interface.
//!
//! SAFETY, for all calls: handles are those of the library, closed once, and used by the thread
//! that the header names. Results are written to variables of the caller.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::mpsc;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerowire::recv::RecvBackend;
use zerowire_c as c;
use zerowire_vmtest::vsock::pattern::Pattern;

use super::added;
use super::cases::load;
use super::wire::{join, sender};

const BUFFERS: usize = 64;
const PAGE: usize = 4096;

/// For a batch of arrivals, milliseconds.
const PATIENCE_MS: i32 = 30_000;

/// The words of an error; else the result.
fn told(result: i64) -> Result<i64> {
    if result < 0 {
        // SAFETY: a string of the library, valid until this thread's next call.
        let words = unsafe { CStr::from_ptr(c::zw_last_error()) };
        bail!("{} ({result})", words.to_string_lossy());
    }
    Ok(result)
}

fn options(backend: u32) -> c::ReceiverOptions {
    // SAFETY: integers and pointers, for which zeros are a value.
    let mut options: c::ReceiverOptions = unsafe { std::mem::zeroed() };
    options.size = size_of::<c::ReceiverOptions>();
    (options.backend, options.buffer_bytes, options.buffers) = (backend, PAGE, BUFFERS);
    options
}

/// A receiver of this thread.
struct CReceiver(*mut c::Receiver);

impl Drop for CReceiver {
    fn drop(&mut self) {
        // SAFETY: as the module says.
        unsafe { c::zw_receiver_close(self.0) };
    }
}

impl CReceiver {
    fn new(options: &c::ReceiverOptions) -> Result<Self> {
        let mut receiver = null_mut();
        // SAFETY: as the module says.
        told(unsafe { c::zw_receiver_new(options, &raw mut receiver) }.into())?;
        Ok(Self(receiver))
    }

    fn import(area: *const c::RecvArea) -> Result<Self> {
        let mut receiver = null_mut();
        let options = options(c::ZW_RECV_NO_DEVICE);
        // SAFETY: as the module says.
        told(unsafe { c::zw_receiver_import(area, &raw const options, &raw mut receiver) }.into())?;
        Ok(Self(receiver))
    }

    /// Receives what a sender of this seed sends, and compares it.
    fn receives(&self, seed: u64, bytes: u64) -> Result<()> {
        let (socket, thread) = sender(load(seed, bytes))?;
        let (mut connection, mut got, mut ended) = (0, 0, false);
        // SAFETY: as the module says.
        told(unsafe { c::zw_receiver_add(self.0, socket.into_raw_fd(), &raw mut connection) }.into())?;
        while !ended {
            let mut some: [c::RecvArrival; 8] = [const { EMPTY }; 8];
            // SAFETY: as the module says; the library writes at most `some.len()` arrivals.
            let n =
                unsafe { c::zw_receiver_recv(self.0, some.as_mut_ptr(), ELEMENT, some.len(), PATIENCE_MS) };
            let n = told(n as i64)? as usize;
            ensure!(n > 0, "nothing more than {got} of {bytes} bytes comes");
            for arrival in &some[..n] {
                ensure!(arrival.connection == connection, "of connection {}", arrival.connection);
                match arrival.kind {
                    c::ZW_ARRIVAL_DATA => {
                        // SAFETY: an arrival that is held has `length` bytes, which stay as they
                        // are.
                        let bytes =
                            unsafe { std::slice::from_raw_parts(arrival.data.cast(), arrival.length) };
                        let wrong = Pattern::new(seed).first_difference(got, bytes);
                        ensure!(wrong.is_none(), "byte {wrong:?} is wrong, in a piece at {got}");
                        got += arrival.length as u64;
                    }
                    c::ZW_ARRIVAL_END => ended = true,
                    kind => bail!("an arrival of kind {kind}, error {}", arrival.error),
                }
            }
            // SAFETY: as the module says.
            told(unsafe { c::zw_arrival_release(some.as_mut_ptr(), ELEMENT, n) }.into())?;
        }
        ensure!(got == bytes, "{got} of {bytes} bytes came");
        // SAFETY: as the module says.
        let fd = told(unsafe { c::zw_receiver_remove(self.0, connection) }.into())?;
        // SAFETY: the descriptor is the caller's now.
        drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        join(vec![thread])
    }

    fn bytes(&self) -> Result<u64> {
        // SAFETY: integers, for which zeros are a value.
        let mut ledger: c::SendLedger = unsafe { std::mem::zeroed() };
        ledger.size = size_of::<c::SendLedger>();
        // SAFETY: as the module says.
        told(unsafe { c::zw_receiver_ledger(self.0, &raw mut ledger) }.into())?;
        Ok(ledger.bytes)
    }
}

const EMPTY: c::RecvArrival =
    c::RecvArrival { connection: 0, listener: 0, kind: 0, error: 0, data: null(), length: 0, token: 0 };

/// What the header calls sizeof(struct zw_arrival).
const ELEMENT: usize = size_of::<c::RecvArrival>();

/// The area for another thread, which may use it.
struct CArea(*mut c::RecvArea);

// SAFETY: any thread may use a handle of an area (zerowire.h), one closes it.
unsafe impl Send for CArea {}

/// Two receivers on two threads share one area; the second goes on when the first and the handle
/// are closed.
pub fn shared(backend: RecvBackend) -> Result<String> {
    ensure!(backend == RecvBackend::NoDevice, "only without a device");
    let first = CReceiver::new(&options(c::ZW_RECV_NO_DEVICE))?;
    let mut area = null_mut();
    // SAFETY: as the module says.
    told(unsafe { c::zw_receiver_export(first.0, &raw mut area) }.into())?;
    // SAFETY: as the module says.
    let cut = unsafe { (c::zw_shared_area_buffers(area), c::zw_shared_area_bytes(area)) };
    ensure!(cut == (BUFFERS, BUFFERS * PAGE), "{cut:?}");
    if added::takes_areas()? {
        // SAFETY: as the module says.
        told(unsafe { c::zw_receiver_add_area(first.0, PAGE, BUFFERS, 0) }.into())?;
        // SAFETY: as the module says.
        let cut = unsafe { (c::zw_shared_area_buffers(area), c::zw_shared_area_bytes(area)) };
        ensure!(cut == (2 * BUFFERS, 2 * BUFFERS * PAGE), "{cut:?}");
    }
    let area = CArea(area);
    let (tell, first_is_gone) = mpsc::channel::<()>();
    let second = std::thread::spawn(move || -> Result<u64> {
        let area = area;
        let receiver = CReceiver::import(area.0)?;
        receiver.receives(410, 400_001)?;
        // It ends with the first receiver.
        let _ = first_is_gone.recv();
        // SAFETY: as the module says; nobody else closes it.
        unsafe { c::zw_shared_area_close(area.0) };
        receiver.receives(411, 300_000)?;
        receiver.bytes()
    });
    first.receives(400, 500_003)?;
    let bytes = first.bytes()?;
    drop(first);
    drop(tell);
    let other = second.join().ok().context("the second receiver panicked")??;
    ensure!((bytes, other) == (500_003, 700_001), "the ledgers have {bytes} and {other} bytes");
    Ok(format!("{bytes} and {other} bytes through one area"))
}

/// `UDMABUF_CREATE` (include/uapi/linux/udmabuf.h): `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// A real DMA buffer is taken, and refused for what it can't be used for.
pub fn dmabuf(backend: RecvBackend) -> Result<String> {
    ensure!(backend == RecvBackend::NoDevice, "only without a device");
    let len = BUFFERS * PAGE;
    let memory = memfd_create("zerowire", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, len as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    let device = File::open("/dev/udmabuf").context("/dev/udmabuf")?;
    let create = UdmabufCreate { memfd: memory.as_raw_fd() as u32, flags: 1, offset: 0, size: len as u64 };
    // SAFETY: the kernel reads the structure.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    ensure!(fd >= 0, "UDMABUF_CREATE: {}", Error::last_os_error());
    let mut dmabuf = null_mut();
    // SAFETY: as the module says; the descriptor is given away.
    told(unsafe { c::zw_dmabuf_new(fd, &raw mut dmabuf) }.into())?;
    // SAFETY: as the module says.
    ensure!(unsafe { c::zw_dmabuf_length(dmabuf) } == len, "another length");
    let lo = CString::new("lo")?;
    let mut said = Vec::new();
    for (backend, word) in [
        (c::ZW_RECV_NO_DEVICE, "only be the area of a NIC's queue"),
        (c::ZW_RECV_PLAIN, "only be the area of a NIC's queue"),
        (c::ZW_RECV_QUEUE, "queue 0 of lo"),
    ] {
        let mut options = options(backend);
        (options.dmabuf, options.interface) = (dmabuf, lo.as_ptr());
        let words =
            CReceiver::new(&options).err().with_context(|| format!("way {backend} takes it"))?.to_string();
        ensure!(words.contains(word), "way {backend}: {words}");
        said.push(words);
    }
    // SAFETY: as the module says.
    unsafe { c::zw_dmabuf_close(dmabuf) };
    Ok(said.pop().unwrap_or_default())
}
