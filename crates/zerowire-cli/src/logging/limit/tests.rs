use super::*;
use std::time::Duration;

#[test]
fn each_vm_has_its_rate_and_what_is_beyond_is_counted() {
    let (mut limits, now) = (Limits::default(), Instant::now());
    let mut admit = |of: &str, n: usize, at| (0..n).filter(|_| limits.admit(of, at) == Admitted::Yes).count();
    assert_eq!(admit("a", 1000, now), BURST as usize);
    assert_eq!(admit("b", 10, now), 10, "another VM's are not touched");
    assert_eq!(admit("a", 1000, now + Duration::from_secs(10)), 10 * RATE as usize);
    assert!(limits.has_suppressed);
    assert_eq!(limits.take_suppressed(), [("a".to_owned(), 2000 - 100 - 20)]);
    assert!(!limits.has_suppressed && limits.take_suppressed().is_empty());
}

#[test]
fn all_together_have_a_rate_too() {
    let (mut limits, now) = (Limits::default(), Instant::now());
    let mut admitted = 0;
    for vm in 0..2 * MOST {
        admitted += (0..50).filter(|_| limits.admit(&vm.to_string(), now) == Admitted::Yes).count();
    }
    assert_eq!(admitted, BURST_OF_ALL as usize);
    assert!(limits.of.len() <= MOST + 1, "{} names", limits.of.len());
    let suppressed: u64 = limits.take_suppressed().into_iter().map(|(_, n)| n).sum();
    assert_eq!(suppressed as usize + admitted, 2 * MOST * 50);
}
