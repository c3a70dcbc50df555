use super::super::CheckOutcome;
use super::*;

#[test]
fn the_limit_and_who_is_exempt_are_named() {
    let root = translate(TRIED_BYTES, 0, Some(8 << 20), true);
    assert_eq!(root.outcome, CheckOutcome::Ok);
    assert!(root.found.contains("8 MiB") && root.found.contains("CAP_IPC_LOCK"), "{root:?}");
    assert!(translate(TRIED_BYTES, 0, None, false).consequence.contains("any size"));
    assert!(translate(TRIED_BYTES, 0, Some(1 << 30), false).consequence.contains("1 GiB"));
}

#[test]
fn too_low_a_limit_has_a_remedy() {
    let user = translate(7 << 20, libc::ENOMEM, Some(8 << 20), false);
    assert_eq!(user.outcome, CheckOutcome::Degraded);
    assert!(user.found.starts_with("7 MiB of 64 MiB"), "{user:?}");
    assert!(user.remedy.is_some_and(|r| r.contains("LimitMEMLOCK") && r.contains("cap_ipc_lock")));
    let nested = translate(7 << 20, libc::ENOMEM, Some(8 << 20), true);
    assert!(nested.remedy.is_some_and(|r| r.contains("first user namespace")));
    let odd = translate(0, libc::EOPNOTSUPP, None, true);
    assert_eq!(odd.outcome, CheckOutcome::Degraded);
    assert!(odd.found.contains("EOPNOTSUPP"));
}

#[test]
fn huge_pages_are_optional() {
    assert_eq!(translate_huge(Ok(()), "4 of 4 free").outcome, CheckOutcome::Ok);
    for e in [libc::ENOMEM, libc::EINVAL, libc::EPERM] {
        let f = translate_huge(Err(e), "0 of 0 free");
        assert_eq!(f.outcome, CheckOutcome::Degraded);
        assert!(f.remedy.is_some());
    }
}

#[test]
fn post_copy_is_optional() {
    assert_eq!(translate_later(Ok(())).outcome, CheckOutcome::Ok);
    for (error, word) in [(libc::EPERM, "CAP_SYS_PTRACE"), (libc::ENOSYS, "CONFIG_USERFAULTFD")] {
        let f = translate_later(Err(error));
        assert_eq!(f.outcome, CheckOutcome::Degraded);
        assert!(f.remedy.is_some_and(|r| r.contains(word)));
    }
}
