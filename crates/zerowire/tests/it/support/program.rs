//! The crate's examples as programs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use zerowire_testkit::wait_until;

/// An example. Cargo builds it with the crate's tests, but not with `--test it` alone.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("this program");
    let program = test.ancestors().nth(2).expect("a folder").join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is missing: 'cargo build -p zerowire --examples' first, with the same profile",
        program.display()
    );
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A program that runs. Dropping it kills it.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// What a program left.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    /// What it said since the last line that was taken.
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdout }
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line
    }

    /// Where it listens, which its next line says.
    pub fn address(mut self) -> (Self, SocketAddr) {
        let line = self.line();
        let address = line.strip_prefix("listening at ").and_then(|rest| rest.split(": ").next());
        match address.and_then(|a| a.parse().ok()) {
            Some(address) => (self, address),
            None => panic!("no address in {line:?}: {:?}", self.end()),
        }
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).expect("text");
        self.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        Ended { code: status.and_then(|s| s.code()), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The ledgers among what it said; it ended well, and complained of nothing.
    pub fn ledgers(&self) -> Vec<Ledger> {
        assert!(self.code == Some(0) && self.stderr.is_empty(), "{self:?}");
        let parts = self.stdout.lines().flat_map(|line| line.split("; "));
        parts.filter_map(Ledger::read).collect()
    }

    /// It failed, and named each of these.
    pub fn refused(&self, words: &[&str]) {
        assert!(matches!(self.code, Some(1 | 2)), "{self:?}");
        assert!(words.iter().all(|word| self.stderr.contains(word)), "{words:?}: {self:?}");
    }
}

/// What a program says of the bytes that it moved.
#[derive(Debug, Default)]
pub struct Ledger {
    pub bytes: u64,
    pub not_copied: u64,
    pub copied: BTreeMap<String, u64>,
}

impl Ledger {
    /// Of `… 30 bytes: 10 not copied, 5 copied (small), 15 copied (kernel)`. Each byte stands there
    /// once.
    fn read(text: &str) -> Option<Self> {
        let (before, parts) = text.split_once(" bytes: ")?;
        let bytes = before.rsplit(' ').next()?.parse().ok()?;
        let mut ledger = Self { bytes, ..Self::default() };
        for part in parts.split(", ") {
            let (number, what) = part.split_once(' ')?;
            let number = number.parse().ok()?;
            match what.strip_prefix("copied (") {
                Some(why) => {
                    ledger.copied.insert(why.trim_end_matches(')').to_owned(), number);
                }
                None => ledger.not_copied += number,
            }
        }
        let booked = ledger.not_copied + ledger.copied.values().sum::<u64>();
        assert_eq!(booked, bytes, "{text}");
        Some(ledger)
    }
}
