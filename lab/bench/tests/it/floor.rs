//! The floor on real taps in a namespace of its own. Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN,
//! CAP_NET_RAW) or a user namespace; without them it fails and says so.

use zerowire_bench::case::WorkingSet;
use zerowire_bench::{NetOptions, run_net};

#[test]
fn every_frame_of_every_direction_and_length_is_accounted_for() {
    let options = NetOptions {
        quick: true,
        rounds: Some(1),
        sizes: vec![64, 1500, 9000, 60_000],
        working_sets: vec![WorkingSet::Hot],
        bare_calls: true,
        ..Default::default()
    };
    let mut text = Vec::new();
    // A lost or a stray frame voids a run, which is an error here.
    let report = run_net(&options, &mut text).unwrap();
    assert_eq!(report.cases.len(), 8);
    assert!(report.failures().is_empty());
    for case in &report.cases {
        assert_eq!(["floor", "bare calls"], [0, 1].map(|index| case.lines[index].variant.as_str()));
        for variant in &case.lines {
            assert_eq!(variant.samples[0].frames, case.facts.frames as u64);
            assert!(variant.spread("cpu_ns_per_frame").unwrap().median > 0.0);
        }
    }
    assert!(String::from_utf8(text).unwrap().contains("rx 60000 B hot"));
}

#[test]
fn wrong_options_are_refused_before_anything_is_made() {
    let refused = |options: NetOptions| run_net(&options, &mut Vec::new()).unwrap_err().to_string();
    let zero = NetOptions { rounds: Some(0), ..Default::default() };
    assert!(refused(zero).contains("at least 1"));
    let long = NetOptions { sizes: vec![70_000], ..Default::default() };
    assert!(refused(long).contains("70000"));
    let many = NetOptions { vms: vec![65], ..Default::default() };
    assert!(refused(many).contains("65"));
}
