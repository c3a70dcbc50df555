use super::*;

#[test]
fn what_is_given_back_can_be_had_again() {
    let budget = PinBudget::new(100);
    let first = budget.claim(60).expect("within the budget");
    let error = budget.claim(41).expect_err("too much");
    assert_eq!((error.need_bytes, error.limit_bytes, error.used_bytes), (41, 100, 60));
    assert_eq!((error.enough_bytes, error.shares), (Some(101), Shares::None));
    assert!(error.to_string().contains("raise it to 101"), "{error}");
    let second = budget.claim(40).expect("exactly what is left");
    assert_eq!(budget.used(), 100);
    drop(first);
    assert_eq!(budget.used(), 40);
    budget.limit(10);
    assert!(budget.claim(1).is_err(), "more is in use than there may be");
    drop(second);
    assert!(budget.claim(u64::MAX).is_err() && budget.claim(10).is_ok());
    assert_eq!(budget.used(), 0);
}

#[test]
fn each_vm_has_its_share_whoever_comes_first() {
    let budget = PinBudget::new(100);
    budget.share_among(3, 2);
    let a = budget.claim_part(10, 1000).expect("a share");
    assert_eq!(a.bytes(), 33);
    // The third VM, which takes all or nothing, leaves the others' shares alone.
    assert!(budget.claim(35).is_err());
    let whole = budget.claim(34).expect("what is left");
    assert!(budget.claim(1).is_err());
    let b = budget.claim_part(10, 20).expect("less than its share");
    assert_eq!((b.bytes(), budget.used()), (20, 87));
    let error = budget.claim_part(34, 34).expect_err("more than its share");
    assert_eq!(error.need_bytes, 34);
    drop((a, b, whole));
    assert_eq!(budget.used(), 0);
    budget.share_among(1, 0);
    assert!(budget.claim(100).is_ok());
}

#[test]
fn without_a_bound_each_has_what_it_wants() {
    let budget = PinBudget::new(u64::MAX);
    budget.share_among(2, 2);
    assert_eq!(budget.claim_part(1, 1 << 40).expect("all of it").bytes(), 1 << 40);
    assert!(budget.claim(1 << 40).is_ok());
}

/// With the budget that an error names the same claim succeeds.
fn is_enough(
    vms: usize,
    parts: usize,
    limit: u64,
    whole: u64,
    claim: impl Fn(&PinBudget) -> Option<OverBudget>,
) -> String {
    let budget = PinBudget::new(limit);
    budget.share_among(vms, parts);
    let _held = (whole > 0).then(|| budget.claim(whole).expect("within the budget"));
    let error = claim(&budget).expect("too much");
    assert_eq!(error.limit_bytes, limit);
    let enough = error.enough_bytes.expect("some budget does");
    budget.limit(enough);
    assert_eq!(claim(&budget), None, "{error}");
    error.to_string()
}

#[test]
fn an_error_names_the_budget_that_would_do() {
    // Eight VMs of which each needs a quarter of the budget.
    let part = is_enough(8, 8, 10_000_000, 0, |b| b.claim_part(2_700_000, 20_000_000).err());
    for word in
        ["is 10000000 bytes", "0 are in use", "1250000 are each VM's share", "raise it to 21600000, or"]
    {
        assert!(part.contains(word), "no '{word}' in {part}");
    }
    assert!(!part.contains("pin=partial"), "the VM has that: {part}");
    let whole = is_enough(3, 2, 100, 20, |b| b.claim(21).err());
    for word in
        ["is 100 bytes", "20 are in use", "66 are the shares", "raise it to 123, give the port pin=partial"]
    {
        assert!(whole.contains(word), "no '{word}' in {whole}");
    }
    is_enough(7, 3, 1000, 0, |b| b.claim(777).err());
    is_enough(1, 0, 1000, 999, |b| b.claim(2).err());
    is_enough(2, 1, 1000, 400, |b| b.claim_part(700, 700).err());
}

#[test]
fn no_budget_does_where_all_is_shared() {
    let budget = PinBudget::new(100);
    budget.share_among(2, 2);
    let error = budget.claim(10).expect_err("all of it is shared");
    assert_eq!(error.enough_bytes, None);
    assert!(error.to_string().contains("partial; give the port pin=partial, or use"), "{error}");
}
