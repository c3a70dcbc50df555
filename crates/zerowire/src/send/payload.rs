//! What is sent.

use crate::area::{FileSlice, Frozen, Lease};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// One piece of memory that a sender may keep as long as the kernel reads it. None of them moves
/// its bytes when the segment itself is moved.
#[derive(Debug)]
pub enum Segment {
    /// Memory that lives as long as the program.
    Static(&'static [u8]),
    /// An owned buffer.
    Vec(Vec<u8>),
    /// A shared read-only buffer.
    Bytes(Bytes),
    /// A shared read-only buffer.
    Shared(Arc<[u8]>),
    /// A buffer of an area; it goes back there when the kernel has done with it.
    Lease(Lease),
    /// A part of a shared buffer of an area. The range is cut to the buffer's length.
    Frozen(Frozen, Range<usize>),
    /// A part of a mapped file.
    File(FileSlice),
}

impl Segment {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::File(f) => f.len(),
            _ => self.bytes().map_or(0, <[u8]>::len),
        }
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, unless they are a file's. Another process may cut a file off at any time, so only
    /// the kernel or [`FileSlice::read_at`] reads its bytes.
    pub fn bytes(&self) -> Option<&[u8]> {
        Some(match self {
            Self::Static(b) => b,
            Self::Vec(b) => b,
            Self::Bytes(b) => b,
            Self::Shared(b) => b,
            Self::Lease(b) => b,
            Self::Frozen(b, r) => {
                let end = r.end.min(b.len());
                &b[r.start.min(end)..end]
            }
            Self::File(_) => return None,
        })
    }

    /// Where the bytes lie, for the kernel.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        match self {
            Self::File(f) => f.as_ptr(),
            _ => self.bytes().map_or(std::ptr::null(), <[u8]>::as_ptr),
        }
    }

    /// Appends the bytes behind the first `from` to `out`.
    fn gather(&self, from: usize, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::File(f) => {
                let at = out.len();
                out.resize(at + f.len() - from, 0);
                f.read_at(from, &mut out[at..])
            }
            _ => {
                out.extend_from_slice(self.bytes().and_then(|b| b.get(from..)).unwrap_or(&[]));
                Ok(())
            }
        }
    }
}

/// A segment that several payloads have a part of.
enum SharedSegment {
    Static(&'static [u8]),
    Bytes(Bytes),
    Frozen(Frozen, Range<usize>),
    File(FileSlice),
}

impl SharedSegment {
    fn of(segment: Segment) -> Self {
        match segment {
            Segment::Static(b) => Self::Static(b),
            Segment::Vec(b) => Self::Bytes(b.into()),
            Segment::Bytes(b) => Self::Bytes(b),
            Segment::Shared(b) => Self::Bytes(Bytes::from_owner(b)),
            Segment::Lease(b) => Self::of(b.freeze().into()),
            Segment::Frozen(b, r) => {
                let end = r.end.min(b.len());
                Self::Frozen(b, r.start.min(end)..end)
            }
            Segment::File(f) => Self::File(f),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Static(b) => b.len(),
            Self::Bytes(b) => b.len(),
            Self::Frozen(_, r) => r.len(),
            Self::File(f) => f.len(),
        }
    }

    /// A part, which lies within it.
    fn part(&self, range: Range<usize>) -> Segment {
        match self {
            Self::Static(b) => Segment::Static(&b[range]),
            Self::Bytes(b) => Segment::Bytes(b.slice(range)),
            Self::Frozen(b, r) => Segment::Frozen(b.clone(), r.start + range.start..r.start + range.end),
            Self::File(f) => Segment::File(f.part(range)),
        }
    }
}

#[derive(Debug)]
enum PayloadParts {
    One(Segment),
    Many(Vec<Segment>),
}

/// One datagram, one message, or a run of bytes of a stream: one segment, held without an
/// allocation, or several.
#[derive(Debug)]
pub struct Payload {
    parts: PayloadParts,
    len: usize,
}

impl Payload {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte. An empty payload is an empty datagram, and nothing on a stream.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its segments, in order.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        match &self.parts {
            PayloadParts::One(s) => std::slice::from_ref(s),
            PayloadParts::Many(s) => s,
        }
    }

