use anyhow::{Error, anyhow};

use super::*;
use crate::stats::TripSample;
use crate::vsock::latency::{Latency, LatencyFacts};

const AT: NumberCell = NumberCell { axis: "len", value: 4096 };

fn part(failed: Option<Error>) -> Result<CellReport<Latency>> {
    let samples = vec![TripSample { p50_us: 4.0, p99_us: 9.0 }];
    part_cell(AT, LatencyFacts { trips: 7 }, None, [("zerowire".to_owned(), Runs { samples, failed })])
}

#[test]
fn a_part_is_one_list_of_lines_with_what_their_cells_have() {
    let json = flat(&[part(None).unwrap()], serde_json::value::Serializer).unwrap();
    let line = &json[0];
    assert_eq!((&line["len"], &line["trips"], &line["name"]), (&4096.into(), &7.into(), &"zerowire".into()));
    assert_eq!((&line["p50_us"]["median"], &line["p99_us"]["max"]), (&4.0.into(), &9.0.into()));
    assert_eq!(line["samples"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_variant_that_fails_is_named_with_its_cell() {
    let error = part(Some(anyhow!("lost a byte"))).unwrap_err();
    assert_eq!(format!("{error:#}"), "zerowire (len: 4096): lost a byte");
}

#[test]
fn there_is_no_title_without_a_table() {
    assert_eq!(titled::<Latency>("Round trips", &[], &[], 0), "");
    assert!(titled::<Latency>("Round trips", &[part(None).unwrap()], &[], 0).contains("\nRound trips:\n"));
}
