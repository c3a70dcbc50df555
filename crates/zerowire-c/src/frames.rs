//! Senders of whole frames, for C.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use zerowire::packet::{PacketRing, VnetHeader};
use zerowire::send::frame::FrameError;
use zerowire::send::in_place::InPlace;
use zerowire::xdp::XdpSender;

use crate::arguments::{GivenOptions, NewHandle, Out, OwnedHandle, exported};
use crate::arrays::TextRoom;
use crate::failure::{Failure, wrong};
use crate::frames_types::{FrameHeader, FrameWay, FramesOptions, way};
use crate::lent::FrameChecks;
use crate::send_report::{BytesPlace, NamePlace, reason};
use crate::send_types::SendLedger;

/// Sends whole frames on one interface, built in memory that the kernel sends from.
pub struct FramesHandle {
    sender: Box<dyn InPlace>,
    checks: Option<FrameChecks>,
    /// The place that C builds in, and its length.
    reserved: Option<(usize, usize)>,
    /// Frames committed: the number of the next one.
    committed: u64,
}

impl std::fmt::Debug for FramesHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("path", &self.sender.path())
            .field("committed", &self.committed)
            .finish()
    }
}

impl FramesHandle {
    /// Looks at frames that came back.
    fn settle(&mut self) {
        if let Some(checks) = &mut self.checks {
            checks.settle(self.sender.as_mut());
        }
    }

    /// Makes a call that hands frames over. An error may have moved them.
    fn handing<T>(
        &mut self,
        call: impl FnOnce(&mut dyn InPlace) -> Result<T, FrameError>,
    ) -> Result<T, Failure> {
        let result = call(self.sender.as_mut());
        match &result {
            // They are where they were.
            Ok(_) | Err(FrameError::Stuck { .. } | FrameError::Down { .. }) => {}
            Err(_) => {
                self.reserved = None;
                if let Some(checks) = &mut self.checks {
                    checks.forget();
                }
            }
        }
        self.settle();
        Ok(result?)
    }

    fn reserve(&mut self, length: usize, data: &mut MaybeUninit<*mut c_void>) -> Result<c_int, Failure> {
        let Some(place) = self.sender.reserve(length)? else {
            self.settle();
            return Ok(-libc::EAGAIN);
        };
        let (number, at) = (place.number, place.bytes.as_mut_ptr());
        // Before C writes there: what was sent from this place is back.
        self.settle();
        self.reserved = Some((number, length));
        data.write(at.cast());
        Ok(0)
    }

    fn commit(&mut self, len: usize, header: Option<&FrameHeader>) -> Result<c_int, Failure> {
        let header = header.map_or(Ok(VnetHeader::NONE), FrameHeader::check)?;
        let Some((place, room)) = self.reserved else {
            let text = "no place is reserved: call zw_frames_reserve first, once for each frame, and again after an error";
            return wrong(text);
        };
        if len > room {
            return wrong(format!("{len} bytes: only {room} were reserved"));
        }
        if let Some(checks) = &mut self.checks
            && let Some(now) = self.sender.reserve(len)?
        {
            checks.lend(place, self.committed, now.bytes);
        }
        match self.sender.commit(len, &header) {
            Ok(true) => {
                (self.reserved, self.committed) = (None, self.committed + 1);
                Ok(0)
            }
            other => {
                // Not lent: it is not out.
                self.settle();
                other.map(|_| -libc::EAGAIN).map_err(Failure::from)
            }
        }
    }

    fn reap(&mut self) -> Result<usize, Failure> {
        let back = self.sender.reap();
        self.settle();
        Ok(back)
    }

    fn wait(&mut self, limit: Duration) -> Result<(), Failure> {
        if self.handing(|s| s.wait(limit))? {
            return Ok(());
        }
        let all = self.sender.outstanding();
        let text = format!("none of {all} frames is back in {} ms", limit.as_millis());
        Err(Failure::new(libc::ETIMEDOUT, text))
    }

    fn drain(&mut self, limit: Duration) -> Result<(), Failure> {
        self.handing(|s| s.drain(limit)).map(drop)
    }
}

