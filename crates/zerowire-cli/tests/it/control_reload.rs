//! SIGHUP reads the configuration file again and changes what differs.

use std::path::Path;
use std::time::Duration;

use zerowire_testkit::fuse::FuseFile;

use crate::support::control::Controlled;
use crate::support::modes::{Mode, in_both_modes};
use crate::support::processes::{child_of, kill};
use crate::support::{
    Guest, Peer, Program, Restrict, connect, file_of_vms, frames, in_netns, interface, wait_until,
};

/// A file with VMs, each with its own lines.
fn file(dir: &Path, vms: &[(&str, &str)]) -> String {
    file_of_vms(dir, vms, "")
}

#[test]
fn a_file_that_is_read_again_changes_what_differs() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let config = file(dir.path(), &[("zwkept", ""), ("zwgone", ""), ("zwmac", "")]);
        let program = Program::net(&["--config", &config]);
        program.wait_log("zwmac: listening");
        let mut guest = Guest::start(connect(&dir.path().join("zwkept")));
        let mut peer = Peer::new("zwkept");

        file(dir.path(), &[("zwkept", ""), ("zwmac", "mac = '52:54:00:00:00:01'"), ("zwnew", "")]);
        program.signal(libc::SIGHUP);
        program.wait_log("read again; added: zwnew; removed: zwgone; removed and added again: zwmac");
        assert!(interface("zwgone").is_none() && !dir.path().join("zwgone").exists());
        drop(Guest::start(connect(&dir.path().join("zwnew"))));
        guest.ping(&mut peer);

        // A bad file changes nothing, and says why.
        for (refused, (name, bad, words)) in (1..).zip([
            ("syntax", "[[vm]\n".to_owned(), "vms.toml: TOML parse error at line 1"),
            (
                "key",
                "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nprt='tap:t'\n".to_owned(),
                "unknown field `prt`",
            ),
            (
                "port",
                "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tun:t'\n".to_owned(),
                "VM a: port 'tun:t'",
            ),
            ("none", String::new(), "no [[vm]] with a [vm.net] table"),
            (
                "metadata",
                "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tap:t'\nmetadata='/no/m'\n".to_owned(),
                "/no/m can't be read",
            ),
        ]) {
            std::fs::write(&config, bad).expect("a file");
            program.signal(libc::SIGHUP);
            wait_until("it is refused", || program.log().matches("nothing has changed").count() == refused);
            assert!(program.log().contains(words), "{name}: {}", program.log());
        }
        for name in ["zwkept", "zwmac", "zwnew"] {
            assert!(interface(name).is_some() && dir.path().join(name).exists(), "{name}");
        }
        guest.ping(&mut peer);
        // The next good one is compared with what runs.
        file(dir.path(), &[("zwkept", "guard = 'vlan=7'")]);
        program.signal(libc::SIGHUP);
        program.wait_log("read again; removed: zwmac, zwnew");
        // Its guard is another one, and its front end stays.
        wait_until("the guard holds", || {
            guest.send(&frames::frame(1, 100));
            peer.recv(Duration::from_millis(50)).is_none()
        });
        file(dir.path(), &[("zwkept", "")]);
        program.signal(libc::SIGHUP);
        wait_until("it holds no more", || {
            guest.send(&frames::frame(2, 100));
            peer.recv(Duration::from_millis(50)).is_some_and(|got| got.bytes == frames::frame(2, 100))
        });
        drop(guest);
        let (out, _) = program.stop();
        // A long line is broken.
        let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("zwkept: tap:zwkept,queues=1") && words.contains(", 1 connections"), "{out}");
    });
}

in_both_modes! {
    the_last_vm_of_the_file_goes_and_comes
}

/// Where others can add VMs, a file without any is one all the same.
fn the_last_vm_of_the_file_goes_and_comes(mode: Mode) {
    in_netns(move || {
        let dir = tempfile::tempdir().expect("a directory");
        let config = file(dir.path(), &[("zwlast", "")]);
        let server = Controlled::start(&[&["--config", &config], mode].concat());
        for _ in 0..2 {
            file(dir.path(), &[]);
            server.program.signal(libc::SIGHUP);
            wait_until("it is gone", || server.names().is_empty());
            assert!(interface("zwlast").is_none() && !dir.path().join("zwlast").exists());
            file(dir.path(), &[("zwlast", "")]);
            server.program.signal(libc::SIGHUP);
            wait_until("it is there again", || server.names() == ["zwlast"]);
        }
        drop(Guest::start(connect(&dir.path().join("zwlast"))));
        let (_, log) = server.program.stop();
        assert!(!log.contains("ERROR"), "{log}");
    });
}

