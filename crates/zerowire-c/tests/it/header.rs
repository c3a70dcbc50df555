//! include/zerowire.h is what cbindgen makes of the sources, and C and C++ take it.
//!
//! `ZEROWIRE_UPDATE_HEADER=1 cargo test -p zerowire-c` writes it.

use std::io::Write;
use std::process::{Command, Stdio};

use zerowire_wire::mapped;

use crate::support::here;

/// In the order of the header.
const SOURCES: [&str; 13] = [
    "src/library.rs",
    "src/memory.rs",
    "src/types.rs",
    "src/vsock.rs",
    "src/area.rs",
    "src/send_types.rs",
    "src/send.rs",
    "src/send_report.rs",
    "src/frames_types.rs",
    "src/frames.rs",
    "src/recv_types.rs",
    "src/recv.rs",
    "src/recv_shared.rs",
];

/// A source as cbindgen reads it, which knows nothing of `exported!` (src/arguments.rs): with the
/// functions that the macro makes, without bodies.
fn expanded(source: &str) -> String {
    let mut parts = source.split("exported! {\n");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (functions, rest) = part.split_once("\n}\n").expect("the end of exported!");
        for function in functions.split("\n\n") {
            let (documentation, prototype) = function.split_once("\nfn ").expect("a documented function");
            let (prototype, _) = prototype.split_once(" = ").expect("what it calls");
            text += &format!(
                "{documentation}\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {prototype} {{}}\n\n"
            );
        }
        text += rest;
    }
    text
}

fn generate() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("cbindgen.toml");
    let folder = tempfile::tempdir().expect("a folder");
    // Files one by one: to find them by itself cbindgen would run cargo, which may want the
    // network.
    let builder = SOURCES.iter().fold(cbindgen::Builder::new(), |builder, source| {
        let text = std::fs::read_to_string(here().join(source)).expect("text");
        let path = folder.path().join(source.trim_start_matches("src/"));
        std::fs::write(&path, expanded(&text)).expect("written");
        builder.with_src(path)
    });
    let mut text = Vec::new();
    builder.with_config(config).generate().expect("sound sources").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn the_header_is_generated_from_the_sources() {
    let path = here().join("include/zerowire.h");
    let wanted = generate();
    if std::env::var_os("ZEROWIRE_UPDATE_HEADER").is_some_and(|v| v == "1") {
        std::fs::write(&path, &wanted).expect("written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    if header == wanted {
        return;
    }
    let different = header.lines().zip(wanted.lines()).position(|(a, b)| a != b);
    let line = different.unwrap_or_else(|| header.lines().count().min(wanted.lines().count()));
    panic!(
        "include/zerowire.h is not what the sources make, from line {} on (it has {:?}, they make {:?}): run \
         ZEROWIRE_UPDATE_HEADER=1 cargo test -p zerowire-c",
        line + 1,
        header.lines().nth(line),
        wanted.lines().nth(line)
    );
}

/// Each source file that C sees is among those above.
#[test]
fn no_source_is_left_out() {
    let files = std::fs::read_dir(here().join("src")).expect("a folder");
    // A folder beside a file has that file's unit tests.
    for path in files.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&path).expect("text");
        let known = SOURCES.iter().any(|source| path.ends_with(source));
        assert!(known || !text.contains("exported! {"), "{} is not in SOURCES", path.display());
    }
}

/// Compiles a program that consists of the header and these lines.
fn compiles(compiler: &str, arguments: &[&str], lines: &str) {
    let mut cc = Command::new(compiler)
        .args(arguments)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(here().join("include"))
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{compiler}: {e}: install a compiler (Debian: g++ and libc6-dev)"));
    // Twice: the guard holds.
    let program = format!("#include <zerowire.h>\n#include <zerowire.h>\n{lines}");
    cc.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("written");
    assert!(cc.wait().expect("ended").success(), "{compiler} {arguments:?}");
}

/// The examples include it, too.
#[test]
fn the_examples_are_c_and_c_plus_plus() {
    for name in ["recv_vsock", "send_file", "send_frames", "recv_sockets"] {
        let example =
            std::fs::read_to_string(here().join(format!("examples/c/{name}.c"))).expect("the example");
        compiles("cc", &["-std=c11", "-D_GNU_SOURCE", "-xc"], &example);
        compiles("c++", &["-std=c++17", "-xc++"], &example);
    }
}

/// The header alone, with its size checks; and its constants and sizes are those of the Rust
/// layout.
#[test]
fn the_header_agrees_with_the_layout() {
    let values = [
        ("ZW_MEMORY_VERSION", u64::from(mapped::VERSION)),
        ("ZW_PAGE", mapped::PAGE as u64),
        ("ZW_POLL_NOTHING", mapped::POLL_NOTHING.into()),
        ("ZW_POLL_DATA", mapped::POLL_DATA.into()),
        ("ZW_POLL_END", mapped::POLL_END.into()),
        ("ZW_ENTRY_EOM", mapped::ENTRY_EOM.into()),
        ("ZW_ENTRY_EOR", mapped::ENTRY_EOR.into()),
        ("ZW_ENTRY_DIRECT", mapped::ENTRY_DIRECT.into()),
        ("ZW_REGION_SHIFT", mapped::REGION_SHIFT.into()),
        ("sizeof(struct zw_window_header)", mapped::ENTRIES_AT as u64),
        ("sizeof(struct zw_entry)", mapped::ENTRY_LEN as u64),
        ("sizeof(struct zw_entry_offset)", mapped::ENTRY_LEN as u64),
        ("sizeof(struct zw_control)", mapped::PAGE as u64),
        ("offsetof(struct zw_control, program_sleeps)", mapped::PROGRAM_SLEEPS_AT as u64),
        ("offsetof(struct zw_control, daemon_waits)", mapped::DAEMON_WAITS_AT as u64),
        ("offsetof(struct zw_control, version)", mapped::VERSION_AT as u64),
        ("sizeof(struct zw_vsock_options)", size_of::<zerowire_c::VsockOptions>() as u64),
        ("sizeof(struct zw_packet)", size_of::<zerowire_c::VsockPacket>() as u64),
        ("sizeof(struct zw_sender_options)", size_of::<zerowire_c::SenderOptions>() as u64),
        ("sizeof(struct zw_frames_options)", size_of::<zerowire_c::FramesOptions>() as u64),
        ("sizeof(struct zw_vnet_header)", size_of::<zerowire_c::FrameHeader>() as u64),
        ("sizeof(struct zw_ledger)", size_of::<zerowire_c::SendLedger>() as u64),
        ("sizeof(struct zw_completion)", size_of::<zerowire_c::SendCompletion>() as u64),
        ("sizeof(struct zw_receiver_options)", size_of::<zerowire_c::ReceiverOptions>() as u64),
        ("sizeof(struct zw_arrival)", size_of::<zerowire_c::RecvArrival>() as u64),
        ("sizeof(struct zw_recv_events)", size_of::<zerowire_c::RecvEvents>() as u64),
        ("sizeof(struct zw_closed)", size_of::<zerowire_c::SendClosed>() as u64),
        // SAFETY: it takes nothing.
        ("ZW_LIBRARY_VERSION", unsafe { zerowire_c::zw_version() }.into()),
    ];
    for (compiler, arguments, assert) in
        [("cc", ["-std=c11", "-xc"], "_Static_assert"), ("c++", ["-std=c++11", "-xc++"], "static_assert")]
    {
        let lines = values.map(|(name, value)| format!("{assert}({name} == {value}u, \"{name}\");\n"));
        compiles(compiler, &arguments, &lines.concat());
    }
}
