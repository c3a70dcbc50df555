//! man/zerowire.3 has each function of the header.
//!
//! `ZEROWIRE_UPDATE_MAN=1 cargo test -p zerowire-c --test it` writes it.

use std::path::PathBuf;

use zerowire_manual::{Files, compare, functions_page, warnings};

use crate::support::here;

const PAGE: &str = "zerowire.3";

/// The headings of the page, and how the names under them begin.
const GROUPS: &[(&str, &[&str])] = &[
    ("Version and errors", &["zw_version", "zw_last_error"]),
    ("Mapped receive", &["zw_vsock_", "zw_window_"]),
    ("Areas", &["zw_area_", "zw_lease_"]),
    ("Sending", &["zw_sender_", "zw_longest_segment", "zw_orphans"]),
    ("Whole frames", &["zw_frames_", "zw_vnet_"]),
    ("Receiving", &["zw_receiver_", "zw_arrival_", "zw_shared_", "zw_dmabuf_"]),
];

fn folder() -> PathBuf {
    here().join("../../man")
}

#[test]
fn the_page_has_each_function_of_the_header() {
    let header = std::fs::read_to_string(here().join("include/zerowire.h")).expect("the header");
    let about = "C library that sends and receives without copying";
    let page = functions_page("zerowire", about, env!("CARGO_PKG_VERSION"), &header, GROUPS);
    let page = page.unwrap_or_else(|e| panic!("{e}"));
    // Counted in another way than the page's maker reads them.
    let functions = header.lines().filter(|l| l.contains(" *zw_") || l.contains(" zw_")).filter(|l| {
        l.starts_with(|c: char| c.is_ascii_lowercase()) && !l.starts_with("typedef") && l.contains('(')
    });
    assert_eq!(page.matches("\n.TP\n").count(), functions.count());
    compare(&folder(), |name| name == PAGE, &Files::from([(PAGE.to_owned(), page)]))
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn man_shows_the_page_without_a_warning() {
    match warnings(&folder(), |name| name == PAGE).expect("pages") {
        Some(said) => assert_eq!(said, ""),
        None => {
            zerowire_testkit::not_run("manual pages: no man that shows pages is installed (Debian: man-db)")
        }
    }
}
