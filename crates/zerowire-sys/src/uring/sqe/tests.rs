use super::*;

/// The crate's own builder is the reference wherever it can build the same entry.
#[test]
fn entries_equal_those_of_the_crate() {
    let data = [1u8; 8];
    // SAFETY: all zeros is a valid message header.
    let message: libc::msghdr = unsafe { std::mem::zeroed() };
    let fd = io_uring::types::Fd(7);
    let bytes = |e: squeue::Entry| -> [u8; 64] {
        // SAFETY: an entry is 64 bytes of integers.
        unsafe { std::mem::transmute(e) }
    };
    let pairs = [
        (
            send(Target::Fd(7), Loan::Copy, data.as_ptr(), 8, libc::MSG_WAITALL, 5),
            opcode::Send::new(fd, data.as_ptr(), 8).flags(libc::MSG_WAITALL).build().user_data(5),
        ),
        (
            send(
                Target::Fd(7),
                Loan::LendRegistered { report: true, buffer: 3 },
                data.as_ptr(),
                8,
                libc::MSG_WAITALL,
                5,
            ),
            opcode::SendZc::new(fd, data.as_ptr(), 8)
                .flags(libc::MSG_WAITALL)
                .buf_index(Some(3))
                .zc_flags(SEND_ZC_REPORT_USAGE)
                .build()
                .user_data(5),
        ),
        (
            sendmsg(Target::Fd(7), Loan::Lend { report: true }, &message, libc::MSG_WAITALL, 6),
            opcode::SendMsgZc::new(fd, &message)
                .ioprio(SEND_ZC_REPORT_USAGE)
                .flags(libc::MSG_WAITALL as u32)
                .build()
                .user_data(6),
        ),
        (
            sendmsg(Target::Registered(9), Loan::Copy, &message, 0, 6),
            opcode::SendMsg::new(io_uring::types::Fixed(9), &message).build().user_data(6),
        ),
    ];
    for (i, (own, reference)) in pairs.into_iter().enumerate() {
        assert_eq!(bytes(own), bytes(reference), "pair {i}");
    }
}
