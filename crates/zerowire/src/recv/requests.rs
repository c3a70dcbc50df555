//! The requests of a ring's connections: which are in the kernel, and which must start. Plain code
//! without I/O. A connection has at most one request in the kernel.

use super::core::RecvState;
use std::collections::VecDeque;

/// A connection's request, with a note of its back end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvRequest<T> {
    /// In the kernel, or handed over with the next call.
    pub(super) armed: bool,
    /// A cancellation is on its way.
    pub(super) cancelled: bool,
    /// In `waiting`, or in another queue of the back end.
    pub(super) queued: bool,
    pub(super) note: T,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requests<T> {
    /// By place.
    pub(super) all: Vec<RecvRequest<T>>,
    /// Connections whose request must start.
    pub(super) waiting: VecDeque<u32>,
    /// Requests in the kernel.
    pub(super) armed: usize,
}

impl<T: Copy + Default> Requests<T> {
    /// A connection was put at `place`.
    pub(super) fn add(&mut self, place: u32) {
        if self.all.len() <= place as usize {
            self.all.resize(place as usize + 1, RecvRequest::default());
        }
        self.queue(place);
    }

    /// The request of `place`, if it is in the kernel.
    #[inline]
    pub(super) fn armed(&mut self, place: u32) -> Option<&mut RecvRequest<T>> {
        self.all.get_mut(place as usize).filter(|r| r.armed)
    }

    /// Queues the start of the request of `place`, unless it is in the kernel.
    pub(super) fn queue(&mut self, place: u32) {
        if let Some(request) = self.all.get_mut(place as usize)
            && !request.armed
            && !request.queued
        {
            request.queued = true;
            self.waiting.push_back(place);
        }
    }

    /// The next connection whose request must start.
    pub(super) fn next(&mut self, core: &RecvState) -> Option<u32> {
        while let Some(place) = self.waiting.pop_front() {
            let Some(request) = self.all.get_mut(place as usize) else { continue };
            request.queued = false;
            if !request.armed && core.may_receive(place) {
                return Some(place);
            }
        }
        None
    }

    /// The request of `place` is being started.
    pub(super) fn arm(&mut self, place: u32, note: T) {
        if let Some(request) = self.all.get_mut(place as usize) {
            self.armed += usize::from(!request.armed);
            *request = RecvRequest { armed: true, note, ..RecvRequest::default() };
        }
    }

    /// It could not be handed over: it comes first the next time.
    pub(super) fn put_back(&mut self, place: u32) {
        if let Some(request) = self.all.get_mut(place as usize) {
            self.armed -= usize::from(std::mem::take(&mut request.armed));
            request.queued = true;
            self.waiting.push_front(place);
        }
    }

    /// It has ended. Its note, if it was in the kernel.
    #[inline]
    pub(super) fn end(&mut self, place: u32) -> Option<T> {
        let request = self.armed(place)?;
        (request.armed, request.cancelled) = (false, false);
        let note = request.note;
        self.armed -= 1;
        Some(note)
    }
}