/// The file may be a pipe at the start. Later the signals behind SIGHUP would wait for it.
#[test]
fn a_file_that_does_not_answer_holds_up_no_signal() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let socket = at("s");
        let vm = |table, more| format!("[[vm]]\nname = 'a'\n[vm.{table}]\nsocket = '{socket}'\n{more}\n");
        let texts = [
            vm("net", "port = 'tap:zwfile'".to_owned()),
            vm("vsock", format!("cid = 3\nuds = '{}'", at("u"))),
        ];
        for (is_vsock, text) in [false, true].into_iter().zip(texts) {
            let (config, hanging) = (at("vms.toml"), at(if is_vsock { "v" } else { "n" }));
            let fuse = FuseFile::mounted(Path::new(&hanging));
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &config, kind, 0o600.into(), 0).expect("a pipe");
            let (pipe, sent) = (config.clone(), text.clone());
            let writer = std::thread::spawn(move || std::fs::write(pipe, sent).expect("a reader"));
            let args = ["--json", "--config", &config];
            let program =
                if is_vsock { Program::vsock(&args, Restrict::default()) } else { Program::net(&args) };
            program.wait_log("a: listening");
            writer.join().expect("it was read");
            let refused = |count, words: &str| {
                program.signal(libc::SIGHUP);
                program.signal(libc::SIGUSR1);
                program.wait_line(count);
                program.wait_log(words);
                let log = program.log();
                assert_eq!(log.matches("nothing has changed").count(), count, "{log}");
            };
            refused(1, "vms.toml: it is not a regular file");
            let other_file = || std::fs::remove_file(&config).expect("it is there");
            other_file();
            std::os::unix::fs::symlink(&hanging, &config).expect("a link");
            fuse.hold(true);
            refused(2, "vms.toml: no answer within 5s");
            assert!(fuse.holds(), "it is held");
            fuse.hold(false);
            other_file();
            std::fs::write(&config, "#".repeat(5 << 20)).expect("a file");
            refused(3, "vms.toml: it has more than 4194304 bytes");
            std::fs::write(&config, &text).expect("a file");
            program.signal(libc::SIGHUP);
            program.wait_log("vms.toml read again");
            program.stop();
            other_file();
        }
    });
}

#[test]
fn vms_of_the_control_socket_are_not_the_files() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let config = file(dir.path(), &[("zwfile", "")]);
        let server = Controlled::start(&["--config", &config]);
        server.add("zwctl");
        assert_eq!(server.names(), ["zwfile", "zwctl"]);
        assert_eq!(server.ask("DELETE", "/vms/zwfile", "").0, 204);
        // What the file names is there again; the other one stays.
        server.program.signal(libc::SIGHUP);
        wait_until("it is there again", || server.names() == ["zwctl", "zwfile"]);
        // One name is not two VMs.
        file(dir.path(), &[("zwfile", ""), ("zwctl", "")]);
        server.program.signal(libc::SIGHUP);
        server.program.wait_log("two VMs are named 'zwctl'");
        // A file without VMs is one all the same where others can add them.
        std::fs::write(&config, "").expect("a file");
        server.program.signal(libc::SIGHUP);
        wait_until("the file's are gone", || server.names() == ["zwctl"]);
        server.program.stop();
    });
}

/// They are named. The others have their new settings, and so have they when they go on.
#[test]
fn processes_that_hang_hold_up_no_other_vm_of_the_file() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let names = ["zwhanga", "zwhangb", "zwhangc", "zwruns"];
        let config = file(dir.path(), &names.map(|name| (name, "")));
        let server = Controlled::start(&["--config", &config, "--sandbox", "on"]);
        let mut guest = Guest::start(connect(&dir.path().join("zwruns")));
        let mut peer = Peer::new("zwruns");
        guest.ping(&mut peer);
        let hanging = &names[..3];
        let pids: Vec<_> = hanging.iter().map(|name| child_of(&server.program, name)).collect();
        pids.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        file(dir.path(), &names.map(|name| (name, "guard = 'vlan=7'\ntx-limit = '1G/s'")));
        server.program.signal(libc::SIGHUP);
        server.program.wait_log("read again");
        let log = server.program.log();
        let said = "its process can't serve it: it does not answer: what was changed holds when it does";
        let late = |name: &str| log.contains(&format!("VM {name}: {said}"));
        assert_eq!(names.map(late), [true, true, true, false], "{log}");
        for vm in server.json("/vms")["vms"].as_array().expect("a list") {
            assert_eq!(
                (&vm["config"]["guard"], vm["config"]["tx-limit"].is_string()),
                (&"vlan=7".into(), true)
            );
        }
        wait_until("the guard holds", || {
            guest.send(&frames::frame(1, 100));
            peer.recv(Duration::from_millis(50)).is_none()
        });
        assert_eq!(server.json("/vms/zwruns")["statistics"]["connections"], 1, "its front end stays");
        pids.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
        for name in hanging {
            let mut guest = Guest::start(connect(&dir.path().join(name)));
            let mut peer = Peer::new(name);
            wait_until("the guard holds", || {
                guest.send(&frames::frame(1, 100));
                peer.recv(Duration::from_millis(50)).is_none()
            });
        }
        server.program.stop();
    });
}
