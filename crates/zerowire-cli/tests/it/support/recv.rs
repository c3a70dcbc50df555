//! `zerowire recv` as a child process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use serde_json::Value;

/// A receiver that listens.
pub struct Recv {
    pub child: Child,
    pub port: u16,
    stderr: BufReader<ChildStderr>,
}

/// What it left.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.arg("recv").args(args);
    command
}

impl Recv {
    /// With `-p 0` and these arguments; waits until it listens.
    pub fn start(args: &[&str]) -> Self {
        Self::of(command(&["-p", "0"]).args(args))
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        let address: SocketAddr = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(": ").next())
            .and_then(|a| a.parse().ok())
            .unwrap_or_else(|| {
                let mut rest = String::new();
                let _ = stderr.read_to_string(&mut rest);
                panic!("no address: {line}{rest}")
            });
        Self { child, port: address.port(), stderr }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("it listens")
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) has no memory effects; the child is this test's and not reaped.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) }, 0);
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let mut stdout = Vec::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut stdout).expect("its output");
        }
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).expect("its errors");
        Ended { status: self.child.wait().expect("its end"), stdout, stderr }
    }
}

impl Ended {
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.stdout);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", self.stderr))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("text")
    }
}

/// Bytes that differ from place to place; `seed` tells connections apart.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    zerowire_testkit::net::lab::pattern(seed as u32, len)
}
