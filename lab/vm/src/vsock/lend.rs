//! zerowire's sender on an AF_VSOCK socket, in a guest: which bytes go out of memory that changes
//! after the call, and what `SendMode::Auto` chooses.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use zerowire::send::{
    Because, Choice, Completion, Notifications, SendBackend, SendMode, SendOptions, Sender, Ticket,
};

use super::{PATIENCE, job};

/// What payloads hold when they are sent, and what is written there behind the call.
pub const OLD: u8 = 0x11;
/// See [`OLD`].
pub const NEW: u8 = 0xee;

/// A file in the guest that tells [`held`] that the back end takes nothing for now.
pub const HELD: &str = "/tmp/zw-vsock.held";

/// Sends of [`choose`] behind its decision: fewer than would turn it.
pub const AFTER: u64 = 10;

/// Most sends before that: the longest trial has some 700.
const BEFORE: u64 = 2000;

/// Mode and back end by their names.
///
/// # Errors
/// There is none of this name.
pub fn options(mode: &str, backend: &str) -> Result<SendOptions> {
    let mode = match mode {
        "copy" => SendMode::Copy,
        "zerocopy" => SendMode::ZeroCopy,
        "auto" => SendMode::Auto,
        _ => bail!("mode '{mode}': copy, zerocopy or auto"),
    };
    let backend = match backend {
        "socket" => SendBackend::Socket,
        "uring" => SendBackend::Uring,
        _ => bail!("back end '{backend}': socket or uring"),
    };
    Ok(SendOptions::default().mode(mode).backend(backend).timeout(Some(PATIENCE)))
}

/// Sends payloads of [`OLD`], all at once, while nobody takes them, writes [`NEW`] over each, says
/// `changed`, and waits until all memory is back. Returns which payloads are said to have been
/// copied, and the ledger.
///
/// # Errors
/// A payload is refused, or memory does not come back.
pub fn held(socket: OwnedFd, options: SendOptions, count: usize, bytes: usize) -> Result<String> {
    let end = socket.try_clone()?;
    // Never freed: copied payloads, which the sender drops at once, are written to as well.
    let memory: &'static [u8] = Vec::leak(vec![OLD; count * bytes]);
    let mut sender = Sender::new(socket, options)?;
    println!("ready");
    let start = Instant::now();
    while !Path::new(HELD).exists() {
        ensure!(start.elapsed() < PATIENCE, "nobody says that the back end stands still");
        std::thread::sleep(Duration::from_millis(20));
    }
    for payload in memory.chunks(bytes) {
        sender.try_send(payload).map_err(|refused| refused.error)?;
    }
    // The memory is this process's, but not this program's to write to: the kernel reads it.
    let all = OpenOptions::new().write(true).open("/proc/self/mem").context("/proc/self/mem")?;
    all.write_all_at(&vec![NEW; memory.len()], memory.as_ptr() as u64).context("change the payloads")?;
    println!("changed");
    sender.wait_all(PATIENCE)?;
    let completions: Vec<Completion> = std::iter::from_fn(|| sender.next_completion()).collect();
    let copied = (0..count).map(|n| {
        let of = completions.iter().find(|c| c.contains(Ticket::new(n as u32)));
        of.map(|c| c.copied).with_context(|| format!("payload {n} never came back: {completions:?}"))
    });
    let copied = copied.collect::<Result<Vec<bool>>>()?;
    job::end_data(&end)?;
    job::receive_end(&end)?;
    let ledger = sender.counters().snapshot();
    Ok(json!({"copied": copied, "ledger": ledger, "path": sender.path()}).to_string())
}

/// Sends payloads of one length by socket calls, each when the one before it is back. It goes on
/// until the sender has decided how they go, and sends [`AFTER`] more. Returns the choice, the
/// ledger at the decision and at the end, and what the completions said in all.
///
/// # Errors
/// Nothing is decided, or a send fails.
pub fn choose(socket: OwnedFd, bytes: usize) -> Result<String> {
    let end = socket.try_clone()?;
    let payload: &'static [u8] = Vec::leak(vec![OLD; bytes]);
    let options = options("auto", "socket")?.notifications(Notifications::EachOne);
    let mut sender = Sender::new(socket, options)?;
    // Bytes of payloads that came back, copied or not.
    let (mut copied, mut lent) = (0, 0);
    let mut send = |sender: &mut Sender| {
        sender.send(payload)?;
        sender.wait_all(PATIENCE)?;
        while let Some(c) = sender.next_completion() {
            *if c.copied { &mut copied } else { &mut lent } += c.tickets() * bytes;
        }
        anyhow::Ok(())
    };
    let mut sends = 0;
    let choice = loop {
        send(&mut sender)?;
        sends += 1;
        match decision(&sender) {
            Some(choice) => break choice,
            None => ensure!(sends < BEFORE, "undecided after {sends} sends: {:?}", sender.choices()),
        }
    };
    let before = sender.counters().snapshot();
    for _ in 0..AFTER {
        send(&mut sender)?;
    }
    ensure!(decision(&sender).is_some_and(|now| now.way == choice.way), "{:?}", sender.choices());
    job::end_data(&end)?;
    job::receive_end(&end)?;
    let after = sender.counters().snapshot();
    let said = json!({
        "choice": choice, "sends": sends, "before": before, "after": after, "copied": copied, "lent": lent,
        "words": choice.to_string(),
    });
    Ok(said.to_string())
}

/// What serves the one class that was used, if that is decided.
fn decision(sender: &Sender) -> Option<Choice> {
    sender
        .choices()
        .pop()
        .filter(|choice| matches!(choice.because, Because::Measured | Because::KernelCopied))
}
