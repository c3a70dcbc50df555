//! The program under test as a process: `zerowire net …`. With `--sandbox on` that process
//! supervises, and its children serve the VMs: what is measured or stopped is all of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zerowire_testkit::process::{children, is_listening};

use crate::command::{Running, wait_for};
use crate::initrd::libraries;

/// To the listening socket. The program's own aim is 50 ms; this limit doesn't measure that.
const START: Duration = Duration::from_secs(15);

/// For an answer to a signal.
const ANSWER: Duration = Duration::from_secs(10);

/// For what it holds to stay the same.
const REST: Duration = Duration::from_secs(30);

/// A back end process with its logs. Killed on drop.
#[derive(Debug)]
pub struct BackendProcess {
    process: Running,
    socket: PathBuf,
    out: PathBuf,
    /// Bytes at the begin of `out` whose documents were taken.
    taken: usize,
    log: PathBuf,
}

/// What the program's processes hold together, for comparing before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Memory mappings.
    pub mappings: usize,
    /// Those of a guest's memory.
    pub guest_mappings: usize,
    /// Resident private and shared memory, KiB.
    pub resident_kib: u64,
    /// Pages that the kernel pinned for I/O, KiB.
    pub pinned_kib: u64,
}

/// What the program's processes have cost so far, all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// CPU time, user and system, in clock ticks (10 ms).
    pub ticks: u64,
    /// Context switches, that is, how often a thread went to sleep or was put off.
    pub switches: u64,
}

impl BackendProcess {
    /// As [`BackendProcess::spawn`], and waits until it listens on the socket.
    ///
    /// # Errors
    /// The process ends or does not listen; the message holds its log.
    pub fn start(command: &mut Command, socket: &Path, dir: &Path, name: &str) -> Result<Self> {
        let mut backend = Self::spawn(command, socket, dir, name)?;
        wait_for("the back end's socket", START, || {
            backend.check_alive()?;
            Ok(is_listening(&backend.pid().to_string(), &backend.socket)?.then_some(()))
        })?;
        Ok(backend)
    }

    /// Starts a command that will listen on `socket`. Standard output goes to `NAME.out` in `dir`,
    /// standard error to `NAME.log`.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn spawn(command: &mut Command, socket: &Path, dir: &Path, name: &str) -> Result<Self> {
        let out = dir.join(format!("{name}.out"));
        let log = dir.join(format!("{name}.log"));
        let create = |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&log)?);
        let process = Running::start(command)?;
        Ok(Self { process, socket: socket.to_owned(), out, taken: 0, log })
    }

    /// The socket that QEMU connects to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it wrote to standard error so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// It has; the message holds its log.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => bail!("the back end ended with {status}: {}", self.log_text()),
        }
    }

    /// Asks for statistics (SIGUSR1) and returns them.
    ///
    /// # Errors
    /// The process has ended or prints no JSON.
    pub fn statistics(&mut self) -> Result<Value> {
        self.check_alive()?;
        self.new_documents();
        self.process.signal(Signal::USR1)?;
        wait_for("statistics after SIGUSR1", ANSWER, || Ok(self.new_documents().pop()))
            .with_context(|| self.log_text())
    }

    /// Asks it to stop (SIGTERM); returns the statistics that it ended with.
    ///
    /// # Errors
    /// It does not stop, and is killed on drop then, or it ends with another status than 0.
    pub fn stop(&mut self) -> Result<Option<Value>> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(ANSWER).with_context(|| self.log_text())?;
        ensure!(status.success(), "after SIGTERM the back end ended with {status}: {}", self.log_text());
        Ok(self.new_documents().pop())
    }

    /// Lets it stand still (SIGSTOP) until [`BackendProcess::go_on`]: no process of the program
    /// takes or gives a byte.
    ///
    /// # Errors
    /// A system call fails.
    pub fn stand_still(&mut self) -> Result<()> {
        // The supervisor first: it starts no other child then.
        self.process.signal(Signal::STOP)?;
        self.signal_children(Signal::STOP)?;
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// A system call fails.
    pub fn go_on(&mut self) -> Result<()> {
        self.signal_children(Signal::CONT)?;
        self.process.signal(Signal::CONT)
    }

    /// Signals the processes that it has started; returns how many there are. Call it while they
    /// live or the program is stopped: a child's number is its own until the program has reaped it.
    fn signal_children(&self, signal: Signal) -> Result<usize> {
        let children = children(self.pid());
        for &child in &children {
            let pid = Pid::from_raw(child.cast_signed()).context("a child without a number")?;
            kill_process(pid, signal).with_context(|| format!("signal {signal:?} to process {child}"))?;
        }
        Ok(children.len())
    }

    /// The program's process, and those that serve its VMs.
    fn processes(&self) -> Vec<u32> {
        [vec![self.pid()], children(self.pid())].concat()
    }

    /// Kills it without a chance to clean up (SIGKILL), and waits until its children have ended:
    /// they listen until then.
    pub fn kill(&mut self) {
        let all = children(self.pid());
        self.process.kill();
        let runs = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| !status.contains("\nState:\tZ"))
        };
        let _ = wait_for("the end of its children", ANSWER, || Ok((!all.iter().any(runs)).then_some(())));
    }

    /// Kills the processes that it has started (SIGKILL).
    ///
    /// # Errors
    /// It has started none.
    pub fn kill_children(&self) -> Result<()> {
        let signalled = self.signal_children(Signal::KILL)?;
        ensure!(signalled > 0, "the back end has started no process: {}", self.log_text());
        Ok(())
    }

    /// What it holds now.
    ///
    /// # Errors
    /// A process has ended.
    pub fn holdings(&self) -> Result<Holdings> {
        let mut sum = Holdings::default();
        for pid in self.processes() {
            let now = holdings_of(pid)?;
            sum.descriptors += now.descriptors;
            sum.mappings += now.mappings;
            sum.guest_mappings += now.guest_mappings;
            sum.resident_kib += now.resident_kib;
            sum.pinned_kib += now.pinned_kib;
        }
        Ok(sum)
    }

    /// What it holds as soon as that stays the same for a while.
    ///
    /// # Errors
    /// It doesn't, or as [`BackendProcess::holdings`].
    pub fn holdings_at_rest(&self) -> Result<Holdings> {
        const STILL: Duration = Duration::from_millis(100);
        let mut last = self.holdings()?;
        wait_for("the back end to come to rest", REST, || {
            std::thread::sleep(STILL);
            let before = std::mem::replace(&mut last, self.holdings()?);
            Ok((last == before).then_some(last))
        })
    }

    /// What it has cost so far, without processes that have ended.
    ///
    /// # Errors
    /// A process has ended.
    pub fn effort(&self) -> Result<Effort> {
        let mut sum = Effort::default();
        for pid in self.processes() {
            let now = effort_of(pid)?;
            sum.ticks += now.ticks;
            sum.switches += now.switches;
        }
        Ok(sum)
    }

    /// Takes the JSON values that came in standard output since the last call; an unfinished one at
    /// the end is left for the next.
    fn new_documents(&mut self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        let new = text.get(self.taken..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(new).into_iter();
        let documents = values.by_ref().map_while(Result::ok).collect();
        self.taken += values.byte_offset();
        documents
    }
}

