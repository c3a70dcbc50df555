//! What every command has in common: 2 for wrong arguments, and an end without a panic where nobody
//! reads.

use std::process::Command;

use zerowire_testkit::conventions::{fits_80_columns, refuses, refuses_with_tip, survives_closed_output};

fn zerowire(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(arguments);
    command
}

#[test]
fn wrong_arguments_end_with_2_and_name_the_remedy() {
    for (arguments, words) in [
        (&["nonsense"][..], "unrecognized subcommand"),
        (&["send", "--to", "10.0.0.2"], "HOST:PORT"),
        (&["send", "--to", "vsock:2"], "vsock:CID:PORT"),
        (&["send", "--to", "localhost:99999"], "\"99999\" is no number from 1 to 65535"),
        (&["send", "--to", "localhost:1", "--chunk", "0"], "--chunk 0"),
        (&["send", "--to", "localhost:1", "--timeout", "0"], "--timeout 0"),
        (&["send", "--to", "localhost:1", "--timeout", "1e300"], "--timeout 1e300 is no time to wait"),
        (&["recv", "-p", "0", "--timeout", "1e16"], "greater than 0, up to 10^15"),
        (&["send", "--to", "localhost:1", "--udp", "--datagram", "70000"], "65507"),
        (&["send", "--to", "localhost:1", "--udp", "--chunk", "9"], "--chunk 9 with --udp"),
        (&["send", "--to", "localhost:1", "--datagram", "9"], "--datagram 9 without --udp"),
        (&["send", "--to", "vsock:2:1", "--udp"], "leave --udp out"),
        (&["recv", "-p", "0", "--buffer-bytes", "1"], ""),
        (&["net"], "--socket PATH"),
        (&["net", "--socket", "/tmp/x", "--port", "eth0"], "tap:eth0, packet:eth0 or xdp:eth0"),
        (&["net", "--vm", "name=a,port=tap:t"], "socket=PATH is missing"),
        (&["net", "--socket", "/tmp/x", "--gather-max", "99999999"], "--gather-max 99999999"),
        (&["vsock"], "--cid N"),
        (&["vsock", "--socket", "/tmp/x"], "--uds PATH"),
        (&["vsock", "--vm", "name=a"], "socket=PATH is missing"),
        (
            &["vsock", "--cid", "3", "--socket", "/tmp/x", "--uds", "/tmp/y", "--peer-connections", "99999"],
            "99999 connections with one other guest",
        ),
    ] {
        refuses(&mut zerowire(arguments), words);
    }
}

#[test]
fn a_closed_standard_output_ends_no_program_with_a_panic() {
    for arguments in [&["doctor"][..], &["net", "--print-capabilities"], &["net", "--help"]] {
        survives_closed_output(&mut zerowire(arguments));
    }
}

/// The names below "Commands:" of a help page.
fn commands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| line.starts_with("  "));
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|n| !n.is_empty()));
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_help_page_fits_80_columns() {
    let mut pages = vec![Vec::<String>::new()];
    let mut seen = Vec::new();
    while let Some(page) = pages.pop() {
        for flag in ["--help", "-h"] {
            let words: Vec<_> = page.iter().map(String::as_str).chain([flag]).collect();
            let below = commands(&fits_80_columns(&mut zerowire(&words)));
            if flag == "--help" {
                pages.extend(below.into_iter().map(|name| [&page[..], &[name]].concat()));
            }
        }
        seen.push(page.join(" "));
    }
    for page in ["", "net", "vsock", "ctl", "ctl add", "send", "recv", "replay", "doctor"] {
        assert!(seen.iter().any(|s| s == page), "no help page of '{page}': {seen:?}");
    }
}

#[test]
fn what_is_printed_fits_80_columns() {
    fits_80_columns(&mut zerowire(&["doctor"]));
}

/// Under the names by which vhost-user JSON files start it.
#[test]
fn help_under_an_installed_name_is_that_of_the_command() {
    use std::os::unix::process::CommandExt;
    for name in ["net", "vsock"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        command.arg0(format!("/usr/libexec/zerowire-{name}")).arg("--help");
        let text = String::from_utf8(command.output().expect("the program starts").stdout).expect("UTF-8");
        assert!(text.contains(&format!("Usage: zerowire {name} [OPTIONS]")), "{text}");
    }
}

/// A tip names what is meant, or there is none.
#[test]
fn what_is_not_known_is_answered_with_what_is_meant() {
    for (arguments, tip) in [
        (&["nte"][..], Some("'net'")),
        (&["bench", "net", "--quick"], Some("'zerowire-bench net'")),
        (&["demo", "--mib", "1"], Some("'zerowire-demo --soft'")),
        (&["net", "--sokcet", "/tmp/x"], Some("'--socket'")),
        (&["net", "--pcap", "/tmp/x"], None),
        (&["nonsense"], None),
    ] {
        refuses_with_tip(&mut zerowire(arguments), tip);
    }
}
