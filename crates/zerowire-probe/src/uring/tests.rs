use super::super::CheckOutcome;
use super::*;

fn refused(errno: i32, disabled: Option<u8>, seccomp: bool) -> Finding {
    translate_setup(&Err(Refusal { errno, disabled, seccomp }))
}

#[test]
fn who_refuses_is_named_with_a_remedy() {
    for (errno, disabled, seccomp, found, remedy) in [
        (libc::EPERM, Some(2), false, "is 2", "io_uring_disabled=0"),
        (libc::EPERM, Some(1), true, "is 1", "io_uring_group"),
        (libc::EPERM, Some(0), true, "seccomp filter", "seccomp="),
        (libc::EACCES, None, false, "EACCES", "SELinux"),
        (libc::ENOSYS, None, false, "not there", "CONFIG_IO_URING"),
        (libc::ENOSYS, None, true, "not there", "filter"),
        (libc::ENOMEM, Some(0), false, "ENOMEM", "memory"),
        (libc::EMFILE, Some(0), false, "EMFILE", "open files"),
        (libc::EIO, Some(0), false, "failed", "strace"),
    ] {
        let f = refused(errno, disabled, seccomp);
        assert_eq!(f.outcome, CheckOutcome::Degraded);
        assert!(f.found.contains(found), "{f:?}");
        assert!(f.remedy.as_ref().is_some_and(|r| r.contains(remedy)), "{f:?}");
        assert!(f.consequence.contains("system calls"));
    }
}

#[test]
fn later_parts_degrade_alone() {
    assert_eq!(translate_defer(Some(true)).outcome, CheckOutcome::Ok);
    assert_eq!(translate_defer(Some(false)).outcome, CheckOutcome::Degraded);
    assert_eq!(translate_defer(None).found, UNTRIED);
}