fn holdings_of(pid: u32) -> Result<Holdings> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let read = |name: &str| {
        std::fs::read_to_string(proc.join(name)).with_context(|| format!("read {name} of process {pid}"))
    };
    let status = read("status")?;
    let field = |name: &str| -> u64 {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|value| value.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    let maps = read("maps")?;
    Ok(Holdings {
        descriptors: std::fs::read_dir(proc.join("fd")).context("read fd")?.count(),
        mappings: maps.lines().count(),
        // The name that QEMU gives its memory files.
        guest_mappings: maps.lines().filter(|line| line.contains("memory-backend-memfd")).count(),
        resident_kib: field("VmRSS"),
        pinned_kib: field("VmPin"),
    })
}

fn effort_of(pid: u32) -> Result<Effort> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let stat = std::fs::read_to_string(proc.join("stat")).with_context(|| format!("read stat of {pid}"))?;
    // The second field, the name in brackets, may hold spaces (proc(5)).
    let after_name = stat.rsplit_once(')').context("an unknown form of /proc/PID/stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |field: usize| -> Result<u64> { Ok(fields.get(field).context("a short stat")?.parse()?) };
    let mut switches = 0;
    for task in std::fs::read_dir(proc.join("task")).with_context(|| format!("read task of {pid}"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let counts = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
        switches += counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>();
    }
    // utime and stime are fields 14 and 15; the first after the name is field 3.
    Ok(Effort { ticks: ticks(11)? + ticks(12)?, switches })
}

/// The program under test: `ZEROWIRE_BIN`, or `zerowire` beside this test program.
///
/// # Errors
/// There is none.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ZEROWIRE_BIN") {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("ZEROWIRE_BIN is {}, which is no file", path.display());
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("find the test program's own path")?;
    let path = own.with_file_name("zerowire");
    if !path.is_file() {
        bail!(
            "no program {}: build it (cargo build --release -p zerowire-cli) or set ZEROWIRE_BIN",
            path.display()
        );
    }
    Ok(path)
}

/// The program under test, linked statically: it runs on the host and in the guest.
/// `scripts/static.sh` builds it, beside the folder of this test program.
///
/// # Errors
/// There is none, or it needs libraries.
pub fn static_program() -> Result<PathBuf> {
    without_libraries(static_folder()?.join("zerowire"))
}

/// `zerowire-bench`, linked statically: `ZEROWIRE_BENCH_BIN`, a file of this name, or the one
/// beside the program under test.
///
/// # Errors
/// There is none, or it needs libraries.
pub fn static_bench() -> Result<PathBuf> {
    match std::env::var_os("ZEROWIRE_BENCH_BIN") {
        Some(path) => without_libraries(path.into()),
        None => without_libraries(static_folder()?.join("zerowire-bench")),
    }
}

/// Where `scripts/static.sh` builds for this test program: in `release` for `target/release`, in
/// `debug` for `target/debug`.
fn static_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the test program's own path")?;
    let (target, profile) = own
        .parent()
        .and_then(|folder| Some((folder.parent()?, folder.file_name()?)))
        .context("the test program's folder")?;
    Ok(target.join("x86_64-unknown-linux-gnu").join(profile))
}

fn without_libraries(path: PathBuf) -> Result<PathBuf> {
    const BUILD: &str = "run `scripts/static.sh` (`scripts/static.sh tests` for target/debug)";
    if !path.is_file() {
        bail!("no static program {}: {BUILD}", path.display());
    }
    if !libraries(&path)?.is_empty() {
        bail!("{} needs libraries, which a guest may lack: {BUILD}", path.display());
    }
    Ok(path)
}
