//! Values that the kernel reads and writes as bytes.
//!
//! A structure of the kernel's interface is declared by [`plain!`], which checks that it has no
//! gaps. So code that makes such a structure, or reads one that the kernel filled in, is safe.

/// Any bytes are a value of the type, and none of its bytes is padding.
///
/// # Safety
/// That is so. [`plain!`] checks it for a structure.
pub unsafe trait PlainData: Sized + 'static {
    /// All bytes are 0.
    #[inline]
    fn zeroed() -> Self {
        // SAFETY: any bytes are a value.
        unsafe { std::mem::zeroed() }
    }

    /// The value that `bytes` begin with; None where there are too few.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: as many bytes as a value has, and any are one.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// The same bytes as another type.
#[inline]
pub(crate) fn cast<A: PlainData, B: PlainData>(value: A) -> B {
    const { assert!(size_of::<A>() == size_of::<B>()) };
    // SAFETY: as many bytes, none of them padding, and any are a value.
    unsafe { std::mem::transmute_copy(&value) }
}

/// Integers, and structures of other crates that hold nothing else.
macro_rules! integers {
    ($($type:ty),*) => {
        // SAFETY: integers without gaps, as the definitions say.
        $(unsafe impl PlainData for $type {})*
    };
}
integers!(u8, u16, u32, u64, usize, i16, i32, i64);
integers!(libc::sockaddr, libc::sockaddr_ll, libc::sockaddr_vm, libc::sock_extended_err);
integers!(libc::packet_mreq, libc::tpacket_auxdata, libc::tpacket_req, libc::tpacket_stats);
integers!(io_uring::squeue::Entry);

// SAFETY: there are no gaps between the elements of an array.
unsafe impl<T: PlainData, const N: usize> PlainData for [T; N] {}

/// Declares structures of the kernel's interface, laid out as in C.
macro_rules! plain {
    ($($(#[$attribute:meta])* $vis:vis struct $name:ident {
        $($(#[$field_attribute:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $vis struct $name {
            $($(#[$field_attribute])* $field_vis $field: $type),*
        }

        const _: () = {
            const fn is_plain<T: $crate::plain::PlainData>() {}
            $(is_plain::<$type>();)*
            assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "it has gaps");
        };

        // SAFETY: its fields are plain, and there are no gaps between them, as checked above.
        unsafe impl $crate::plain::PlainData for $name {}

        impl Default for $name {
            fn default() -> Self {
                $crate::plain::PlainData::zeroed()
            }
        }
    )*};
}
pub(crate) use plain;
