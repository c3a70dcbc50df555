use super::super::CheckOutcome;
use super::*;

#[test]
fn versions_are_read() {
    assert_eq!(number("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright"), Some("7.2.22"));
    assert_eq!(number("QEMU emulator version 10.0.3\n"), Some("10.0.3"));
    assert_eq!(number("version unknown"), None);
    assert_eq!(number(""), None);
}

#[test]
fn each_qemu_has_its_advice() {
    let q = |v: Option<&str>| {
        translate_qemu(&[(PathBuf::from("/usr/bin/qemu-system-x86_64"), v.map(ToOwned::to_owned))])
    };
    assert_eq!(translate_qemu(&[]).outcome, CheckOutcome::Degraded);
    assert_eq!(q(Some("10.0.3")).outcome, CheckOutcome::Ok);
    assert!(q(Some("7.2.22")).remedy.is_some_and(|r| r.contains("vectors=0")));
    assert_eq!(q(None).outcome, CheckOutcome::Degraded);
}

#[test]
fn kvm_is_optional() {
    assert_eq!(translate_kvm(Ok(Kvm::Version(10))).outcome, CheckOutcome::Degraded);
    assert!(translate_kvm(Err(libc::ENOENT)).remedy.is_some_and(|r| r.contains("modprobe kvm")));
    assert!(translate_kvm(Err(libc::EACCES)).remedy.is_some_and(|r| r.contains("group kvm")));
}

#[test]
fn kvm_is_good_where_it_runs_a_guest_to_its_end() {
    let tried = |end| translate_kvm(Ok(Kvm::Tried(end)));
    assert_eq!(tried(Ok(5)).outcome, CheckOutcome::Ok);
    // KVM_EXIT_INTERNAL_ERROR: it had to emulate an instruction that it doesn't know.
    for end in [Ok(17), Ok(8), Err(libc::EINVAL)] {
        let finding = tried(end);
        assert_eq!(finding.outcome, CheckOutcome::Degraded, "{end:?}");
        assert!(finding.remedy.is_some_and(|r| r.contains("nested")), "{end:?}");
    }
}

/// Each machine has its answer, which is the same each time.
#[test]
fn a_guest_that_is_tried_ends() {
    let answer = || translate_kvm(try_kvm().map_err(errno::number)).found;
    assert_eq!(answer(), answer());
}
