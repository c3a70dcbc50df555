use super::super::CheckOutcome;
use super::*;

#[test]
fn the_namespace_is_named() {
    let id = |own: &str, first: Option<&str>| {
        translate_identity(Some(own.to_owned()), first.map(ToOwned::to_owned)).found
    };
    assert_eq!(id(INITIAL, None), "net:[4026531833], the machine's first");
    assert_eq!(id("net:[5]", Some("net:[5]")), "net:[5], the same as process 1's");
    assert_eq!(id("net:[5]", Some("net:[6]")), "net:[5], not that of process 1");
    assert!(id("net:[5]", None).contains("can't be read"));
    assert_eq!(translate_identity(None, None).outcome, CheckOutcome::Degraded);
}

#[test]
fn a_missing_capability_has_its_remedy() {
    assert_eq!(translate_admin(Ok(()), true).outcome, CheckOutcome::Ok);
    let user = translate_admin(Err(libc::EPERM), false);
    assert_eq!(user.outcome, CheckOutcome::Missing);
    assert!(user.remedy.is_some_and(|r| r.contains("setcap") && r.contains("ip tuntap add")));
    let foreign = translate_admin(Err(libc::EPERM), true);
    assert_eq!(foreign.outcome, CheckOutcome::Missing);
    assert!(foreign.remedy.is_some_and(|r| r.contains("unshare")));
    assert_eq!(translate_admin(Err(libc::EAFNOSUPPORT), true).outcome, CheckOutcome::Degraded);
}

#[test]
fn namespaces_by_who_may_make_them() {
    let p = Err(libc::EPERM);
    assert_eq!(translate_unshare(Ok(()), Ok(())).outcome, CheckOutcome::Ok);
    assert_eq!(translate_unshare(p, Ok(())).outcome, CheckOutcome::Degraded);
    for (e, word) in
        [(libc::ENOSPC, "max_net"), (libc::EINVAL, "CONFIG_NET_NS"), (libc::EPERM, "CAP_SYS_ADMIN")]
    {
        let f = translate_unshare(p, Err(e));
        assert_eq!(f.outcome, CheckOutcome::Missing);
        assert!(f.remedy.is_some_and(|r| r.contains(word)), "{e}");
    }
}
