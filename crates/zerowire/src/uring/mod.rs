//! What io_uring can do here, and what the `io-uring` crate does not name.

pub(crate) mod buffer_ring;
mod enter;
mod features;
mod mapping;
pub mod ring;
mod send_features;
pub mod sqe;
pub(crate) mod wide;
pub(crate) mod zcrx;

pub(crate) use features::refusal;
pub use features::{UringFeatures, UringProbeError, probe};
pub use send_features::{SendFeatures, send_features};

/// `RWF_NOWAIT` (include/uapi/linux/fs.h): a read or write that would block ends with EAGAIN at once,
/// where io_uring would otherwise arm a poll even on a file opened with `O_NONBLOCK`.
pub const RWF_NOWAIT: i32 = 0x8;

#[cfg(test)]
mod tests {
    use io_uring::{IoUring, opcode, types};
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    /// Both operations against a real file: the segments arrive in order, and a segment outside the
    /// registered buffer is refused by the kernel.
    #[test]
    fn vectored_fixed_io_moves_the_right_bytes() {
        let mut ring: IoUring = IoUring::new(4).expect("io_uring is needed for this test");
        if !super::probe().expect("probe").writev_fixed {
            panic!("this kernel has no WRITEV_FIXED (Linux 6.15): run the tests on a newer one");
        }
        let mut file =
            std::fs::File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let mut area = vec![0u8; 8192];
        area[100..104].copy_from_slice(b"head");
        area[5000..5004].copy_from_slice(b"tail");
        let base = area.as_mut_ptr();
        // SAFETY: area outlives the ring's use of it in this test.
        unsafe {
            ring.submitter()
                .register_buffers(&[libc::iovec { iov_base: base.cast(), iov_len: 8192 }])
                .unwrap();
        }
        ring.submitter().register_files(&[file.as_raw_fd()]).unwrap();
        let iov = [
            libc::iovec { iov_base: base.wrapping_add(100).cast(), iov_len: 4 },
            libc::iovec { iov_base: base.wrapping_add(5000).cast(), iov_len: 4 },
        ];
        let bad = [libc::iovec { iov_base: base.wrapping_add(8190).cast(), iov_len: 4 }];
        for (entry, want) in [
            (opcode::WritevFixed::new(types::Fixed(0), iov.as_ptr(), 2, 0).build(), 8),
            (opcode::WritevFixed::new(types::Fixed(0), bad.as_ptr(), 1, 0).build(), -libc::EFAULT),
        ] {
            // SAFETY: iovecs and area live until the completion is taken below.
            unsafe { ring.submission().push(&entry).unwrap() };
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().unwrap().result(), want);
        }
        let mut got = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"headtail");
        file.rewind().unwrap();
        file.write_all(b"ABCDEFGH").unwrap();
        file.rewind().unwrap();
        // SAFETY: as above.
        unsafe {
            ring.submission()
                .push(&opcode::ReadvFixed::new(types::Fixed(0), iov.as_ptr(), 2, 0).build())
                .unwrap();
        }
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 8);
        assert_eq!(&area[100..104], b"ABCD");
        assert_eq!(&area[5000..5004], b"EFGH");
    }
}