exported! {
/// Opens a sender of frames on an interface of this thread's network namespace. options NULL: the
/// defaults, a ring.
///
/// A frame begins with its Ethernet header and ends before the checksum that the interface appends.
/// Nothing is received, but that a queue of an AF_XDP socket in zero-copy mode throws away what it
/// receives.
///
/// -EPERM: no CAP_NET_RAW; -ENODEV: no such interface; -EINVAL: wrong options; -E2BIG: options of a
/// later version; -EBUSY, -EOPNOTSUPP (AF_XDP): the queue has another socket, the driver no
/// zero-copy mode; -ENOBUFS: the limit of locked memory; -ENOMEM.
fn zw_frames_open(
    interface: *const c_char,
    options: *const FramesOptions,
    frames: *mut *mut FramesHandle
) -> c_int = open(interface, options, frames);

/// Bytes of the longest frame without a VLAN tag that goes uncut, Ethernet header included; 0 for
/// NULL.
fn zw_frames_max(frames: *const FramesHandle) -> libc::size_t
    = (|f: Option<&FramesHandle>| Ok(f.map_or(0, |f| f.sender.max_frame_bytes())))(frames);

/// Takes a place for a frame of `length` bytes: 0, and where to build it; -EAGAIN, without words,
/// if none is free: it never waits. The bytes are those of older frames: write all of them.
///
/// One place can be had at a time: until zw_frames_commit it is the same one, with what you wrote
/// there. An error of zw_frames_flush, _wait or _drain may take it away, which zw_frames_commit
/// says.
///
/// -EMSGSIZE: longer than the MTU (with ZW_FRAMES_OFFLOAD zw_frames_commit says so) or than a
/// place; -EINVAL: no whole Ethernet header.
fn zw_frames_reserve(frames: *mut FramesHandle, length: libc::size_t, data: *mut *mut c_void) -> c_int
    = FramesHandle::reserve(frames, length, data);

/// The frame is built: send the first `length` bytes of the place that was reserved, with what
/// `header` asks for (NULL: nothing). zw_frames_flush hands it over. An error leaves the place
/// reserved.
///
/// From here on the place is the sender's: don't write to it. With ZW_CHECKED, and always in a
/// debug build of the library, a checksum of the frame is taken here, and compared when it is back;
/// if it differs the process aborts, with the number of the frame (from 0) and the offset on
/// standard error. After an error of zw_frames_flush that names a frame those that are on their way
/// then are not checked.
///
/// -EMSGSIZE: longer than the MTU; -EINVAL: longer than the place, nothing reserved, or a header
/// that breaks a rule, or AF_XDP, or no ZW_FRAMES_OFFLOAD.
fn zw_frames_commit(frames: *mut FramesHandle, length: libc::size_t, header: *const FrameHeader) -> c_int
    = FramesHandle::commit(frames, length, header);

/// Makes a whole TCP or UDP frame ready for ZW_FRAMES_OFFLOAD: puts the sum of the pseudo header
/// into its checksum field, and fills in the header for zw_frames_commit. gso_size: bytes of
/// payload of the segments that it is cut into; 0: it needs only its checksum.
///
/// -EINVAL: no TCP or UDP over IPv4 or IPv6 behind Ethernet and VLAN tags, or a gso_size above
/// 65535.
fn zw_vnet_prepare(frame: *mut c_void, length: libc::size_t, gso_size: u32, header: *mut FrameHeader) -> c_int
    = prepare([frame, length], gso_size, header);

/// Hands over what was committed, with one system call where one is needed. It doesn't wait: frames
/// that the kernel has no room for go with the next call.
///
/// -ENETDOWN: the interface is down; the frames stay. -ENODEV: it is gone; open a new sender.
/// -EMSGSIZE and others that name a frame: it was taken out, the others stay.
fn zw_frames_flush(frames: *mut FramesHandle) -> c_int
    = (|f: &mut FramesHandle| f.handing(|s| s.flush()))(frames);

/// Takes back the places of frames that were sent: how many came back since the last call. Mostly
/// without a system call.
fn zw_frames_reap(frames: *mut FramesHandle) -> c_int = FramesHandle::reap(frames);

/// As zw_frames_flush, and waits until a place is free: at most timeout_ms; negative: no limit.
/// -ETIMEDOUT.
fn zw_frames_wait(frames: *mut FramesHandle, timeout_ms: c_int) -> c_int
    = FramesHandle::wait(frames, timeout_ms);

/// As zw_frames_flush, and waits until all frames are back: at most timeout_ms; negative: no limit.
/// -ETIMEDOUT: the words say what is not back; the sender can go on.
fn zw_frames_drain(frames: *mut FramesHandle, timeout_ms: c_int) -> c_int
    = FramesHandle::drain(frames, timeout_ms);

/// Frames that were committed and are not back; 0 for NULL.
fn zw_frames_outstanding(frames: *const FramesHandle) -> libc::size_t
    = (|f: Option<&FramesHandle>| Ok(f.map_or(0, |f| f.sender.outstanding())))(frames);

/// The descriptor of its socket, for event loops; -EINVAL for NULL. A ring's tells of frames that
/// are back edge-triggered (EPOLLOUT | EPOLLET) only; AF_XDP's says when the ring is at most half
/// full. It stays the sender's.
fn zw_frames_fd(frames: *const FramesHandle) -> c_int
    = (|f: &FramesHandle| Ok(f.sender.as_fd().as_raw_fd()))(frames);

/// The totals up to now; a frame is a payload, and is counted when it is back. `dropped`, unless
/// NULL: frames that were not sent.
fn zw_frames_ledger(frames: *const FramesHandle, ledger: *mut SendLedger, dropped: *mut u64) -> c_int
    = ledger(frames, ledger, dropped);

/// Bytes copied for a reason, and its name, as zw_sender_copied.
fn zw_frames_copied(
    frames: *const FramesHandle,
    reason: u32,
    name: *mut *const c_char,
    bytes: *mut u64
) -> c_int = (|f: &FramesHandle, n: u32, name: NamePlace<'_>, bytes: BytesPlace<'_>| {
    Ok(self::reason(&f.sender.counters(), n, name, bytes))
})(frames, reason, name, bytes);

/// What runs, for people, into your buffer as zw_sender_path does.
fn zw_frames_path(frames: *const FramesHandle, text: *mut c_char, size: libc::size_t) -> c_int
    = (|f: &FramesHandle, text: TextRoom<'_>| Ok(text.print(&f.sender.path())))(frames, [text, size]);

/// Ends the sender. The handle is gone, whatever is returned, and with it all places. NULL is
/// allowed.
///
/// It hands over what was committed, and waits until all is back, at most timeout_ms (negative: no
/// limit; 0: ends at once, without handing anything over, and without an error). -ETIMEDOUT, and
/// others as zw_frames_drain: frames were not handed over, or not back; those that the kernel has
/// may still be sent, from memory that it holds itself.
fn zw_frames_close(frames: *mut FramesHandle, timeout_ms: c_int) -> c_int = close(frames, timeout_ms);
}

fn open(
    interface: &CStr,
    options: GivenOptions<'_, FramesOptions>,
    frames: NewHandle<'_, FramesHandle>,
) -> Result<c_int, Failure> {
    let interface = interface.to_string_lossy();
    let (way, checked) = way(&interface, options.get())?;
    let sender: Box<dyn InPlace> = match way {
        FrameWay::Ring(options) => Box::new(PacketRing::open(&interface, &options)?),
        FrameWay::Xdp(options) => Box::new(XdpSender::open(options)?),
    };
    let checks = checked.then(FrameChecks::default);
    frames.put(FramesHandle { sender, checks, reserved: None, committed: 0 });
    Ok(0)
}

fn prepare(frame: &mut [u8], gso_size: u32, header: &mut MaybeUninit<FrameHeader>) -> Result<c_int, Failure> {
    let Ok(size) = u16::try_from(gso_size) else {
        return wrong(format!("gso_size {gso_size}: at most 65535"));
    };
    let made = VnetHeader::prepare(frame, (size > 0).then_some(size))
        .map_err(|e| Failure::new(libc::EINVAL, e.to_string()))?;
    header.write(made.into());
    Ok(0)
}

fn ledger(
    frames: &FramesHandle,
    ledger: Out<'_, SendLedger>,
    dropped: Option<&mut MaybeUninit<u64>>,
) -> Result<c_int, Failure> {
    let t = frames.sender.counters().snapshot();
    ledger.write(&SendLedger::from(&t));
    dropped.map(|dropped| dropped.write(t.dropped_total()));
    Ok(0)
}

fn close(frames: Option<OwnedHandle<FramesHandle>>, limit: Duration) -> Result<(), Failure> {
    let Some(frames) = frames else { return Ok(()) };
    let mut frames = frames.take();
    if limit != Duration::ZERO {
        frames.drain(limit)?;
    }
    frames.settle();
    Ok(())
}
