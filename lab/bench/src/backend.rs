//! The back end under measurement: a child process `PROGRAM net …` or `PROGRAM vsock …`.
//!
//! With `--sandbox on` the child supervises, and its own children serve the VMs. CPU time, memory
//! and placement are those of all of them.
//!
//! A net back end is started from a thread inside the benchmark's namespace, so it creates its taps
//! there. It must not share the driver's CPU. Dropping a [`BackendProcess`] ends the child: SIGTERM
//! first, SIGKILL when it doesn't end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zerowire_guest::features;
use zerowire_testkit::process::children;

use crate::case::Direction;
use crate::cpu::{Placement, ProcessClock, sleeps_of};
use crate::held::Held;
use crate::netns::NetnsLink;
use crate::programs::NamedProgram;

/// How long a child may take from its start to listening before the benchmark gives up.
const START_LIMIT: Duration = Duration::from_secs(5);
/// How long a child may take to say its statistics.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// One way to run the back end: a name for tables and the arguments behind `net` that make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendKind {
    /// Its name.
    pub name: String,
    /// Further arguments of `PROGRAM net`.
    pub args: Vec<String>,
    /// Features that the guest leaves out.
    pub without: u64,
}

impl BackendKind {
    /// The back end's own choice of path.
    pub fn zero_copy() -> Self {
        Self { name: "zerowire".to_owned(), args: Vec::new(), without: 0 }
    }

    /// The same of another program, whose name stands in place of `zerowire`.
    pub fn of(&self, program: &NamedProgram) -> Self {
        let args = [&program.args[..], &self.args].concat();
        Self { name: self.name.replacen("zerowire", &program.name, 1), args, ..self.clone() }
    }

    /// The copying path: every frame through a buffer of the process.
    pub fn copy() -> Self {
        let args = ["--path", "copy"].map(str::to_owned).to_vec();
        Self { name: "zerowire --path copy".to_owned(), args, without: 0 }
    }

    /// Further arguments in one text, separated by blanks; they are the name as well.
    pub fn with_args(args: &str) -> Self {
        let words = args.split_whitespace().map(str::to_owned).collect();
        Self { name: format!("zerowire {args}"), args: words, without: 0 }
    }

    /// The back end's own choice of path, and a guest that leaves out these features.
    pub fn without(features: u64) -> Self {
        let names = features::names(features).join(", ");
        Self { name: format!("zerowire without {names}"), without: features, ..Self::zero_copy() }
    }
}

/// Back ends with taps that were started so far.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A running back end that serves one or more VMs. Each VM has a tap of its own, or unix sockets of
/// its own for the host's programs.
#[derive(Debug)]
pub struct BackendProcess {
    child: Child,
    held: Held,
    vms: usize,
    taps: Vec<String>,
    started: Duration,
    /// True: it answers SIGUSR1 with its statistics. Another program would end.
    has_statistics: bool,
}

