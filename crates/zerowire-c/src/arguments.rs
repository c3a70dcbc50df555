//! The border to C. [`exported!`] writes the functions of the interface, and [`Argument`] makes
//! safe types of what C passes, so that the rest of the library is safe code.
//!
//! SAFETY, for all of it: programs keep to the header. A handle is NULL, or came from this library
//! and was not closed. As many threads use it at a time as the header allows. Another pointer is
//! NULL, or valid for its type or for the length that is passed beside it, until the call ends.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use zerowire::recv::Dmabuf;
use zerowire::send::SocketError;

use crate::area::SendArea;
use crate::failure::{Failure, wrong};
use crate::frames_types::FramesOptions;
use crate::recv_shared::RecvDmabuf;
use crate::recv_types::{ReceiverOptions, RecvEvents};
use crate::send_types::{SendClosed, SendCompletion, SendLedger, SenderOptions};
use crate::types::{VsockOptions, VsockPacket};

/// Writes functions of the interface. Each is a prototype as C has it, with the documentation for
/// C, and the Rust function that does the work, or a closure in parentheses. That one takes an
/// [`Argument`] for each argument, or for several in brackets, and returns a `Result` of what
/// becomes the answer. A blank line stands between two of them, for tests/it/header.rs.
macro_rules! exported {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?
            = $($function:tt)::+($($passed:tt),*);
    )*) => { $(
        $(#[$documentation])*
        #[allow(clippy::missing_safety_doc, reason = "the header says what it asks for")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $answer)? {
            $crate::guard::guard(|| {
                let _call = $crate::arguments::Call::begin();
                $crate::arguments::function!($($function)::+)($($crate::arguments::argument!(_call, $passed)),*)
            })
        }
    )* };
}
pub(crate) use exported;

/// The function behind one of the interface, which an argument may have the name of.
macro_rules! function {
    (($($closure:tt)*)) => { ($($closure)*) };
    ($($name:ident)::+) => { self::$($name)::+ };
}
pub(crate) use function;

/// One argument of the function behind one of the interface.
macro_rules! argument {
    ($call:ident, [$first:ident $(, $other:ident)*]) => {
        // SAFETY: the program keeps to the header.
        unsafe {
            $crate::arguments::Argument::of(($first $(, $other)*), stringify!($first), &$call)?
        }
    };
    ($call:ident, $argument:ident) => {
        // SAFETY: the program keeps to the header.
        unsafe { $crate::arguments::Argument::of($argument, stringify!($argument), &$call)? }
    };
}
pub(crate) use argument;

/// A call of the interface: what is borrowed from C ends with it.
pub(crate) struct Call(());

impl Call {
    pub(crate) fn begin() -> Self {
        Self(())
    }
}

/// What a function of this library takes for `C`, which a program passes as `name`.
pub(crate) trait Argument<'call, C>: Sized {
    /// # Safety
    /// `from` is what the module and the header ask for.
    unsafe fn of(from: C, name: &'static str, call: &'call Call) -> Result<Self, Failure>;
}

pub(crate) fn null(what: &str) -> Failure {
    Failure::new(libc::EINVAL, format!("{what} is NULL"))
}

/// Arguments that are taken as they are.
macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl<'call> Argument<'call, $number> for $number {
            unsafe fn of(from: $number, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
                Ok(from)
            }
        }
    )* };
}
numbers!(c_int, u32, u64, usize);

/// Milliseconds; negative: no limit.
impl<'call> Argument<'call, c_int> for Option<Duration> {
    unsafe fn of(from: c_int, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        Ok(u64::try_from(from).ok().map(Duration::from_millis))
    }
}

/// The same.
impl<'call> Argument<'call, c_int> for Duration {
    unsafe fn of(from: c_int, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        Ok(u64::try_from(from).map_or(Self::MAX, Self::from_millis))
    }
}

impl<'call, T> Argument<'call, *const T> for &'call T {
    unsafe fn of(from: *const T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        // SAFETY: by the module's contract.
        unsafe { from.as_ref() }.ok_or_else(|| null(name))
    }
}

