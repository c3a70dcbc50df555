//! What every benchmark has in common: 2 for wrong arguments, help pages that fit, and an end
//! without a panic where nobody reads.

use std::process::Command;

use zerowire_testkit::conventions::{fits_80_columns, refuses, refuses_with_tip, survives_closed_output};

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"));
    command.args(arguments);
    command
}

#[test]
fn wrong_arguments_end_with_2_and_name_the_remedy() {
    for (arguments, words) in [
        (&["net", "--sizes", "1"][..], "frame length 1"),
        (&["net", "--rounds", "0"], "0 rounds"),
        (&["net", "--direction", "up"], "up"),
        (&["net", "--port", "xdp", "--vms", "2"], "--vms is for taps"),
        (&["vsock", "--writes", "0"], "choose 1 to"),
        (&["vsock", "--program", "zerowire"], "give NAME=PATH"),
        (&["vsock", "--program", "a=/none"], "there is no such file"),
        (&["net", "--program", "a=/none", "--floor-only"], "cannot be used with"),
        (&["net", "--gate", "2"], "--program <NAME=PATH>"),
        (&["vsock", "--program", "a=/none", "--gate", "2000"], "choose 0 to 1000"),
        (&["tcp-rx", "--rounds", "0"], "0 rounds"),
        (&["ab", "/old", "/new"], "COMMAND"),
        (&["ab", "/old", "/new", "--rounds", "0", "--", "tcp-rx"], "0 rounds"),
        (&["packet-tx", "--sizes", "0"], "choose 1 to"),
        (&["peers", "--rounds", "0"], "0 rounds"),
        (&["peers", "--parts", "disk"], "[possible values: net, udp, vsock, replay, tcp]"),
        (&["peers", "--parts", "tcp,tcp"], "tcp is given twice"),
        (&["peers", "--peer", "iperf3"], "give NAME=PATH"),
        (&["peers", "--peer", "qemu=/proc/self/exe"], "no peer 'qemu'"),
        (&["peers", "--peer", "iperf3=/none"], "there is no such file"),
    ] {
        refuses(&mut bench(arguments), words);
    }
}

/// A tip names what is meant.
#[test]
fn what_is_not_known_is_answered_with_what_is_meant() {
    for (arguments, tip) in [(&["nte"][..], "'net'"), (&["packettx"], "'packet-tx'")] {
        refuses_with_tip(&mut bench(arguments), Some(tip));
    }
}

#[test]
fn a_closed_standard_output_ends_it_without_a_panic() {
    survives_closed_output(&mut bench(&["net", "--help"]));
}

/// Of each command's own rounds, and of nothing that it doesn't have.
#[test]
fn the_help_of_vsock_is_about_vsock() {
    let output = bench(&["vsock", "--help"]).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("[default: 9, with --quick 3]"), "{text}");
    for foreign in ["--idle-vms", " tap", "other ports"] {
        assert!(!text.contains(foreign), "{foreign}: {text}");
    }
}

#[test]
fn each_help_page_fits_80_columns() {
    for page in ["", "net", "vsock", "vsock-rx", "packet-tx", "tcp-rx", "peers", "ab"] {
        for flag in ["--help", "-h"] {
            let words: Vec<_> = [page, flag].into_iter().filter(|word| !word.is_empty()).collect();
            fits_80_columns(&mut bench(&words));
        }
    }
}

/// Also where all of it moves: the figures mean nothing.
#[test]
fn a_build_without_optimisation_says_so() {
    for arguments in ["tcp-rx --rounds 0", "vsock-rx -s -b 0 --uds /none", "packet-tx --sizes 65001"] {
        let out = bench(&arguments.split(' ').collect::<Vec<_>>()).output().expect("the program starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(said.contains("this build is not optimised"), cfg!(debug_assertions), "{said}");
    }
}
