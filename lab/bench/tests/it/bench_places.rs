//! `zerowire-bench …`: a report that could not be written is refused before the measurement, which
//! takes minutes. That of vsock-rx is in bench_vsock_rx.rs.

use std::process::Command;

#[test]
fn places_that_can_not_be_written_are_refused_before_anything_is_measured() {
    // The shortest runs, for the case that they begin.
    for run in [
        &["net", "--quick", "--rounds", "1", "--floor-only", "--sizes", "64"][..],
        &["net", "--quick", "--rounds", "1", "--floor-only", "--sizes", "64", "--port", "packet"],
        &["vsock", "--quick", "--rounds", "1", "--floor-only", "--writes", "4096", "--no-extras"],
        &["packet-tx", "--quick", "--rounds", "1", "--floor-only", "--sizes", "1000", "--auto-sends", "0"],
        &["tcp-rx", "--quick", "--rounds", "1"],
    ] {
        for (place, error) in [
            (["--json", "/none/report"], "can't write /none/report"),
            (["--json", "/"], "can't write /"),
            (["--svg", "/dev/null/charts"], "can't make the folder /dev/null/charts"),
        ] {
            let out = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
                .args(run)
                .args(place)
                .output()
                .expect("the program starts");
            let log = String::from_utf8_lossy(&out.stderr);
            assert!(!out.status.success() && log.contains(error), "{run:?} {place:?}: {log}");
            // The report's text comes before its files.
            assert!(out.stdout.is_empty(), "{run:?} {place:?}: {}", String::from_utf8_lossy(&out.stdout));
        }
    }
}

/// Standard output is not a file: the program doesn't try to open it and needs no writable folder
/// for it.
#[test]
fn a_dash_is_no_place() {
    for run in [&["packet-tx"][..], &["tcp-rx"], &["net", "--floor-only"], &["vsock", "--floor-only"]] {
        let out = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
            .current_dir("/proc")
            .args(run)
            .args(["--json", "-", "--svg", "/dev/null/charts"])
            .output()
            .expect("the program starts");
        let log = String::from_utf8_lossy(&out.stderr);
        assert!(log.contains("can't make the folder /dev/null/charts"), "{run:?}: {log}");
    }
}

/// On a disk of one page, which the earlier result takes. Needs root, to mount it.
#[test]
fn a_result_without_room_leaves_the_earlier_one_as_it_is() {
    let disk = tempfile::tempdir().expect("a folder");
    let script = "mount -t tmpfs -o size=4k none \"$0\" && cd \"$0\" && echo earlier >report.json || exit 3
        \"$@\" --json report.json >/dev/null; status=$?; ls -A; cat report.json; exit $status";
    let table = "vsock-rx --table --floor-only -m 1 --rounds 1 --sizes 4096 --direction tx --working-set hot";
    let out = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(disk.path())
        .arg(env!("CARGO_BIN_EXE_zerowire-bench"))
        .args(table.split(' '))
        .output()
        .expect("unshare starts");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && log.contains("can't write"), "{}: {log}", out.status);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "report.json\nearlier\n");
}
