//! Runs with a back end: guest to host with the tool as client, host to guest with the tool as
//! server.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SHUTDOWN_SEND, SocketType};
use zerowire_testkit::process::is_listening;

use super::guest_receive;
use super::options::{ClientOptions, PAGE, ReceiveMode, RxPlace, TX_BUFFER, TableOptions};
use super::output::{ClientOutput, ServerOutput};
use super::variant::{RxCase, RxSample, RxWay};
use crate::backend::BackendProcess;
use crate::case::Direction;
use crate::cpu::{Placement, thread_time};
use crate::guest::STALL_LIMIT;
use crate::held::Held;
use crate::vsock::case::QUEUE_SIZE;
use crate::vsock::device::SETTLE_LIMIT;
use crate::vsock::guest::{Setup, VsockGuest, Watch};
use crate::vsock::host::{HostCpu, port_path};

/// The port of both directions.
const PORT: u32 = super::options::PORT;

/// A back end, its guest, and the program that is run against it.
pub struct Experiment<'a> {
    tool: &'a Path,
    backend: BackendProcess,
    /// That of the last run, with its case.
    guest: Option<(RxCase, VsockGuest)>,
    credit: u32,
    host_cpu: HostCpu,
    placement: Placement,
}

impl<'a> Experiment<'a> {
    /// Starts `program vsock` with these further arguments.
    pub fn start(
        program: &Path,
        options: &'a TableOptions,
        args: &[&str],
        placement: &Placement,
    ) -> Result<Self> {
        let mut all = vec!["--buffer".to_owned(), options.credit().to_string()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let backend = BackendProcess::start_vsock(program, &all, &[""], placement)?;
        Ok(Self {
            tool: &options.tool,
            backend,
            guest: None,
            credit: options.credit(),
            host_cpu: options.host_cpu,
            placement: placement.clone(),
        })
    }

    /// Connects the guest of a case; the one before must be gone, for a back end serves one front
    /// end.
    fn connect(&self, case: &RxCase) -> Result<VsockGuest> {
        let transmit = case.direction == Direction::Transmit;
        let rx_buffer = case.rx_buffer();
        let setup = Setup {
            pool_bytes: if transmit { case.set_bytes() } else { 0 },
            rx_buffers: if transmit { 0 } else { case.set_bytes().div_ceil(rx_buffer as usize) },
            rx_buffer_len: rx_buffer,
            credit: case.guest_credit(self.credit),
            // While it sends it polls; what receives waits by itself.
            sleeps: false,
        };
        VsockGuest::connect(&self.backend.socket(0), &setup)
    }

    /// Runs a line once, with a new guest if the last run failed or had another case. With `check`
    /// the content is compared as well.
    pub fn run(&mut self, case: &RxCase, line: RxWay, bytes: u64, check: bool) -> Result<RxSample> {
        let mut guest = match self.guest.take().filter(|(of, _)| of == case) {
            Some((_, guest)) => guest,
            None => self.connect(case)?,
        };
        let held = self.held(case.direction)?;
        let outcome = match case.direction {
            Direction::Transmit => self.guest_to_host(case, &mut guest, line, bytes, check),
            Direction::Receive => self.host_to_guest(case, &mut guest, line, bytes, check),
        };
        let outcome = outcome.and_then(|sample| {
            Ok(RxSample { held_bytes: self.held(case.direction)?.saturating_sub(held), ..sample })
        });
        if outcome.is_ok() {
            self.guest = Some((*case, guest));
        }
        outcome.with_context(|| format!("the back end's last words: {}", self.backend.log()))
    }

    /// Starts the tool where the host's program runs. One that polls would keep the back end from
    /// its CPU: it gets the other.
    fn tool(&self, args: &[String], polls: bool) -> Result<Program> {
        let cpu = if polls && self.host_cpu == HostCpu::Backend { HostCpu::Guest } else { self.host_cpu };
        cpu.pin(&self.placement)?;
        let program = Program::start(self.tool, args);
        self.placement.pin_driver()?;
        program
    }

    /// Bytes that the back end has put by so far, because the program was behind: a second copy.
    fn held(&self, direction: Direction) -> Result<u64> {
        Ok(self.backend.ledger(direction)?.get("copied_bytes.held").copied().unwrap_or(0))
    }

    fn guest_to_host(
        &self,
        case: &RxCase,
        guest: &mut VsockGuest,
        line: RxWay,
        bytes: u64,
        check: bool,
    ) -> Result<RxSample> {
        let mode = line.mode().context("a floor has no back end")?;
        let mut args = vec!["-c".to_owned(), BackendProcess::cid(0).to_string()];
        args.extend(["-z".to_owned(), mode.letter().to_string()]);
        args.extend(["-b".to_owned(), (case.len / PAGE).to_string(), "-r".to_owned(), case.len.to_string()]);
        args.extend(["--uds".to_owned(), self.backend.host_end(0).display().to_string()]);
        args.extend(["-p".to_owned(), PORT.to_string()]);
        args.extend(["--windows".to_owned(), case.windows.to_string()]);
        args.extend((line == RxWay::MappedCopied).then(|| "--copy-out".to_owned()));
        args.extend(check.then(|| "--check".to_owned()));

        guest.stack().listen(PORT, SocketType::Stream);
        let mut program = self.tool(&args, mode == ReceiveMode::Polling)?;
        let conn = match guest.stack().accept_wait(PORT, STALL_LIMIT) {
            Ok(conn) => conn,
            Err(error) => bail!("the program does not connect ({error}): {}", program.words()),
        };
        let clock = self.backend.clock()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let begin = Instant::now();
        let sent = send(guest, conn, bytes, &mut program)?;
        let send_seconds = (sent - begin).as_secs_f64();
        guest.stack().shutdown(conn, SHUTDOWN_SEND)?;
        finish(guest, conn, &mut program)?;
        let output: ClientOutput = program.output()?;
        let (after, _) = clock.settled(SETTLE_LIMIT)?;
        if output.bytes != bytes {
            bail!("{} bytes arrived of {bytes}", output.bytes);
        }
        if check {
            let sum = super::output::printed(guest.pool_sum(bytes)?);
            if output.sum.as_deref() != Some(&sum) {
                bail!("{bytes} bytes arrived and are not those that were sent");
            }
        }
        Ok(sample(&output, send_seconds, after - before))
    }

    fn host_to_guest(
        &self,
        case: &RxCase,
        guest: &mut VsockGuest,
        line: RxWay,
        bytes: u64,
        check: bool,
    ) -> Result<RxSample> {
        let host_end = self.backend.host_end(0);
        let path = port_path(&host_end, PORT);
        let _ = std::fs::remove_file(&path);
        let mut args = vec!["-s".to_owned(), "-m".to_owned(), (bytes >> 20).to_string()];
        args.extend(["--uds".to_owned(), host_end.display().to_string(), "-p".to_owned(), PORT.to_string()]);
        args.extend(check.then(|| "--check".to_owned()));
        let mut program = self.tool(&args, false)?;
        wait_for(&path, &mut program)?;
        let clock = self.backend.clock()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let stack = guest.stack();
        let conn = stack.connect_in_place(HOST_CID, PORT, SocketType::Stream)?;
        if !stack.wait_connected(conn, STALL_LIMIT)? {
            bail!("the guest's connection to port {PORT} is refused: {}", program.words());
        }
        let options = ClientOptions {
            place: RxPlace::Kernel,
            cid: HOST_CID as u32,
            port: PORT,
            mode: line.mode().context("a floor has no back end")?,
            pages: (case.len / PAGE) as u32,
            lowat: case.len as u32,
            credit: 0,
            windows: 0,
            copy_out: line == RxWay::MappedCopied,
            check,
        };
        let output = guest_receive::receive(stack, conn, &options, thread_clock)?;
        stack.close(conn)?;
        stack.wait_closed(conn, STALL_LIMIT)?;
        let server: ServerOutput = program.output()?;
        let (after, _) = clock.settled(SETTLE_LIMIT)?;
        if (output.bytes, server.bytes) != (bytes, bytes) {
            bail!("{} bytes were sent and {} arrived, of {bytes}", server.bytes, output.bytes);
        }
        if check && output.sum != server.sum {
            bail!("{bytes} bytes arrived and are not those that were sent");
        }
        Ok(sample(&output, server.send_seconds, after - before))
    }
}

fn thread_clock() -> io::Result<Duration> {
    Ok(thread_time())
}

/// Sends all bytes; returns when the last one was given to the device.
fn send(guest: &mut VsockGuest, conn: ConnId, bytes: u64, program: &mut Program) -> Result<Instant> {
    let bytes = usize::try_from(bytes).context("more bytes than memory has addresses")?;
    // Whole writes, so that no packet goes beyond the last byte. All lengths here are megabytes.
    let write_len = [TX_BUFFER, 1 << 20].into_iter().find(|len| bytes.is_multiple_of(*len)).unwrap_or(1);
    let mut watch = Watch::new("guest -> host", bytes);
    let mut sent = 0;
    while sent < bytes {
        let count = guest.push(conn, write_len, bytes - sent, usize::from(QUEUE_SIZE))?;
        sent += count;
        guest.turn(count > 0)?;
        if let Err(error) = watch.look(sent) {
            bail!("{error}; the program: {}", program.words());
        }
    }
    Ok(Instant::now())
}

/// Makes turns until the program has closed.
fn finish(guest: &mut VsockGuest, conn: ConnId, program: &mut Program) -> Result<()> {
    let begin = Instant::now();
    while guest.stack().state(conn) == ConnState::Established && guest.stack().peer_shutdown(conn) == 0 {
        guest.turn(false)?;
        if begin.elapsed() > STALL_LIMIT {
            bail!("the program does not close after the last byte: {}", program.words());
        }
    }
    guest.stack().close(conn)?;
    guest.stack().wait_closed(conn, STALL_LIMIT)?;
    Ok(guest.stack().flush(STALL_LIMIT)?)
}

/// Waits until the server listens.
fn wait_for(path: &Path, program: &mut Program) -> Result<()> {
    let begin = Instant::now();
    while !is_listening("thread-self", path)? {
        if program.has_ended()? || begin.elapsed() > STALL_LIMIT {
            bail!("the server does not listen: {}", program.words());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn sample(output: &ClientOutput, send_seconds: f64, backend: Duration) -> RxSample {
    RxSample {
        bytes: output.bytes,
        send_seconds,
        loop_seconds: output.loop_seconds,
        dequeue_seconds: output.dequeue_seconds,
        touch_seconds: output.touch_seconds,
        dequeues: output.dequeues,
        wake_ups: output.wake_ups,
        backend_cpu_seconds: backend.as_secs_f64(),
        program_cpu_seconds: output.cpu_seconds,
        direct_bytes: output.direct_bytes,
        held_bytes: 0,
    }
}

/// A running `zerowire-bench vsock-rx`. Dropping it ends the process.
#[derive(Debug)]
pub struct Program {
    child: Child,
    held: Held,
}

impl Program {
    /// Starts `tool vsock-rx` with these arguments and `--json`. It inherits the CPU of the calling
    /// thread.
    pub fn start(tool: &Path, args: &[String]) -> Result<Self> {
        let mut command = Command::new(tool);
        command.args(["--log", "warn", "vsock-rx", "--json", "-"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let held = Held::nothing();
        let child = held.spawn(&mut command).with_context(|| format!("can't start {}", tool.display()))?;
        Ok(Self { child, held })
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.held.try_wait(&mut self.child)?.is_some())
    }

    /// Waits for its end and reads what it printed.
    pub fn output<T: DeserializeOwned>(&mut self) -> Result<T> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.held.try_wait(&mut self.child)? {
                break status;
            }
            if begin.elapsed() > STALL_LIMIT {
                bail!("the program does not end within {STALL_LIMIT:?} of the last byte");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = read(self.child.stdout.take());
        if !status.success() {
            bail!("the program failed ({status}): {}", self.words());
        }
        serde_json::from_str(&text).with_context(|| format!("the program printed {text:?}"))
    }

    /// What it wrote to standard error, if it has ended.
    pub fn words(&mut self) -> String {
        match self.held.try_wait(&mut self.child) {
            Ok(Some(_)) => read(self.child.stderr.take()).trim().to_owned(),
            _ => "it runs".to_owned(),
        }
    }
}

fn read(from: Option<impl Read>) -> String {
    let mut text = String::new();
    // Bytes that aren't text are left out.
    let _ = from.map(|mut from| from.read_to_string(&mut text));
    text
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended gives an error here, which is as good.
        let _ = self.child.kill();
        while let Ok(None) = self.held.try_wait(&mut self.child) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
