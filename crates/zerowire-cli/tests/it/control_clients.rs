//! Clients of the control socket that stall, flood or may not ask, and who may.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::control::{Controlled, dial, say};
use crate::support::{Guest, Peer, Program, connect, in_netns, program_for_everybody, wait_until};
use zerowire_testkit::linger::send_lingering;
use zerowire_testkit::not_run;

/// More clients than there are places begin a request and say nothing more. Others are answered,
/// and a VM moves its frames.
#[test]
fn clients_that_stall_keep_nobody_out() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwstall");
        let mut guest = Guest::start(connect(&server.path("zwstall")));
        let mut peer = Peer::new("zwstall");
        let stalled: Vec<_> = (0..100)
            .map(|n| {
                let mut stream = dial(&server.control());
                let begin =
                    ["", "G", "GET /vms HTTP/1.1\r\n", "PUT /vms/a HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"];
                let _ = stream.write_all(begin[n % 4].as_bytes());
                stream
            })
            .collect();
        for _ in 0..10 {
            assert_eq!(server.names(), ["zwstall"]);
            guest.ping(&mut peer);
        }
        let [descriptors, threads, _] = server.holds();
        assert!(descriptors < 100 && threads < 100, "{descriptors} descriptors, {threads} threads");
        drop(stalled);
        guest.ping(&mut peer);
    });
}

/// One asks for statistics over and over and reads nothing; one sends what never ends.
#[test]
fn clients_that_flood_cost_themselves_only() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwflood");
        let mut guest = Guest::start(connect(&server.path("zwflood")));
        let mut peer = Peer::new("zwflood");
        let before = server.at_rest();
        let control = server.control();
        let flood = |request: &'static [u8], most: usize| {
            let mut stream = dial(&control);
            stream.set_write_timeout(Some(std::time::Duration::from_millis(100))).expect("a timeout");
            let mut sent = 0;
            while sent < most {
                match stream.write(request) {
                    Ok(count) if count > 0 => sent += count,
                    // The server reads no more, or has ended it.
                    _ => break,
                }
            }
            sent
        };
        assert!(flood(b"GET /stats HTTP/1.1\r\n\r\n", 64 << 20) < 64 << 20, "answers that nobody reads");
        assert!(flood(b"GET /stats?stream HTTP/1.1\r\n\r\n", 64 << 20) < 64 << 20, "behind a stream");
        assert!(flood(&[b'x'; 4096], 64 << 20) < 64 << 20, "a head without an end");
        assert!(flood(&[b'\n'; 4096], 64 << 20) < 64 << 20, "empty lines");
        let (status, _) = {
            let mut stream = dial(&control);
            let head = b"PUT /vms/huge HTTP/1.1\r\nContent-Length: 1073741824\r\n\r\n";
            stream.write_all(head).expect("sent");
            say(&mut stream, &[b' '; 1 << 20])
        };
        assert_eq!(status, 413);
        // Connections that end at once.
        for _ in 0..2000 {
            drop(UnixStream::connect(&control).expect("the control socket"));
        }
        assert_eq!(server.names(), ["zwflood"]);
        guest.ping(&mut peer);
        wait_until("nothing of them is left", || server.holds()[..2] == before[..2]);
        let (_, log) = server.program.stop();
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    });
}

/// To close a TCP socket with SO_LINGER takes as long as its sender has chosen.
#[test]
fn clients_can_send_no_descriptors() {
    let (pair, _other) = UnixStream::pair().expect("a pair");
    if zerowire_sys::socket::get_int(&pair, libc::SOL_SOCKET, zerowire_sys::socket::SO_PASSRIGHTS).is_err() {
        not_run("descriptors of control clients: this kernel has no SO_PASSRIGHTS: use Linux 6.16 or later");
        return;
    }
    let server = Controlled::start(&[]);
    let sent = send_lingering(dial(&server.control()), b"GET /vms HTTP/1.1\r\n\r\n");
    assert_eq!(sent.err(), Some(rustix::io::Errno::PERM));
    assert!(server.names().is_empty());
}

/// What the program prints as `user`, who has no groups but these.
fn as_user(program: &Path, user: u32, groups: &str, arguments: &[&str]) -> Output {
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let mut command = Command::new("setpriv");
    command.args(ids).arg(groups).arg(program).args(arguments);
    command.output().expect("setpriv (util-linux)")
}

#[test]
fn root_the_owner_and_the_group_may_manage_and_nobody_else() {
    const OWNER: u32 = 12_345;
    const GROUP: &str = "23456";
    const OTHER: u32 = 34_567;
    in_netns(|| {
        let (folder, zerowire) = program_for_everybody();
        let at = |name: &str| folder.path().join(name).display().to_string();
        // Whoever can connect is asked who they are all the same.
        let owner = OWNER.to_string();
        let control = at("control");
        let more = ["--control-owner", &owner, "--control-group", GROUP, "--control-mode", "0666"];
        let program = Program::net(&[&["--control", &control][..], &more].concat());
        program.wait_log("control socket at");
        let list = |user: u32, groups: &str| {
            as_user(&zerowire, user, groups, &["ctl", "--control", &control, "list"])
        };
        for (user, groups) in [(OWNER, ""), (OTHER, GROUP), (0, ""), (23_456, "")] {
            let output = list(user, groups);
            assert!(output.status.success(), "{user} {groups}: {output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "no VMs\n");
        }
        let output = list(OTHER, "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--control-owner and --control-group"), "{said}");
        // A socket like others lets nobody else connect.
        let program = {
            program.stop();
            Program::net(&["--control", &control])
        };
        program.wait_log("control socket at");
        let output = list(OWNER, GROUP);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Permission denied"), "{said}");
        program.stop();
    });
}

#[test]
fn a_control_socket_that_cannot_be_had_ends_the_start() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let control = server.control().display().to_string();
        for (arguments, code, words) in [
            (&["--control", &control][..], 1, "in use by a running process"),
            (&["--control", "/no/such/folder/s"], 1, "directory must exist"),
            (&["--control-mode", "0600", "--socket", "/tmp/zw"], 2, "--control <PATH>"),
            (&["--control", "/tmp/zw", "--control-mode", "rw"], 2, "octal"),
            (&["--control", "/tmp/zw", "--postcopy"], 2, "--postcopy with --control"),
            (&["--control", "/tmp/zw", "--guard", "vlan=off"], 2, "--guard needs --socket PATH or --fd N"),
            (&["--socket", "/tmp/zw", "--metrics", "localhost"], 2, "numeric HOST"),
            (&["--port", "tap:zw"], 2, "or --control PATH"),
        ] {
            let (got, _, log) = Program::run(arguments);
            assert_eq!(got, code, "{arguments:?}: {log}");
            assert!(log.contains(words), "{arguments:?}: {log}");
        }
        assert_eq!(server.names(), [""; 0], "the first one goes on");
    });
}