impl<'call, T> Argument<'call, *mut T> for &'call T {
    unsafe fn of(from: *mut T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        // SAFETY: by the module's contract.
        unsafe { from.as_ref() }.ok_or_else(|| null(name))
    }
}

/// For handles that one thread uses at a time.
impl<'call, T> Argument<'call, *mut T> for &'call mut T {
    unsafe fn of(from: *mut T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        // SAFETY: by the module's contract.
        unsafe { from.as_mut() }.ok_or_else(|| null(name))
    }
}

/// A result.
impl<'call, T> Argument<'call, *mut T> for &'call mut MaybeUninit<T> {
    unsafe fn of(from: *mut T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        // SAFETY: by the module's contract.
        unsafe { from.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| null(name))
    }
}

/// NULL is allowed.
impl<'call, T, A: Argument<'call, *const T>> Argument<'call, *const T> for Option<A> {
    unsafe fn of(from: *const T, name: &'static str, call: &'call Call) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        (!from.is_null()).then(|| unsafe { A::of(from, name, call) }).transpose()
    }
}

/// NULL is allowed.
impl<'call, T, A: Argument<'call, *mut T>> Argument<'call, *mut T> for Option<A> {
    unsafe fn of(from: *mut T, name: &'static str, call: &'call Call) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        (!from.is_null()).then(|| unsafe { A::of(from, name, call) }).transpose()
    }
}

/// One that may be wrong without the call failing for it.
impl<'call, C, A: Argument<'call, C>> Argument<'call, C> for Result<A, Failure> {
    unsafe fn of(from: C, name: &'static str, call: &'call Call) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        Ok(unsafe { A::of(from, name, call) })
    }
}

/// Where C wants a new handle.
pub(crate) struct NewHandle<'call, T>(&'call mut MaybeUninit<*mut T>);

impl<T> NewHandle<'_, T> {
    pub(crate) fn put(self, value: T) {
        self.0.write(Box::into_raw(Box::new(value)));
    }
}

impl<'call, T> Argument<'call, *mut *mut T> for NewHandle<'call, T> {
    unsafe fn of(from: *mut *mut T, name: &'static str, call: &'call Call) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        unsafe { Argument::of(from, name, call) }.map(Self)
    }
}

/// A handle that the call takes from C, if it succeeds.
pub(crate) struct OwnedHandle<T>(*mut T);

impl<T> OwnedHandle<T> {
    /// The value, while the handle may still be C's.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: by the module's contract, and no other thread uses what is being closed.
        unsafe { &mut *self.0 }
    }

    /// As [`Self::get_mut`], where other threads may use the handle as well.
    pub(crate) fn get(&self) -> &T {
        // SAFETY: by the module's contract.
        unsafe { &*self.0 }
    }

    /// The value, which C does not use again.
    pub(crate) fn take(self) -> Box<T> {
        // SAFETY: made by `NewHandle::put`, and not closed yet.
        unsafe { Box::from_raw(self.0) }
    }
}

impl<'call, T> Argument<'call, *mut T> for OwnedHandle<T> {
    unsafe fn of(from: *mut T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if from.is_null() { Err(null(name)) } else { Ok(Self(from)) }
    }
}

/// Ends a handle that has no other words to say. NULL is allowed.
pub(crate) fn close<T>(handle: Option<OwnedHandle<T>>) -> Result<(), Failure> {
    drop(handle.map(OwnedHandle::take));
    Ok(())
}

impl<'call> Argument<'call, *const c_char> for &'call CStr {
    unsafe fn of(from: *const c_char, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if from.is_null() {
            return Err(null(name));
        }
        // SAFETY: not NULL, and by the module's contract a string.
        Ok(unsafe { CStr::from_ptr(from) })
    }
}

/// Fails unless `fd` is open.
fn open(fd: c_int) -> Result<(), Failure> {
    match zerowire_sys::fd::is_open(fd) {
        true => Ok(()),
        false => Err(Failure::new(libc::EBADF, format!("{fd} is no open descriptor"))),
    }
}

impl<'call> Argument<'call, c_int> for BorrowedFd<'call> {
    unsafe fn of(from: c_int, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        open(from)?;
        // SAFETY: open, and the program leaves it so during the call.
        Ok(unsafe { BorrowedFd::borrow_raw(from) })
    }
}

