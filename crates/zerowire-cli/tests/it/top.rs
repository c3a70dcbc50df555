//! `zerowire top`: what it prints, and what it does with a terminal. Needs root, for a network of
//! its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use rustix::termios::{LocalModes, OutputModes, tcgetattr};
use serde_json::Value;

use crate::support::control::Controlled;
use crate::support::{Guest, Peer, connect, in_netns, wait_until};
use zerowire_testkit::own_process;
use zerowire_testkit::terminal::terminal;

fn command(server: &Controlled, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.arg("top").arg("--control").arg(server.control()).args(arguments);
    command.env_remove("ZEROWIRE_LOG").stdin(Stdio::null());
    command
}

fn ended(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

/// What it prints; it must succeed.
fn said(server: &Controlled, arguments: &[&str]) -> String {
    let output = ended(&mut command(server, arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_table_shows_what_moved_meanwhile() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let none = ["--once", "--interval", "0.1"];
        assert_eq!(said(&server, &none), "no VMs\n");
        server.add("zwtop");
        server.add("zwtop-idle");
        let table = said(&server, &none);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("name       state   tx frames tx Gb/s rx frames"), "{table}");
        assert!(lines[1].starts_with("zwtop      waiting "), "{table}");
        assert_eq!(lines.len(), 3, "{table}");

        let mut guest = Guest::start(connect(&server.path("zwtop")));
        let mut peer = Peer::new("zwtop");
        let mut during = |arguments: &[&str]| {
            let mut child = command(&server, arguments).stdout(Stdio::piped()).spawn().expect("it starts");
            while child.try_wait().expect("its status").is_none() {
                guest.ping(&mut peer);
            }
            let output = child.wait_with_output().expect("its output");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let line: Value =
            serde_json::from_str(&during(&["--json", "--once", "--interval", "0.5"])).expect("JSON");
        assert!(line["interval_seconds"].as_f64().is_some_and(|s| s >= 0.5), "{line}");
        let (moving, idle) = (&line["vms"][0], &line["vms"][1]);
        assert_eq!((&moving["name"], &moving["state"]), (&"zwtop".into(), &"connected".into()));
        for direction in ["transmit", "receive"] {
            for figure in ["frames_per_second", "bytes_per_second"] {
                assert!(
                    moving[direction][figure].as_f64().is_some_and(|rate| rate > 0.0),
                    "{figure}: {line}"
                );
            }
        }
        // A third of the frames from the guest are long, and sent as they lie.
        let share = moving["zero_copied_ratio"].as_f64().expect("a share");
        assert!(0.0 < share && share < 1.0, "{line}");
        assert_eq!((&idle["zero_copied_ratio"], &idle["reason"]), (&Value::Null, &Value::Null));
        let reason = moving["reason"].as_str().expect("a reason");
        let table = during(&["--once", "--interval", "0.5", "--sort", "transmit"]);
        let row = table.lines().nth(1).expect("a row");
        assert!(
            row.starts_with("zwtop      connected ") && row.ends_with(&format!(" % {reason}")),
            "{table}"
        );
        assert!(table.lines().nth(2).is_some_and(|row| row.ends_with(" - -")), "{table}");
    });
}

#[test]
fn lines_of_json_come_until_the_server_ends() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwtoplines");
        let mut child = command(&server, &["--json", "--interval", "0.1"]);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        for line in lines.take(3) {
            let rates: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            assert_eq!(rates["vms"][0]["transmit"]["frames_per_second"], 0.0);
        }
        server.program.stop();
        let output = child.wait_with_output().expect("its output");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    });
}

#[test]
fn what_can_not_be_shown_has_a_reason_and_a_status() {
    let program = || Command::new(env!("CARGO_BIN_EXE_zerowire"));
    for (arguments, code, words) in [
        (&["--control", "/no/such/socket"][..], 1, "no server can be reached at /no/such/socket"),
        (&["--interval", "0"], 2, "give seconds, 0.1 to 3600"),
        (&["--sort", "size"], 2, "size"),
    ] {
        let output = ended(program().arg("top").args(arguments).stdin(Stdio::null()));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

/// Whether a terminal waits for whole lines, echoes them and translates ends of lines.
fn is_cooked(terminal: &OwnedFd) -> bool {
    let settings = tcgetattr(terminal).expect("its settings");
    settings.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
        && settings.output_modes.contains(OutputModes::OPOST)
}

/// The program on a terminal.
struct OnTerminal {
    child: Child,
    keyboard: File,
    there: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(server: &Controlled) -> Self {
        let (here, there) = terminal(120);
        assert!(is_cooked(&there), "the settings of a new terminal");
        let of_child = || there.try_clone().expect("a descriptor");
        let mut command = command(server, &["--interval", "0.1"]);
        let child = command.stdin(of_child()).stdout(of_child()).spawn().expect("the program starts");
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let (to, mut from) = (shown.clone(), here.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                to.lock().expect("bytes").extend_from_slice(&buffer[..n]);
            }
        });
        Self { child, keyboard: here, there, shown }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("bytes")).into_owned()
    }

    /// Waits until it has shown this, and takes all that was shown.
    fn wait_for(&self, words: &str) -> String {
        wait_until(words, || self.text().contains(words));
        let shown = std::mem::take(&mut *self.shown.lock().expect("bytes"));
        String::from_utf8_lossy(&shown).into_owned()
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("keys");
    }

    /// Waits for its end, after which the terminal must be as before.
    fn ends(mut self) {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.text());
        assert!(is_cooked(&self.there), "the terminal has its settings again");
        wait_until("its screen again", || self.text().ends_with("\x1b[?25h\x1b[?1049l"));
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_terminal_shows_vms_follows_keys_and_is_given_back() {
    own_process!();
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwtoptty");
        let mut top = OnTerminal::start(&server);
        let shown = top.wait_for("zwtoptty waiting");
        assert!(shown.starts_with("\x1b[?1049h\x1b[?25l"), "{shown:?}");
        assert!(!is_cooked(&top.there), "keys come at once");
        top.press("\r");
        top.wait_for("bytes copied: none");
        top.press("\x1b");
        top.wait_for("zwtoptty waiting");
        let _guest = Guest::start(connect(&server.path("zwtoptty")));
        top.wait_for("zwtoptty connected");
        top.press("q");
        top.ends();

        // A signal ends it as well, also when the server is gone.
        let top = OnTerminal::start(&server);
        top.wait_for("zwtoptty connected");
        server.program.stop();
        top.wait_for("trying again");
        // SAFETY: the child has not been waited for, so that the id is still its own.
        assert_eq!(unsafe { libc::kill(top.child.id() as i32, libc::SIGTERM) }, 0);
        top.ends();
    });
}
