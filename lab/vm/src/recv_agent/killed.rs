//! A receiver's process is killed in the middle.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use zerowire::recv::{Receiver, RecvBackend};

use super::cases::{options, streams};

/// Bytes of its area. All rounds together have more than the guest has memory, so that it is seen
/// if the kernel keeps it.
const AREA: usize = 64 << 20;
const ROUNDS: usize = 10;

/// The process that is killed: receives and keeps all that it gets.
pub fn victim(backend: RecvBackend) -> Result<String> {
    let buffers = AREA / 4096;
    let mut receiver = Receiver::new(options(backend, buffers).share(Some(buffers)))?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    println!("{}", listener.local_addr()?.port());
    receiver.listen(listener.into())?;
    let mut kept = Vec::new();
    let mut was_told = false;
    loop {
        receiver.recv(&mut kept, None)?;
        if kept.len() > 64 && !was_told {
            println!("receiving");
            was_told = true;
        }
    }
}

/// Its peers see a reset, its memory is free again, and a receiver after it works.
pub fn killed(backend: RecvBackend) -> Result<String> {
    let word = if backend == RecvBackend::NoDevice { "no-device" } else { "multishot" };
    for round in 0..ROUNDS {
        let program = std::env::current_exe().context("its own path")?;
        let mut child = Command::new(program)
            .args([word, "victim"])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("round {round}"))?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let port: u16 = lines.next().context("it ended")??.parse().context("its port")?;
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let sender = std::thread::spawn(move || -> std::io::Result<u64> {
            let mut sent = 0;
            while sent < 1 << 30 {
                sent += stream.write(&[7; 50_000])? as u64;
            }
            Ok(sent)
        });
        let said = lines.next().context("it ended")??;
        ensure!(said == "receiving", "{said}");
        child.kill()?;
        child.wait()?;
        let sent = sender.join().ok().context("the sender panicked")?;
        ensure!(sent.is_err(), "{sent:?} bytes were taken by a dead process");
    }
    streams(options(backend, 256))
}