/// A descriptor that C gives away, if the call succeeds.
pub(crate) struct GivenFd(c_int);

impl GivenFd {
    pub(crate) fn take(self) -> OwnedFd {
        // SAFETY: open, and the program gives it away.
        unsafe { OwnedFd::from_raw_fd(self.0) }
    }
}

impl<'call> Argument<'call, c_int> for GivenFd {
    unsafe fn of(from: c_int, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        open(from).map(|()| Self(from))
    }
}

/// Why a socket was not taken. Its descriptor is the program's again: it stays open.
pub(crate) fn kept<E: Into<Failure>>(refused: SocketError<E>) -> Failure {
    let _ = refused.socket.into_raw_fd();
    refused.error.into()
}

/// As [`GivenFd`], of a DMA buffer whose memory others leave alone.
pub(crate) struct GivenDmabuf(GivenFd);

impl GivenDmabuf {
    /// The buffer. After an error the descriptor is still the program's.
    pub(crate) fn take(self) -> Result<Dmabuf, Failure> {
        let number = self.0.0;
        let given = ManuallyDrop::new(self.0.take());
        // SAFETY: the header asks programs to leave the memory alone.
        let made = unsafe { Dmabuf::new(given.try_clone()?) }.map_err(|e| {
            let text = format!(
                "descriptor {number} is no DMA buffer ({e}): take one of /dev/udmabuf, of a DMA heap, or of a driver"
            );
            Failure::new(e.raw_os_error().unwrap_or(libc::EIO), text)
        })?;
        drop(ManuallyDrop::into_inner(given));
        Ok(made)
    }
}

impl<'call> Argument<'call, c_int> for GivenDmabuf {
    unsafe fn of(from: c_int, name: &'static str, call: &'call Call) -> Result<Self, Failure> {
        // SAFETY: passed on to the caller.
        unsafe { Argument::of(from, name, call) }.map(Self)
    }
}

/// A struct of integers and pointers whose first field is its size.
///
/// # Safety
/// That is so, and all zeros is a value of it.
unsafe trait SizedStruct: Copy {
    /// Its name in C.
    const NAME: &'static str;
}

macro_rules! sized_structs {
    ($($name:ident: $known:literal),* $(,)?) => {
        // SAFETY: as the types say; pointers may be null.
        $(unsafe impl SizedStruct for $name { const NAME: &'static str = $known; })*
    };
}
sized_structs! {
    FramesOptions: "zw_frames_options",
    ReceiverOptions: "zw_receiver_options",
    RecvEvents: "zw_recv_events",
    SendClosed: "zw_closed",
    SendCompletion: "zw_completion",
    SendLedger: "zw_ledger",
    SenderOptions: "zw_sender_options",
    VsockOptions: "zw_vsock_options",
    VsockPacket: "zw_packet",
}

/// The longest struct that C may pass, as the kernel has it for its own: a longer size was never
/// set.
const LONGEST: usize = 4096;

/// Checks the size that C gave for a struct.
pub(crate) fn check_size(size: usize, least: usize, name: &str, ours: usize) -> Result<(), Failure> {
    if (least..=LONGEST).contains(&size) {
        return Ok(());
    }
    let text = format!("size {size}: set it to sizeof(struct {name}), which is {ours} in this library");
    wrong(text)
}

/// Reads and checks the size of a struct.
///
/// # Safety
/// `from` is valid for reads of the first field.
unsafe fn size_of_c<T: SizedStruct>(from: *const T) -> Result<usize, Failure> {
    // SAFETY: the first field is the size.
    let size = unsafe { from.cast::<libc::size_t>().read() };
    check_size(size, size_of::<libc::size_t>(), T::NAME, size_of::<T>())?;
    Ok(size)
}

/// Options of C, and what their pointers stand for. Without options for NULL.
///
/// Later versions append fields, for which 0 is the default. The fields that a shorter struct lacks
/// are 0. Those of a longer one that this library does not know must be 0.
pub(crate) struct GivenOptions<'call, T> {
    read: Option<T>,
    call: PhantomData<&'call T>,
}

impl<T> GivenOptions<'_, T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.read.as_ref()
    }
}

