//! man/ has a page for each command and one for the configuration file, and dist/completions what
//! shells complete. All of it is made of the text of `--help`.
//!
//! `ZEROWIRE_UPDATE_MAN=1 cargo test -p zerowire-cli --bins` writes it.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use zerowire_manual::{Key, KeyTable, Need, compare, completions, keys_page, pages, warnings};

use crate::{Cli, file};

const CONFIGURATION: &str = "zerowire.toml.5";

const ABOUT: &[&str] = &[
    "zerowire net --config FILE and zerowire vsock --config FILE read the virtual machines that they serve from one \
     file in TOML. Each machine is a [[vm]] with a name, and a table for each device that it has.",
    "A command serves the machines that have its table, skips the others, and checks all tables. It reads the file \
     at its start, and again on SIGHUP, from a regular file then. The file has at most 4 MiB. A key that is not known, a value of the wrong type, and a name, socket, port or address that \
     two machines have are errors that name the line or the machines; the exit status is 2.",
];

const EXAMPLE: &str = "\
[[vm]]
name = \"web\"
[vm.net]
socket = \"/run/web.sock\"
port = \"tap:web0,queues=2\"
metadata = \"/etc/zerowire/web.json\"
socket-owner = \"libvirt-qemu\"
[vm.vsock]
socket = \"/run/web.vsock.sock\"
cid = 3
uds = \"/run/web.vsock\"
groups = [\"default\"]";

const VM: &[Key] = &[Key {
    name: "name",
    value: "string",
    need: Need::Required,
    note: "No two machines with the same table have one name.",
}];

const fn string(name: &'static str, need: Need, note: &'static str) -> Key {
    Key { name, value: "string", need, note }
}

const NET: &[Key] = &[
    string("socket", Need::Required, ""),
    string("port", Need::Required, ""),
    string("metadata", Need::OrOption, ""),
    string("metadata-token", Need::OrOption, ""),
    string("mac", Need::Or("front ends that ask for the configuration are refused"), ""),
    string("guard", Need::Or("the guest may send any frame"), ""),
    string("tx-limit", Need::Or("no limit"), ""),
    string("rx-limit", Need::Or("no limit"), ""),
    string("socket-owner", Need::OrOption, "A number is a string, too: \"107\"."),
    string("socket-group", Need::OrOption, "A number is a string, too."),
    string("socket-mode", Need::OrOption, "A string: \"0660\"."),
];

const VSOCK: &[Key] = &[
    string("socket", Need::Required, ""),
    Key { name: "cid", value: "integer", need: Need::Required, note: "" },
    string("uds", Need::Required, ""),
    Key {
        name: "groups",
        value: "array of strings",
        need: Need::Or("the group \"default\""),
        note: "In the file it is an array: [\"A\", \"B\"].",
    },
    string("tx-limit", Need::Or("no limit"), ""),
    string("rx-limit", Need::Or("no limit"), ""),
    string("socket-owner", Need::OrOption, "A number is a string, too: \"107\"."),
    string("socket-group", Need::OrOption, "A number is a string, too."),
    string("socket-mode", Need::OrOption, "A string: \"0660\"."),
    string("uds-owner", Need::OrOption, "A number is a string, too."),
    string("uds-group", Need::OrOption, "A number is a string, too."),
    string("uds-mode", Need::OrOption, "A string: \"0666\"."),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// The files of the program, and not those of zerowire-bench or of the C library.
fn owns(name: &str) -> bool {
    let is_page = name == CONFIGURATION || name.ends_with(".1");
    let is_completion = ["zerowire.bash", "_zerowire", "zerowire.fish"].contains(&name);
    (is_page && !name.starts_with("zerowire-bench")) || is_completion
}

fn configuration() -> Result<String, String> {
    let mut program = Cli::command();
    program.build();
    let command = |name: &str| program.find_subcommand(name).cloned().unwrap_or_else(|| Command::new("none"));
    let (net, vsock) = (command("net"), command("vsock"));
    let about = "configuration file of zerowire net and zerowire vsock";
    let tables = [
        KeyTable { name: "[[vm]]", about: "A virtual machine.", command: &net, keys: VM },
        KeyTable {
            name: "[vm.net]",
            about: "Its network device, for zerowire net.",
            command: &net,
            keys: NET,
        },
        KeyTable {
            name: "[vm.vsock]",
            about: "Its vsock device, for zerowire vsock.",
            command: &vsock,
            keys: VSOCK,
        },
    ];
    keys_page("zerowire.toml", about, env!("CARGO_PKG_VERSION"), (ABOUT, EXAMPLE), &tables)
}

#[test]
fn pages_and_completions_are_made_of_the_help() {
    let mut wanted =
        pages(Cli::command(), &["zerowire-bench.1", CONFIGURATION, "zerowire.3"]).expect("pages");
    wanted.insert(CONFIGURATION.to_owned(), configuration().expect("an option for each key"));
    compare(&folder("man"), owns, &wanted).unwrap_or_else(|e| panic!("{e}"));
    let wanted = completions(Cli::command()).expect("text");
    compare(&folder("dist/completions"), owns, &wanted).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn man_shows_the_pages_without_a_warning() {
    match warnings(&folder("man"), owns).expect("pages") {
        Some(said) => assert_eq!(said, ""),
        None => {
            zerowire_testkit::not_run("manual pages: no man that shows pages is installed (Debian: man-db)")
        }
    }
}

#[test]
fn pages_name_pages_that_are_there() {
    let named = |word: &str| {
        let (name, section) = word.split_once('(')?;
        let section = section.split(')').next().filter(|section| section.len() == 1)?;
        let name = name.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        name.starts_with("zerowire").then(|| format!("{name}.{section}"))
    };
    let dir = folder("man");
    for file in std::fs::read_dir(&dir).expect("pages").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("a page");
        let text = text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        for page in text.split_whitespace().filter_map(named) {
            assert!(dir.join(&page).exists(), "{} names {page}", file.path().display());
        }
    }
}

/// What the parser says of a file with these lines.
fn said(lines: &str) -> String {
    match file::parse(lines, "a file", |vm| Some(vm.name)) {
        Ok(_) => String::new(),
        Err(e) => format!("{e:#}"),
    }
}

/// The keys that the parser takes in a table, of which `known` is one.
fn taken(table: &str) -> Vec<String> {
    let lines = match table {
        "vm" => "[[vm]]\nno-such-key = 1\n".to_owned(),
        table => format!("[[vm]]\nname = 'a'\n[{table}]\nno-such-key = 1\n"),
    };
    let error = said(&lines);
    let (_, keys) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{error}"));
    keys.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_page_has_the_keys_that_the_parser_takes() {
    let names = |keys: &[Key]| keys.iter().map(|key| key.name.to_owned()).collect::<Vec<_>>();
    let mut vm = names(VM);
    vm.extend(["net".to_owned(), "vsock".to_owned()]);
    assert_eq!(taken("vm"), vm);
    assert_eq!(taken("vm.net"), names(NET));
    assert_eq!(taken("vm.vsock"), names(VSOCK));
}

/// The lines of a table with the keys that the page calls required, but for `without`.
fn required(keys: &[Key], without: &str) -> String {
    let line = |key: &Key| match key.value {
        "integer" => format!("{} = 3\n", key.name),
        _ => format!("{} = 'a'\n", key.name),
    };
    let keys = keys.iter().filter(|key| key.need == Need::Required && key.name != without);
    keys.map(line).collect()
}

#[test]
fn a_table_must_have_the_keys_that_the_page_calls_required() {
    for (table, keys) in [("vm.net", NET), ("vm.vsock", VSOCK)] {
        let lines = |without: &str| format!("[[vm]]\nname = 'a'\n[{table}]\n{}", required(keys, without));
        assert_eq!(said(&lines("")), "", "{table}");
        for key in keys.iter().filter(|key| key.need == Need::Required) {
            let said = said(&lines(key.name));
            assert!(said.contains(&format!("missing field `{}`", key.name)), "{table}: {said}");
        }
    }
    assert!(said("[[vm]]\n[vm.net]\nsocket='a'\nport='a'\n").contains("missing field `name`"));
    assert_eq!(said(EXAMPLE), "");
}
