//! `zw-xdp`: a VM without a VMM inside a guest, on the guest's own interface by AF_XDP.
//!
//! ```text
//! zw-xdp own MODE INTERFACE huge|small
//! zw-xdp echo SOCKET PAIRS NAME
//! zw-xdp posts INTERFACE
//! zw-xdp dirty INTERFACE
//! zw-xdp cycles INTERFACE COUNT
//! zw-xdp send MODE INTERFACE
//! zw-xdp capture
//! zw-xdp as-user BYTES PROGRAM ARGUMENT…
//! ```
//! `own` and `echo` send back what comes from the wire's end, until the file of
//! `zerowire_vmtest::xdp::STOP` exists. `own` has a back end in this process, and the VM's memory
//! lies on huge pages or not. `echo` is the front end of another process, and its answers bear a
//! name of one byte. The line `ready` says that frames may come. `posts` asks the wire's end for
//! frames, and checks where they land in the VM's memory. `dirty` compares the dirty log with what
//! was written. `cycles` attaches and detaches COUNT times, and checks what is left. `send` sends
//! frames by itself, and changes some when they are on their way; then it says `changed`. `capture`
//! writes frames to a file, for `zerowire replay`. `as-user` becomes a program of an ordinary user
//! who may lock BYTES bytes. The last line is `ok …` or `failed: …`; the exit status is 0 or 1.

mod as_user;
mod back_end;
mod cycles;
mod dirty;
mod echo;
mod posts;
mod scene;
mod send;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use zerowire_vmtest::report;
use zerowire_vmtest::xdp::{CAPTURE, capture};

/// How long the program waits for a frame.
const PATIENCE: Duration = Duration::from_secs(30);

const USAGE: &str = "usage: zw-xdp own MODE INTERFACE huge|small, echo SOCKET PAIRS NAME, posts INTERFACE, \
                     dirty INTERFACE, cycles INTERFACE COUNT, send MODE INTERFACE, capture, or as-user BYTES PROGRAM ARGUMENT…";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    report(run(&words))
}

fn run(words: &[&str]) -> Result<String> {
    match words {
        ["own", mode, interface, pages] => echo::own(mode, interface, pages),
        ["echo", socket, pairs, name] => echo::on(socket, pairs, name),
        ["posts", interface] => posts::run(interface),
        ["dirty", interface] => dirty::run(interface),
        ["as-user", bytes, program @ ..] => as_user::run(bytes, program),
        ["cycles", interface, count] => cycles::run(interface, count),
        ["send", mode, interface] => send::run(mode, interface),
        ["capture"] => {
            std::fs::write(CAPTURE, capture()).with_context(|| format!("write {CAPTURE}"))?;
            Ok(CAPTURE.to_owned())
        }
        _ => bail!("{USAGE}"),
    }
}