impl BackendProcess {
    /// Starts `program net` for `vms` VMs, each with a tap of its own, and waits until all sockets
    /// listen. No two back ends use the same names: the kernel may take a while to let go of a tap
    /// after its process has ended. Fails with what the child wrote to its standard error.
    pub fn start(program: &Path, kind: &BackendKind, vms: usize, placement: &Placement) -> Result<Self> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let taps: Vec<String> = (0..vms).map(|vm| format!("zw{number}v{vm}")).collect();
        let spec = |vm: usize, socket: &Path| {
            format!("name=vm{vm},socket={},port=tap:{}", socket.display(), taps[vm])
        };
        let mut backend = Self::launch(program, "net", vms, spec, &kind.args, placement)?;
        backend.taps = taps;
        Ok(backend)
    }

    /// Starts `program net` for one VM with the port `port` of an interface that is there, and
    /// further arguments separated by blanks.
    pub fn start_on(program: &Path, port: &str, more: &str, placement: &Placement) -> Result<Self> {
        let spec = |vm: usize, socket: &Path| format!("name=vm{vm},socket={},port={port}", socket.display());
        let args: Vec<String> = more.split_whitespace().map(str::to_owned).collect();
        Self::launch(program, "net", 1, spec, &args, placement)
    }

    /// Starts `program vsock` with the further arguments `args`, and waits until all sockets
    /// listen. There is a VM for each of `keys`, which are further keys of its `--vm`. VM `vm` has
    /// the CID [`BackendProcess::cid`] and the host's end [`BackendProcess::host_end`].
    pub fn start_vsock(
        program: &Path,
        args: &[String],
        keys: &[&str],
        placement: &Placement,
    ) -> Result<Self> {
        let spec = |vm: usize, socket: &Path| {
            let (cid, uds, keys) = (Self::cid(vm), socket.with_extension("host"), keys[vm]);
            format!("name=vm{vm},cid={cid},socket={},uds={}{keys}", socket.display(), uds.display())
        };
        Self::launch(program, "vsock", keys.len(), spec, args, placement)
    }

    fn launch(
        program: &Path,
        device: &str,
        vms: usize,
        spec: impl Fn(usize, &Path) -> String,
        args: &[String],
        placement: &Placement,
    ) -> Result<Self> {
        let held = Held::temporary()?;
        let statistics = File::create(held.folder().join("statistics"))?;
        let mut command = Command::new(program);
        command.args([device, "--json", "--log", "warn"]);
        for vm in 0..vms {
            let socket = socket_path(held.folder(), vm);
            command.arg("--vm").arg(spec(vm, &socket));
        }
        command.args(args);
        command.stdin(Stdio::null()).stdout(statistics);
        let mut backend = Self::run(held, command, vms, placement)?;
        backend.has_statistics = true;
        Ok(backend)
    }

    /// Starts a back end that is another program, and waits until it listens. `command` makes the
    /// command from the path of the socket. Its standard input stays open and silent.
    pub fn start_peer(command: impl FnOnce(&Path) -> Command, placement: &Placement) -> Result<Self> {
        let held = Held::temporary()?;
        let mut command = command(&socket_path(held.folder(), 0));
        command.stdin(Stdio::piped()).stdout(File::create(held.folder().join("output"))?);
        Self::run(held, command, 1, placement)
    }

    /// Runs `command` on the CPUs that are not the driver's, and waits until all sockets listen.
    fn run(held: Held, mut command: Command, vms: usize, placement: &Placement) -> Result<Self> {
        command.stderr(File::create(held.folder().join("log"))?);
        placement.avoid_driver()?;
        let begin = Instant::now();
        let child = held.spawn(&mut command);
        placement.pin_driver()?;
        let program = Path::new(command.get_program());
        let child = child.with_context(|| format!("can't start {}", program.display()))?;
        let (taps, started, has_statistics) = (Vec::new(), Duration::ZERO, false);
        let mut backend = Self { child, held, vms, taps, started, has_statistics };
        backend.wait_until_listening(begin)?;
        Ok(backend)
    }

    fn wait_until_listening(&mut self, begin: Instant) -> Result<()> {
        for vm in 0..self.vms {
            // A connection is the only proof; the back end must take it that this one says nothing.
            while UnixStream::connect(self.socket(vm)).is_err() {
                if let Some(status) = self.held.try_wait(&mut self.child)? {
                    bail!("the back end ended at its start ({status}): {}", self.log());
                }
                if begin.elapsed() > START_LIMIT {
                    bail!("the back end doesn't listen after {START_LIMIT:?}: {}", self.log());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.started = begin.elapsed();
        Ok(())
    }

    /// The socket of VM `vm`.
    pub fn socket(&self, vm: usize) -> PathBuf {
        socket_path(self.held.folder(), vm)
    }

    /// The unix socket at which host programs reach VM `vm`; what listens for the VM on port P is
    /// this path with `_P` behind it.
    pub fn host_end(&self, vm: usize) -> PathBuf {
        self.socket(vm).with_extension("host")
    }

    /// The address of VM `vm`.
    pub fn cid(vm: usize) -> u64 {
        3 + vm as u64
    }

    /// The host's side of the tap of VM `vm`, up.
    pub fn link(&self, vm: usize) -> Result<NetnsLink> {
        let name = self.taps.get(vm).with_context(|| format!("there is no VM {vm}"))?;
        let link = NetnsLink::new(name)
            .with_context(|| format!("the back end made no tap {name} in its namespace: {}", self.log()))?;
        link.up()?;
        Ok(link)
    }

    /// Its process, and those that it has started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        [vec![self.pid()], children(self.pid())].concat()
    }

    /// The clock over all threads of the processes that there are now.
    pub fn clock(&self) -> Result<ProcessClock> {
        Ok(ProcessClock::of_all(&self.processes())?)
    }

    /// CPU time of all its threads over `watch`, once it has gone to sleep.
    pub fn idle_cpu(&self, watch: Duration) -> Result<Duration> {
        let clock = self.clock()?;
        let (before, _) = clock.settled(watch)?;
        std::thread::sleep(watch);
        Ok(clock.now()? - before)
    }

    /// How often its threads have gone to sleep so far.
    pub fn sleeps(&self) -> Result<u64> {
        Ok(self.processes().into_iter().map(sleeps_of).sum::<io::Result<u64>>()?)
    }

    /// Puts all its threads on the worker's CPU. Threads that they start later inherit it.
    pub fn pin(&self, placement: &Placement) -> Result<()> {
        for pid in self.processes() {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let name = task?.file_name();
                // A thread that has ended meanwhile needs no CPU.
                if let Some(task) = name.to_str().and_then(|text| text.parse().ok()) {
                    let _ = placement.pin_task_to_worker(task);
                }
            }
        }
        Ok(())
    }

    /// The ledger of one direction of the first VM, inner objects flattened; empty of another
    /// program.
    pub fn ledger(&self, direction: Direction) -> Result<BTreeMap<String, u64>> {
        if !self.has_statistics {
            return Ok(BTreeMap::new());
        }
        let statistics = self.statistics()?;
        let mut ledger = BTreeMap::new();
        flatten(&statistics["vms"][0][direction.to_string()], "", &mut ledger);
        Ok(ledger)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long it took from its start until all sockets listened.
    pub fn start_time(&self) -> Duration {
        self.started
    }

    /// Asks for its statistics with SIGUSR1 and returns the line of JSON.
    pub fn statistics(&self) -> Result<Value> {
        let path = self.held.folder().join("statistics");
        let before = fs::metadata(&path)?.len() as usize;
        let pid = Pid::from_raw(self.child.id() as i32).context("the back end has no process number")?;
        kill_process(pid, Signal::USR1)?;
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_LIMIT {
            let text = fs::read_to_string(&path)?;
            if let Some(line) = text.get(before..).filter(|line| line.ends_with('\n')) {
                return serde_json::from_str(line).context("the back end's statistics are no JSON");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the back end gave no statistics within {ANSWER_LIMIT:?} of SIGUSR1: {}", self.log())
    }

    /// Adds to an error what the back end said last.
    pub fn with_last_words<T>(&self, result: Result<T>) -> Result<T> {
        result.with_context(|| format!("the back end's last words: {}", self.log()))
    }

    /// The end of what it wrote to standard error.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.held.folder().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        match &lines[lines.len().saturating_sub(8)..] {
            [] => "it wrote nothing".to_owned(),
            last => last.join("\n"),
        }
    }
}

impl Drop for BackendProcess {
    fn drop(&mut self) {
        // A child that has ended already gives an error here, which is as good.
        let _ = self.held.stop(&mut self.child);
    }
}

/// Adds the numbers of `value` to `ledger`, those of inner objects with the outer key before
/// theirs.
fn flatten(value: &Value, prefix: &str, ledger: &mut BTreeMap<String, u64>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let name = format!("{prefix}{key}");
        match value.as_u64() {
            Some(number) => *ledger.entry(name).or_insert(0) += number,
            None => flatten(value, &format!("{name}."), ledger),
        }
    }
}

fn socket_path(folder: &Path, vm: usize) -> PathBuf {
    folder.join(format!("vm{vm}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_flattened() {
        let value = serde_json::json!({ "frames": 3, "copied_bytes": { "small": 64 }, "by_queue": [3] });
        let mut ledger = BTreeMap::new();
        flatten(&value, "", &mut ledger);
        assert_eq!(ledger, BTreeMap::from([("frames".to_owned(), 3), ("copied_bytes.small".to_owned(), 64)]));
    }
}