impl<'call> GivenOptions<'call, ReceiverOptions> {
    /// The name of the interface; `None` for NULL.
    pub(crate) fn interface(&self) -> Option<&'call CStr> {
        let name = self.read.map(|o| o.interface).filter(|name| !name.is_null())?;
        // SAFETY: not NULL, and by the module's contract a string.
        Some(unsafe { CStr::from_ptr(name) })
    }

    pub(crate) fn dmabuf(&self) -> Option<&'call RecvDmabuf> {
        // SAFETY: NULL or a handle by the module's contract.
        self.read.and_then(|o| unsafe { o.dmabuf.as_ref() })
    }
}

impl<'call> GivenOptions<'call, SenderOptions> {
    /// The handles of the array; none for NULL.
    pub(crate) fn areas(&self) -> Result<Vec<&'call SendArea>, Failure> {
        let Some(o) = self.read.filter(|o| !o.areas.is_null()) else { return Ok(Vec::new()) };
        // SAFETY: the array has as many handles by the module's contract.
        let area = |i| unsafe { o.areas.add(i).read().as_ref() }.ok_or_else(|| null("an area"));
        (0..o.area_count).map(area).collect()
    }
}

impl<'call, T: SizedStruct> Argument<'call, *const T> for GivenOptions<'call, T> {
    unsafe fn of(from: *const T, _: &'static str, _: &'call Call) -> Result<Self, Failure> {
        let (ours, call) = (size_of::<T>(), PhantomData);
        if from.is_null() {
            return Ok(Self { read: None, call });
        }
        // SAFETY: by the module's contract.
        let size = unsafe { size_of_c(from) }?;
        for at in ours..size {
            // SAFETY: within the size that the program gave.
            if unsafe { from.cast::<u8>().add(at).read() } != 0 {
                let text = format!(
                    "struct {} of {size} bytes sets byte {at}, which this library does not know: its own has {ours} \
                     bytes; leave later fields at 0, or install a later library",
                    T::NAME
                );
                return Err(Failure::new(libc::E2BIG, text));
            }
        }
        let mut read = MaybeUninit::<T>::zeroed();
        // SAFETY: both have this length, and a local variable overlaps nothing of C.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), read.as_mut_ptr().cast(), size.min(ours)) };
        // SAFETY: zeros or the program's integers and pointers.
        Ok(Self { read: Some(unsafe { read.assume_init() }), call })
    }
}

/// Writes as much of a value as `size` bytes take, and zeros behind it; the first `skip` bytes stay
/// as they are.
///
/// # Safety
/// `to` is valid for writes of `size` bytes, which is at least `skip`.
pub(crate) unsafe fn write_sized<T>(value: &T, to: *mut u8, skip: usize, size: usize) {
    let known = size.min(size_of::<T>());
    let from: *const u8 = std::ptr::from_ref(value).cast();
    // SAFETY: within both by this function's contract, and the value is not C's.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(skip), to.add(skip), known - skip);
        to.add(known).write_bytes(0, size - known);
    }
}

/// A result: a struct of C whose size the program has set. Checked before there is a value.
pub(crate) struct Out<'call, T> {
    to: *mut T,
    size: usize,
    call: PhantomData<&'call mut T>,
}

impl<T> Out<'_, T> {
    /// Writes up to the program's size; fields that this library does not know become 0, and `size`
    /// stays.
    pub(crate) fn write(self, value: &T) {
        // SAFETY: by the module's contract; `of` has checked for a whole first field.
        unsafe { write_sized(value, self.to.cast(), size_of::<libc::size_t>(), self.size) };
    }
}

impl<'call, T: SizedStruct> Argument<'call, *mut T> for Out<'call, T> {
    unsafe fn of(from: *mut T, name: &'static str, _: &'call Call) -> Result<Self, Failure> {
        if from.is_null() {
            return Err(null(name));
        }
        // SAFETY: by the module's contract.
        let size = unsafe { size_of_c(from) }?;
        Ok(Self { to: from, size, call: PhantomData })
    }
}
