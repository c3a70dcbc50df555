//! Arguments of C that have their length beside them. SAFETY: as src/arguments.rs says.

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use zerowire::send::Segment;

use crate::arguments::{Argument, Call, check_size, null, write_sized};
use crate::failure::{Failure, wrong};
use crate::recv_types::{ARRIVAL_LEAST, RecvArrival};

/// Memory of C, and its length.
type Bytes = (*const c_void, usize);
/// The same, for writing.
type Room = (*mut c_void, usize);

/// Bytes that are read during the call.
impl<'call> Argument<'call, Bytes> for &'call [u8] {
    unsafe fn of((data, length): Bytes, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if data.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL, and by the module's contract readable.
        Ok(unsafe { std::slice::from_raw_parts(data.cast(), length.min(isize::MAX as usize)) })
    }
}

/// Room, which may be uninitialised.
impl<'call> Argument<'call, Room> for &'call mut [MaybeUninit<u8>] {
    unsafe fn of((data, length): Room, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if data.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL, and by the module's contract writable.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length.min(isize::MAX as usize)) })
    }
}

/// Bytes that are read and changed during the call.
impl<'call> Argument<'call, Room> for &'call mut [u8] {
    unsafe fn of((data, length): Room, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if data.is_null() {
            return Err(null(name));
        }
        check_length(data, length)?;
        // SAFETY: not NULL, and by the module's contract readable and writable.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) })
    }
}

/// Fails where there can be no such memory.
fn check_length(data: *const c_void, length: usize) -> Result<(), Failure> {
    if length <= isize::MAX as usize && (!data.is_null() || length == 0) {
        return Ok(());
    }
    wrong(format!("{length} bytes at {data:p}: no such memory"))
}

/// Memory that the program lends until its ticket is done.
impl<'call> Argument<'call, Bytes> for Segment {
    unsafe fn of((data, length): Bytes, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        check_length(data, length)?;
        if length == 0 {
            return Ok(Self::Static(&[]));
        }
        // SAFETY: the header asks for memory that is valid and unchanged until the loan ends. The
        // library drops the slice then, with its payload. 'static stands for that time: it has no
        // name in C.
        Ok(Self::Static(unsafe { std::slice::from_raw_parts(data.cast(), length) }))
    }
}

/// Pieces in one call. More than any system call takes; it bounds what a wrong count can do.
const MAX_PIECES: usize = 1 << 16;

/// Pieces of memory that is lent; the array itself is read during the call.
impl<'call> Argument<'call, (*const libc::iovec, usize)> for Vec<Segment> {
    unsafe fn of(
        (pieces, count): (*const libc::iovec, usize),
        name: &'static str,
        call: &'call Call,
    ) -> Result<Self, Failure> {
        if count > MAX_PIECES {
            return wrong(format!("{count} pieces: at most {MAX_PIECES} a call"));
        }
        if pieces.is_null() && count > 0 {
            return Err(null(name));
        }
        let mut total = 0usize;
        let mut segments = Self::with_capacity(count);
        for i in 0..count {
            // SAFETY: below count, and by the module's contract.
            let piece = unsafe { pieces.add(i).read() };
            let memory = (piece.iov_base.cast_const(), piece.iov_len);
            // SAFETY: passed on to the caller.
            segments.push(unsafe { Argument::of(memory, name, call) }?);
            total = total.saturating_add(piece.iov_len);
        }
        if total > isize::MAX as usize {
            return wrong(format!("pieces of {total} bytes: no such memory"));
        }
        Ok(segments)
    }
}

/// Room for a text. NULL is allowed.
pub(crate) struct TextRoom<'call> {
    to: *mut c_char,
    size: usize,
    call: PhantomData<&'call mut c_char>,
}

impl TextRoom<'_> {
    /// As snprintf: writes at most size - 1 bytes and a 0, and returns the whole length.
    pub(crate) fn print(self, text: &str) -> c_int {
        if !self.to.is_null() && self.size > 0 {
            let n = text.len().min(self.size - 1);
            // SAFETY: n + 1 bytes are within size, which the program has there.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.to.cast(), n);
                self.to.add(n).write(0);
            }
        }
        c_int::try_from(text.len()).unwrap_or(c_int::MAX)
    }
}

impl<'call> Argument<'call, (*mut c_char, usize)> for TextRoom<'call> {
    unsafe fn of((to, size): (*mut c_char, usize), _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        Ok(Self { to, size, call: PhantomData })
    }
}

/// An array of arrivals whose elements have the program's length. Empty for NULL.
pub(crate) struct ArrivalArray<'call> {
    at: *mut u8,
    /// Bytes of an element.
    size: usize,
    len: usize,
    call: PhantomData<&'call mut RecvArrival>,
}

impl ArrivalArray<'_> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes an element up to the program's length; fields that this library does not know become
    /// 0.
    ///
    /// # Panics
    /// `i` is beyond the array.
    pub(crate) fn write(&mut self, i: usize, value: &RecvArrival) {
        assert!(i < self.len, "element {i} of {}", self.len);
        // SAFETY: one of the elements, which the program has there.
        unsafe { write_sized(value, self.at.add(i * self.size), 0, self.size) };
    }

    /// The elements, which this library has written.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RecvArrival> {
        // SAFETY: one of the elements, each of which is given out once. None is shorter than the
        // type.
        (0..self.len).map(|i| unsafe { &mut *self.at.add(i * self.size).cast() })
    }
}

impl<'call> Argument<'call, (*mut RecvArrival, usize, usize)> for ArrivalArray<'call> {
    unsafe fn of(
        (arrivals, size, count): (*mut RecvArrival, usize, usize),
        _: &'static str,
        _: &'call Call,
    ) -> Result<Self, Failure> {
        check_size(size, ARRIVAL_LEAST, "zw_arrival", size_of::<RecvArrival>())?;
        let align = align_of::<RecvArrival>();
        if !size.is_multiple_of(align) {
            return wrong(format!("size {size}: an element has a multiple of {align} bytes"));
        }
        let len = if arrivals.is_null() { 0 } else { count };
        Ok(Self { at: arrivals.cast(), size, len, call: PhantomData })
    }
}

// `iter_mut` gives whole ones out.
const _: () = assert!(size_of::<RecvArrival>() == ARRIVAL_LEAST);
