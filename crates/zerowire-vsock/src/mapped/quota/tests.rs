use super::*;

#[test]
fn shares_of_all_vms_leave_half_of_what_the_process_may_have() {
    assert_eq!(share(65_530, u64::MAX, 1), 16_382);
    assert_eq!(share(65_530, 524_288, 256), 63);
    assert_eq!(share(65_530, 4096, 4), 170);
    assert_eq!(share(65_530, 1024, 256), LEAST_SHARE as usize);
    for vms in [1, 2, 7, 256] {
        let all = vms as u64 * share(65_530, 20_000, vms) as u64;
        assert!(2 * all <= 65_530 / 2 && 3 * all <= 20_000 / 2, "{all} of {vms} VMs");
    }
}

#[test]
fn each_bound_is_named_and_what_is_given_back_can_be_had_again() {
    let counters = Arc::<VsockCounters>::default();
    let options = MapOptions::default().windows(2).data_pages(1);
    let each = options.total_len();
    let claim = |most, bytes| MapClaim::new(&counters, &options, most, bytes);
    let first = claim(2, 3 * each).expect("the first one");
    let second = claim(2, 3 * each).expect("another one");
    let used = &counters.mapped;
    assert_eq!((used.connections(), used.windows(), used.bytes()), (2, 4, 2 * each));
    let text = claim(2, 3 * each).expect_err("too many");
    assert!(text.contains("2 of 2 mapped connections (--map-connections)"), "{text}");
    let text = claim(3, 3 * each - 1).expect_err("too large");
    let (named, most) = (format!("has {} of", 2 * each), format!("{} (--map-total)", 3 * each - 1));
    assert!(text.contains(&named) && text.contains(&most), "{text}");
    drop(first);
    let third = claim(2, 2 * each).expect("there is room again");
    drop((second, third));
    assert_eq!((used.connections(), used.windows(), used.bytes()), (0, 0, 0));
    let text = claim(0, each).expect_err("none at all");
    assert!(text.contains("0 of 0"), "{text}");
    // The handshake's text has 192 bytes.
    let text = MapClaim::new(&counters, &options.data_pages(4096), 1, 1 << 20);
    assert!(text.is_err_and(|t| t.len() < 180));
}