    /// Changes the bytes behind `offset`. False: they are not those of one owned buffer or lease.
    #[cfg(feature = "testing")]
    pub(crate) fn scribble(&mut self, mut offset: usize, bytes: &[u8]) -> bool {
        let segments = match &mut self.parts {
            PayloadParts::One(s) => std::slice::from_mut(s),
            PayloadParts::Many(s) => s,
        };
        for segment in segments {
            if offset >= segment.len() {
                offset -= segment.len();
                continue;
            }
            let memory = match segment {
                Segment::Vec(b) => &mut b[offset..],
                Segment::Lease(b) => &mut b[offset..],
                _ => return false,
            };
            let room = memory.get_mut(..bytes.len());
            return room.map(|to| to.copy_from_slice(bytes)).is_some();
        }
        false
    }

    /// Cuts it into payloads of `bytes` bytes each, the last of which may be shorter, without
    /// copying. `bytes` of 0 or of its length leave it whole.
    pub fn split(self, bytes: usize) -> Vec<Payload> {
        if bytes == 0 || self.len <= bytes {
            return vec![self];
        }
        let mut all = Vec::with_capacity(self.len.div_ceil(bytes));
        let (mut open, mut room) = (Vec::new(), bytes);
        for segment in self.into_segments() {
            let shared = SharedSegment::of(segment);
            let mut at = 0;
            while at < shared.len() {
                let n = room.min(shared.len() - at);
                open.push(shared.part(at..at + n));
                (at, room) = (at + n, room - n);
                if room == 0 {
                    all.push(Self::of(std::mem::take(&mut open)));
                    room = bytes;
                }
            }
        }
        if !open.is_empty() {
            all.push(Self::of(open));
        }
        all
    }

    fn of(mut segments: Vec<Segment>) -> Self {
        match (segments.len(), segments.pop()) {
            (1, Some(one)) => one.into(),
            (_, last) => segments.into_iter().chain(last).collect(),
        }
    }

    /// Its segments, to use them again.
    pub fn into_segments(self) -> Vec<Segment> {
        match self.parts {
            PayloadParts::One(s) => vec![s],
            PayloadParts::Many(s) => s,
        }
    }

    /// Fills `out` with the addresses of the bytes behind the first `from`, at most `max_bytes` of
    /// them in at most `max_segments` pieces. Empty segments are left out. Returns how many bytes
    /// that is.
    pub(crate) fn iovecs(
        &self,
        mut from: usize,
        max_bytes: usize,
        max_segments: usize,
        out: &mut Vec<libc::iovec>,
    ) -> usize {
        out.clear();
        let mut total = 0;
        for s in self.segments() {
            let len = s.len();
            if from >= len {
                from -= len;
                continue;
            }
            if out.len() == max_segments || total == max_bytes {
                break;
            }
            let n = (len - from).min(max_bytes - total);
            out.push(libc::iovec { iov_base: s.as_ptr().wrapping_add(from).cast_mut().cast(), iov_len: n });
            total += n;
            from = 0;
        }
        total
    }

    /// The bytes behind the first `from`, copied into one buffer. An error when a mapped file has
    /// become shorter.
    pub(crate) fn gather(&self, mut from: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.len.saturating_sub(from));
        for s in self.segments() {
            let len = s.len();
            if from >= len {
                from -= len;
                continue;
            }
            s.gather(from, &mut out)?;
            from = 0;
        }
        Ok(out)
    }
}

macro_rules! from_one {
    ($($t:ty => $v:ident),*) => {$(
        impl From<$t> for Segment {
            fn from(b: $t) -> Self {
                Self::$v(b)
            }
        }
        impl From<$t> for Payload {
            #[inline]
            fn from(b: $t) -> Self {
                Segment::$v(b).into()
            }
        }
    )*};
}
from_one!(&'static [u8] => Static, Vec<u8> => Vec, Bytes => Bytes, Arc<[u8]> => Shared, Lease => Lease, FileSlice => File);

impl From<Frozen> for Segment {
    fn from(b: Frozen) -> Self {
        let all = 0..b.len();
        Self::Frozen(b, all)
    }
}

impl From<Frozen> for Payload {
    fn from(b: Frozen) -> Self {
        Segment::from(b).into()
    }
}

impl From<Segment> for Payload {
    #[inline]
    fn from(s: Segment) -> Self {
        let len = s.len();
        Self { parts: PayloadParts::One(s), len }
    }
}

impl From<Vec<Segment>> for Payload {
    fn from(s: Vec<Segment>) -> Self {
        let len = s.iter().map(Segment::len).sum();
        Self { parts: PayloadParts::Many(s), len }
    }
}

impl FromIterator<Segment> for Payload {
    fn from_iter<T: IntoIterator<Item = Segment>>(iter: T) -> Self {
        Vec::from_iter(iter).into()
    }
}

#[cfg(test)]
mod tests;
