//! Submission queue entries for READV_FIXED and WRITEV_FIXED.

use io_uring::{opcode, squeue::Entry, types};

/// `IORING_OP_READV_FIXED` (include/uapi/linux/io_uring.h, since Linux 6.15).
pub(super) const OP_READV_FIXED: u8 = 60;
/// `IORING_OP_WRITEV_FIXED` (include/uapi/linux/io_uring.h, since Linux 6.15).
pub(super) const OP_WRITEV_FIXED: u8 = 61;

/// `RWF_NOWAIT` (include/uapi/linux/fs.h): a read or write that would block ends with EAGAIN at once,
/// where io_uring would otherwise arm a poll even on a file opened with `O_NONBLOCK`.
pub const RWF_NOWAIT: i32 = 0x8;

/// Byte offset of `opcode` in `struct io_uring_sqe`.
const SQE_OPCODE: usize = 0;
/// Byte offset of `buf_index` in `struct io_uring_sqe`.
const SQE_BUF_INDEX: usize = 40;

/// Turns a vectored entry into its fixed-buffer twin: the same layout with another opcode and a buffer index
/// (io_uring/rw.c, `io_prep_readv_fixed`, `io_prep_writev_fixed`).
fn make_fixed(entry: Entry, op: u8, buf_index: u16) -> Entry {
    const { assert!(size_of::<Entry>() == 64) };
    // SAFETY: Entry is a transparent wrapper of the 64-byte `struct io_uring_sqe`, plain integers for which
    // every bit pattern is valid; the size is asserted above.
    let mut raw: [u8; 64] = unsafe { std::mem::transmute(entry) };
    raw[SQE_OPCODE] = op;
    raw[SQE_BUF_INDEX..SQE_BUF_INDEX + 2].copy_from_slice(&buf_index.to_ne_bytes());
    // SAFETY: as above, in the other direction.
    unsafe { std::mem::transmute::<[u8; 64], Entry>(raw) }
}

/// A vectored read on the registered file `file` into segments that all lie inside registered buffer
/// `buf_index`. The iovec array and the memory must stay valid until the completion.
pub fn readv_fixed(
    file: types::Fixed,
    iov: *const libc::iovec,
    len: u32,
    buf_index: u16,
    rw_flags: i32,
) -> Entry {
    make_fixed(opcode::Readv::new(file, iov, len).rw_flags(rw_flags).build(), OP_READV_FIXED, buf_index)
}

/// A vectored write on the registered file `file` from segments that all lie inside registered buffer
/// `buf_index`. The iovec array and the memory must stay valid until the completion.
pub fn writev_fixed(
    file: types::Fixed,
    iov: *const libc::iovec,
    len: u32,
    buf_index: u16,
    rw_flags: i32,
) -> Entry {
    make_fixed(opcode::Writev::new(file, iov, len).rw_flags(rw_flags).build(), OP_WRITEV_FIXED, buf_index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::IoUring;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    /// Both operations against a real file: the segments arrive in order, and a segment outside the
    /// registered buffer is refused by the kernel.
    #[test]
    fn vectored_fixed_io_moves_the_right_bytes() {
        let mut ring: IoUring = IoUring::new(4).expect("io_uring is needed for this test");
        if !super::super::probe().expect("probe").writev_fixed {
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
            (writev_fixed(types::Fixed(0), iov.as_ptr(), 2, 0, 0), 8),
            (writev_fixed(types::Fixed(0), bad.as_ptr(), 1, 0, 0), -libc::EFAULT),
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
            ring.submission().push(&readv_fixed(types::Fixed(0), iov.as_ptr(), 2, 0, 0)).unwrap();
        }
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 8);
        assert_eq!(&area[100..104], b"ABCD");
        assert_eq!(&area[5000..5004], b"EFGH");
    }
}
