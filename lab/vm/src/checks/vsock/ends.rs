//! Ends that a stock guest and mapped receive tell each other of, and what they give back.

use anyhow::{Context, Result, bail, ensure};
use zerowire::recv::vsock::{Dequeued, Error, MappedConnection, MappedListener, MappedOptions};
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::remote::{self, Background};
use zerowire_vmtest::vsock::{PATIENCE, VsockKind, host};

use super::setup::{HOST, Vsock};
use super::transfer;

/// Each end that one side alone knows of reaches the other one.
pub fn ends(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    program_closes(&mut vsock)?;
    program_reads_no_more(&mut vsock)?;
    for kind in [VsockKind::Stream, VsockKind::Seqpacket] {
        guest_is_killed(&mut vsock, kind)?;
        device_goes(&mut vsock, kind)?;
    }
    transfer::echo(&mut vsock)?;
    all_are_taken(&mut vsock)?;
    vsock.finish()?;
    Ok(String::new())
}

/// The guest has ended its receiving and does nothing; the host's program closes.
fn program_closes(vsock: &mut Vsock) -> Result<()> {
    let listener = host::Listener::new(&vsock.uds(), 1030, VsockKind::Stream)?;
    let job = Background::start(&mut vsock.guest, &format!("stream connect {HOST} 1030 silent"))?;
    let socket = listener.accept()?;
    job.wait_for(&mut vsock.guest, "silent")?;
    drop(socket);
    // The guest's kernel answers packets, although its program sleeps.
    vsock.ledger()?;
    job.signal(&mut vsock.guest, "KILL")
}

/// The guest sends without end; the program wants no more.
fn program_reads_no_more(vsock: &mut Vsock) -> Result<()> {
    let listener = listen(vsock, 1031, VsockKind::Stream)?;
    let line = format!("stream connect {HOST} 1031 send-until-refused");
    let job = Background::start(&mut vsock.guest, &line)?;
    let program = accept(&listener)?;
    ensure!(program.wait(Some(PATIENCE))?, "no data came");
    program.shutdown(std::net::Shutdown::Read)?;
    job.finish(&mut vsock.guest)?;
    let (bytes, end) = read_all(&program)?;
    ensure!(bytes > 0 && end.is_ok(), "{bytes} bytes of those published, then {end:?}");
    Ok(())
}

/// A killed program's kernel ends its connections as close does: what was sent comes whole.
fn guest_is_killed(vsock: &mut Vsock, kind: VsockKind) -> Result<()> {
    let (job, program) = open(vsock, kind)?;
    job.signal(&mut vsock.guest, "KILL")?;
    let (bytes, end) = read_all(&program)?;
    ensure!(bytes > 0 && end.is_ok(), "{} from a killed program: {bytes} bytes, then {end:?}", kind.word());
    Ok(())
}

/// The device is unplugged while a connection is open.
fn device_goes(vsock: &mut Vsock, kind: VsockKind) -> Result<()> {
    let (job, program) = open(vsock, kind)?;
    vsock.device.unplug(&mut vsock.guest)?;
    let (bytes, end) = read_all(&program)?;
    let is_cut = matches!(end, Err(Error::CutShort { .. }));
    ensure!(bytes > 0 && is_cut, "{} from an unplugged device: {bytes} bytes, then {end:?}", kind.word());
    job.finish(&mut vsock.guest)?;
    vsock.plug()
}

/// The guest has all the mapped connections of its VM: it gets no more, until one of them ends. Its
/// others go on.
fn all_are_taken(vsock: &mut Vsock) -> Result<()> {
    vsock.replace(&["--map-connections", "2"])?;
    let listener = listen(vsock, 1032, VsockKind::Stream)?;
    let first = connect(vsock, &listener, VsockKind::Stream)?;
    let second = connect(vsock, &listener, VsockKind::Stream)?;
    remote::run(&mut vsock.guest, &format!("stream connect {HOST} 1032 refused"))?;
    let plain = host::Listener::new(&vsock.uds(), 1033, VsockKind::Stream)?;
    let job = Background::start(&mut vsock.guest, &format!("stream connect {HOST} 1033 silent"))?;
    let socket = plain.accept()?;
    job.wait_for(&mut vsock.guest, "silent")?;
    drop(socket);
    job.signal(&mut vsock.guest, "KILL")?;

    let leave = |vsock: &mut Vsock, (job, program): (Background, MappedConnection), left: u64| {
        drop(program);
        job.finish(&mut vsock.guest)?;
        let found = wait_for("its place", COMMAND, || {
            Ok((vsock.ledger_now()?.number("mapped_connections")? == left).then_some(()))
        });
        found.with_context(|| format!("not {left} mapped connections"))
    };
    leave(vsock, first, 1)?;
    let third = connect(vsock, &listener, VsockKind::Stream)?;
    leave(vsock, second, 1)?;
    leave(vsock, third, 0)?;
    let refused = vsock.ledger_now()?.number("mapped_refused")?;
    ensure!(refused == 1, "{refused} mapped connections were refused, not 1");
    Ok(())
}

/// A mapped connection on which the guest has sent a token and waits.
fn open(vsock: &mut Vsock, kind: VsockKind) -> Result<(Background, MappedConnection)> {
    let listener = listen(vsock, 1032, kind)?;
    connect(vsock, &listener, kind)
}

/// The same to a program that listens already.
fn connect(
    vsock: &mut Vsock,
    listener: &MappedListener,
    kind: VsockKind,
) -> Result<(Background, MappedConnection)> {
    let line = format!("{} connect {HOST} 1032 send-and-wait", kind.word());
    let job = Background::start(&mut vsock.guest, &line)?;
    let program = accept(listener)?;
    ensure!(program.wait(Some(PATIENCE))?, "no data came");
    Ok((job, program))
}

fn listen(vsock: &Vsock, port: u32, kind: VsockKind) -> Result<MappedListener> {
    let options =
        if kind == VsockKind::Stream { MappedOptions::stream() } else { MappedOptions::seqpacket() };
    vsock.listen_mapped(port, &options)
}

fn accept(listener: &MappedListener) -> Result<MappedConnection> {
    match listener.accept_within(Some(PATIENCE))? {
        Some(program) => Ok(program),
        None => bail!("the guest did not connect"),
    }
}

/// Bytes until the end, and how it came.
fn read_all(program: &MappedConnection) -> Result<(u64, Result<(), Error>)> {
    let mut bytes = 0;
    loop {
        match program.dequeue() {
            Ok(Dequeued::Window(window)) => bytes += window.len(),
            Ok(Dequeued::NotYet) => ensure!(program.wait(Some(PATIENCE))?, "no end after {bytes} bytes"),
            Ok(Dequeued::End) => return Ok((bytes, Ok(()))),
            Err(error) => return Ok((bytes, Err(error))),
        }
    }
}
