use super::super::CheckOutcome;
use super::*;

#[test]
fn a_device_that_does_not_open_has_a_remedy_by_cause() {
    assert_eq!(translate_device(Ok(())).outcome, CheckOutcome::Ok);
    for (e, word) in [
        (libc::ENOENT, "modprobe tun"),
        (libc::ENODEV, "CONFIG_TUN"),
        (libc::EPERM, "DeviceAllow"),
        (libc::EACCES, "chmod"),
    ] {
        let f = translate_device(Err(e));
        assert_eq!(f.outcome, CheckOutcome::Missing);
        assert!(f.remedy.is_some_and(|r| r.contains(word)), "{e}");
    }
}

#[test]
fn an_owned_tap_is_enough() {
    let tap = |made, own: &[&str]| {
        translate_tap(Ok(()), made, &own.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(tap(Ok(()), &[]).outcome, CheckOutcome::Ok);
    let owned = tap(Err(libc::EPERM), &["vm0"]);
    assert_eq!(owned.outcome, CheckOutcome::Degraded);
    assert!(owned.found.contains("vm0"));
    let none = tap(Err(libc::EPERM), &[]);
    assert_eq!(none.outcome, CheckOutcome::Missing);
    assert!(none.remedy.is_some_and(|r| r.contains("ip tuntap add")));
    assert_eq!(tap(Err(libc::EINVAL), &[]).outcome, CheckOutcome::Missing);
    assert_eq!(tap(Err(libc::EIO), &[]).outcome, CheckOutcome::Missing);
    assert_eq!(translate_tap(Err(libc::ENOENT), Err(0), &[]).outcome, CheckOutcome::Missing);
}

#[test]
fn what_needs_a_tap_says_when_there_was_none() {
    for f in [translate_queues(Err(libc::EPERM), Err(0)), translate_offloads(Err(libc::EPERM), &[])] {
        assert_eq!(f.outcome, CheckOutcome::Degraded);
        assert!(f.found.starts_with("not tried"));
    }
}

#[test]
fn later_parts_of_tun_degrade_alone() {
    assert_eq!(translate_queues(Ok(()), Err(libc::EINVAL)).outcome, CheckOutcome::Degraded);
    let all = ["csum", "tso4", "tso6", "ufo", "uso"];
    assert_eq!(translate_offloads(Ok(()), &all).outcome, CheckOutcome::Ok);
    let old = translate_offloads(Ok(()), &all[..4]);
    assert_eq!(old.outcome, CheckOutcome::Degraded);
    assert!(old.remedy.is_some_and(|r| r.contains("6.2")));
    assert!(translate_offloads(Ok(()), &[]).found.starts_with("none; not csum"));
}
