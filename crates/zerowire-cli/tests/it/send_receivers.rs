//! `zerowire send` to a receiver that knows nothing of it, ncat. Needs root, for a network of its
//! own, and ncat (`scripts/install.sh base`).

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::send::{file, pattern, spawn};
use zerowire_testkit::net::lab::in_lab;
use zerowire_testkit::wait_until;

/// Where ncat listens; nobody else does in this network.
const PORT: u16 = 5001;

/// ncat with its output in a file; killed when dropped.
struct Ncat(Child);

impl Ncat {
    /// Listens, over UDP or TCP, and is ready.
    fn start(protocol: &str, to: &Path) -> Self {
        let mut command = Command::new("ncat");
        command.args(["--listen", "--recv-only", "127.0.0.1", &PORT.to_string()]);
        if protocol == "udp" {
            command.arg("--udp");
        }
        command.stdin(Stdio::null()).stdout(File::create(to).unwrap());
        let child = command.spawn().unwrap_or_else(|e| panic!("ncat: {e}: install it (Debian: ncat)"));
        let sockets = format!("/proc/thread-self/net/{protocol}");
        // 127.0.0.1 as the kernel prints it on this machine, no peer, and the state. An earlier
        // connection that has ended may still be there with the same address.
        let state = if protocol == "tcp" { "0A" } else { "07" };
        let address = format!(" 0100007F:{PORT:04X} 00000000:0000 {state} ");
        wait_until("ncat to listen", || std::fs::read_to_string(&sockets).unwrap().contains(&address));
        Self(child)
    }
}

impl Drop for Ncat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends `bytes` bytes; returns what the program prints. All of it is in ncat's file then.
fn sends(protocol: &str, bytes: usize, args: &[&str]) -> String {
    let content = pattern(bytes);
    let from = file(&content);
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("received");
    let mut ncat = Ncat::start(protocol, &to);
    let peer = format!("127.0.0.1:{PORT}");
    let args = [&["--to", &peer, from.path().to_str().unwrap()], args].concat();
    let output = spawn(&args).wait_with_output().unwrap();
    let words =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {words}");
    match protocol {
        "tcp" => wait_until("ncat to end", || ncat.0.try_wait().unwrap().is_some()),
        _ => wait_until("all datagrams", || to.metadata().unwrap().len() >= bytes as u64),
    }
    assert!(std::fs::read(&to).unwrap() == content, "{args:?}: other bytes arrived");
    words
}

#[test]
fn ncat_gets_a_stream() {
    in_lab(|_| {
        for mode in ["copy", "zerocopy", "auto"] {
            let words = sends("tcp", 5_000_001, &["--mode", mode, "--chunk", "4096"]);
            // Which way was chosen, and why.
            let reasons = ["still being measured", "copying took", "the kernel copied what was lent"];
            let said = words.lines().any(|line| {
                line.contains("4096 to 8191 bytes: ") && reasons.iter().any(|reason| line.contains(reason))
            });
            assert_eq!(said, mode == "auto", "{words}");
        }
    });
}

#[test]
fn ncat_gets_datagrams() {
    in_lab(|_| {
        for mode in ["copy", "zerocopy", "auto"] {
            // Less than ncat's receive buffer holds.
            sends("udp", 60_007, &["--mode", mode, "--udp"]);
        }
    });
}
