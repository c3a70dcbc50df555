//! Builds frames without a closure. The caller takes a place first, and commits it when the frame
//! in it is whole. This suits callers that make frames step by step, or code that knows nothing of
//! this library (C).

use std::os::fd::AsFd;
use std::time::Duration;

use super::frame::{FrameError, FrameSender};
use zerowire_wire::vnet::VnetHeader;

/// Where the next frame is built.
#[derive(Debug)]
pub struct FrameSlot<'a> {
    /// Which of the sender's places it is, from 0.
    pub number: usize,
    /// The bytes, of unspecified content (older frames), but for what was written there since the
    /// last [`InPlace::commit`].
    pub bytes: &'a mut [u8],
}

/// A sender whose places can be had before their frames are pushed. Its descriptor is for event
/// loops.
pub trait InPlace: FrameSender + AsFd {
    /// The place of the next frame, `len` bytes of it. None: no place is free; flush, reap, and try
    /// again.
    ///
    /// The place stays that of the next frame until the frame is pushed, whatever comes back
    /// meanwhile. A further call gives the same place with what was written there. Errors of
    /// `flush`, [`InPlace::wait`] and `drain` may make it another one.
    ///
    /// # Errors
    /// As those of [`FrameSender::push`] that are about the length. With offload the MTU is not
    /// checked: the kernel may cut the frame.
    fn reserve(&mut self, len: usize) -> Result<Option<FrameSlot<'_>>, FrameError>;

    /// Pushes the first `len` bytes of the reserved place as they lie there. `header` is
    /// [`VnetHeader::NONE`] without offload. False: no place is free, so none was given out.
    ///
    /// # Errors
    /// As `push`, and [`FrameError::BadOffload`].
    fn commit(&mut self, len: usize, header: &VnetHeader) -> Result<bool, FrameError>;

    /// Whether a frame of this place was pushed and is not back; what is back shows after a `reap`.
    fn is_out(&self, place: usize) -> bool;

    /// What lies in a place, `len` bytes of it; None while a frame of it is out.
    fn bytes(&mut self, place: usize, len: usize) -> Option<&[u8]>;

    /// Flushes, and waits until a place is free, `timeout` at the longest; returns whether one is.
    ///
    /// # Errors
    /// As `flush`.
    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError>;

    /// What runs, in words.
    fn path(&self) -> String;
}
