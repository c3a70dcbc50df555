use super::super::CheckOutcome;
use super::*;

#[test]
fn zcrx_by_what_the_kernel_answers() {
    let z = |nodev, device| translate_zcrx(Some((nodev, device)));
    assert_eq!(translate_zcrx(None).outcome, CheckOutcome::Missing);
    assert_eq!(z(Ok(()), Err(libc::ENODEV)).outcome, CheckOutcome::Ok);
    let old = z(Err(libc::EINVAL), Err(libc::ENODEV));
    assert_eq!(old.outcome, CheckOutcome::Degraded);
    assert!(old.remedy.is_some_and(|r| r.contains("7.1")));
    let user = z(Err(libc::EPERM), Err(libc::EPERM));
    assert!(user.remedy.is_some_and(|r| r.contains("CAP_NET_ADMIN")));
    assert_eq!(z(Err(libc::ENOMEM), Err(libc::ENODEV)).outcome, CheckOutcome::Degraded);
    assert_eq!(z(Err(libc::EINVAL), Err(libc::EINVAL)).outcome, CheckOutcome::Missing);
}

#[test]
fn more_areas_by_what_the_kernel_says() {
    assert_eq!(translate_areas(Some(true)).outcome, CheckOutcome::Ok);
    let old = translate_areas(Some(false));
    assert_eq!(old.outcome, CheckOutcome::Degraded);
    assert!(old.remedy.is_some_and(|r| r.contains("7.3")));
    let none = translate_areas(None);
    assert_eq!(none.outcome, CheckOutcome::Missing);
    assert!(none.remedy.is_some_and(|r| r.contains("zero-copy receive")));
}

#[test]
fn buffer_rings_by_errno() {
    assert_eq!(translate_buffers(Some(Ok(()))).outcome, CheckOutcome::Ok);
    assert!(translate_buffers(Some(Err(libc::EINVAL))).remedy.is_some_and(|r| r.contains("5.19")));
    assert_eq!(translate_buffers(None).outcome, CheckOutcome::Missing);
}
