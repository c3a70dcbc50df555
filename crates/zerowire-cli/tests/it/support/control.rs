//! A client of the control socket that sends what it is told to.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{PATIENCE, Program, Restrict, wait_until};

/// A running `zerowire net --control`, with its sockets in a folder of its own.
pub struct Controlled {
    pub program: Program,
    pub dir: tempfile::TempDir,
}

impl Controlled {
    /// Starts it with further arguments.
    pub fn start(more: &[&str]) -> Self {
        Self::of(|args| Program::net(args), more)
    }

    /// Starts `zerowire vsock --control` in its place.
    pub fn start_vsock(more: &[&str]) -> Self {
        Self::of(|args| Program::vsock(args, Restrict::default()), more)
    }

    fn of(start: impl FnOnce(&[&str]) -> Program, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let control = dir.path().join("control").display().to_string();
        let program = start(&[&["--control", &control], more].concat());
        program.wait_log("control socket at");
        Self { program, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn control(&self) -> PathBuf {
        self.path("control")
    }

    /// The body that adds a VM whose socket and tap have its name.
    pub fn vm(&self, name: &str) -> String {
        format!("{{\"socket\": \"{}\", \"port\": \"tap:{name}\"}}", self.path(name).display())
    }

    /// Adds such a VM.
    pub fn add(&self, name: &str) {
        self.put(name, &self.vm(name));
    }

    /// Adds a vsock VM in these groups. Its sockets are `NAME.s`, and `NAME` for host programs.
    pub fn add_vsock(&self, name: &str, cid: u64, groups: &[&str]) {
        let (socket, uds) = (self.path(&format!("{name}.s")), self.path(name));
        let vm = json!({ "socket": socket, "cid": cid, "uds": uds, "groups": groups });
        self.put(name, &vm.to_string());
    }

    /// Adds a VM by the body of its request.
    pub fn put(&self, name: &str, body: &str) {
        let (status, text) = self.ask("PUT", &format!("/vms/{name}"), body);
        assert_eq!(status, 201, "{text}");
    }

    /// Asks for one thing: status and body.
    pub fn ask(&self, method: &str, target: &str, body: &str) -> (u16, String) {
        ask(&self.control(), method, target, body)
    }

    /// Asks for JSON.
    pub fn json(&self, target: &str) -> Value {
        let (status, text) = self.ask("GET", target, "");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Names of the VMs.
    pub fn names(&self) -> Vec<String> {
        let vms = self.json("/vms");
        let names = vms["vms"].as_array().expect("a list").iter().map(|vm| vm["name"].as_str());
        names.map(|name| name.expect("a name").to_owned()).collect()
    }

    /// Drains VMs without front ends, and removes each at once. The log has one line of each then.
    pub fn gone_at_once(self, names: &[String]) {
        for name in names {
            assert_eq!(self.ask("POST", &format!("/vms/{name}/drain"), "").0, 202);
            // It may have gone by itself by then, or just go.
            let (status, text) = self.ask("DELETE", &format!("/vms/{name}"), "");
            assert!([204, 404, 409].contains(&status), "{status}: {text}");
        }
        wait_until("they are gone", || self.names().is_empty());
        let (_, log) = self.program.stop();
        for name in names {
            let begin = format!(" INFO {name}: ");
            let told = log.lines().filter_map(|line| line.strip_prefix(&begin));
            let told: Vec<_> = told.filter(|text| text.ends_with("removed")).collect();
            assert!(matches!(told[..], ["removed"] | ["drained and removed"]), "{name}: {told:?} in {log}");
        }
    }

    /// What the process has: descriptors, threads, mappings.
    pub fn holds(&self) -> [usize; 3] {
        let count =
            |what| std::fs::read_dir(format!("/proc/{}/{what}", self.program.pid())).expect("/proc").count();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.program.pid())).expect("/proc");
        [count("fd"), count("task"), maps.lines().count()]
    }

    /// Memory of its own that it has touched, KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.program.pid()));
        let status = status.expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// What it has when the connections that have ended are gone.
    pub fn at_rest(&self) -> [usize; 3] {
        super::processes::wait_idle(self.program.pid());
        let mut now = self.holds();
        wait_until("it comes to rest", || {
            let before = now;
            std::thread::sleep(Duration::from_millis(50));
            now = self.holds();
            now == before
        });
        now
    }
}

/// A connection that does not wait for ever.
pub fn dial(control: &Path) -> UnixStream {
    let stream = UnixStream::connect(control).expect("the control socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Asks for one thing on a connection of its own.
pub fn ask(control: &Path, method: &str, target: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    say(&mut dial(control), (head + body).as_bytes())
}

/// Sends bytes, and reads the answer to its end.
pub fn say(stream: &mut UnixStream, bytes: &[u8]) -> (u16, String) {
    // The server may refuse before it has read all of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    split(&String::from_utf8(answer).expect("text"))
}

/// Status and body of an answer, which must have the length that it says.
pub fn split(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        assert_eq!(length.parse(), Ok(body.len()), "{answer}");
    }
    (status, body.to_owned())
}
