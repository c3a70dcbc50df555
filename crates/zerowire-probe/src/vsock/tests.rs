use super::super::CheckOutcome;
use super::*;

#[test]
fn the_device_needs_memory_and_unix_sockets() {
    assert_eq!(translate_memory(Ok(())).outcome, CheckOutcome::Ok);
    let none = translate_memory(Err(libc::EPERM));
    assert_eq!(none.outcome, CheckOutcome::Missing);
    assert!(none.remedy.is_some_and(|r| r.contains("memfd_create")));
    assert_eq!(translate_unix(Ok(()), Ok(())).outcome, CheckOutcome::Ok);
    let streams = translate_unix(Ok(()), Err(libc::EPROTONOSUPPORT));
    assert_eq!(streams.outcome, CheckOutcome::Degraded);
    assert!(streams.found.contains("EPROTONOSUPPORT"), "{streams:?}");
    let none = translate_unix(Err(libc::EAFNOSUPPORT), Err(libc::EAFNOSUPPORT));
    assert_eq!(none.outcome, CheckOutcome::Missing);
    assert!(none.remedy.is_some_and(|r| r.contains("RestrictAddressFamilies")));
}

#[test]
fn a_thousand_connections_are_asked_for() {
    assert_eq!(translate_descriptors(None).outcome, CheckOutcome::Ok);
    assert_eq!(translate_descriptors(Some(1064)).outcome, CheckOutcome::Ok);
    let low = translate_descriptors(Some(1063));
    assert_eq!(low.outcome, CheckOutcome::Degraded);
    assert!(low.found.starts_with("999 to host programs"), "{low:?}");
    assert!(low.remedy.is_some_and(|r| r.contains("LimitNOFILE")));
    assert!(translate_descriptors(Some(10)).found.starts_with("0 to host programs"));
}

#[test]
fn sealed_memory_by_errno() {
    assert_eq!(translate_sealed(Ok(())).outcome, CheckOutcome::Ok);
    let refused = translate_sealed(Err(libc::EPERM));
    assert_eq!(refused.outcome, CheckOutcome::Missing);
    assert!(refused.consequence.contains("unix sockets alone"), "{refused:?}");
    assert!(translate_sealed(Err(libc::EINVAL)).remedy.is_some_and(|r| r.contains("5.1")));
    assert!(translate_sealed(Err(libc::EACCES)).remedy.is_some_and(|r| r.contains("memfd_noexec")));
}

#[test]
fn sockets_matter_only_in_a_guest() {
    assert_eq!(translate_socket(Ok(())).outcome, CheckOutcome::Ok);
    let none = translate_socket(Err(libc::EAFNOSUPPORT));
    assert_eq!(none.outcome, CheckOutcome::Degraded);
    assert!(none.found.contains("EAFNOSUPPORT"));
    assert_eq!(translate_zerocopy(Ok(())).outcome, CheckOutcome::Ok);
    assert!(translate_zerocopy(Err(libc::EOPNOTSUPP)).remedy.is_some_and(|r| r.contains("6.7")));
}
