//! docs/ledger.md has each reason of the ledger, and no others.

use std::collections::BTreeSet;

use zerowire::ledger::{CopyReason, DropReason};

#[test]
fn the_page_has_each_reason_and_no_others() {
    let page = include_str!("../../../../docs/ledger.md");
    let (copied, dropped) = page.split_once("\n## Dropped\n").expect("two tables");
    let (_, copied) = copied.split_once("\n## Copied\n").expect("two tables");

    assert_eq!(rows(copied), CopyReason::ALL.iter().map(|reason| reason.name()).collect());
    assert_eq!(rows(dropped), DropReason::ALL.iter().map(|reason| reason.name()).collect());
}

#[test]
fn each_reason_is_in_snake_case() {
    let names = CopyReason::ALL.iter().map(|r| r.name()).chain(DropReason::ALL.iter().map(|r| r.name()));
    for name in names {
        let is_snake = name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
        assert!(is_snake && !name.is_empty(), "{name:?}");
    }
}

/// The names in the first column of a table.
fn rows(table: &str) -> BTreeSet<&str> {
    table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect()
}
