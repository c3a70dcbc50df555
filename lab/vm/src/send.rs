//! `zerowire send` in a guest: the static program sends a file of a known pattern.

use std::collections::BTreeMap;
use std::net::UdpSocket;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::guest::Guest;
use crate::vsock::pattern::Pattern;
use crate::vsock::{PATIENCE, remote};

/// The longest datagram.
const DATAGRAM_BYTES: usize = 64 << 10;

/// Where files lie in the guest, if nowhere else: in a tmpfs.
const FOLDER: &str = "/tmp";

/// What `zerowire send --json` says at its end.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Said {
    /// `complete`, `failed` or `interrupted`.
    pub outcome: String,
    /// What ran, and why.
    pub path: String,
    /// Bytes that were sent.
    pub bytes: u64,
    /// How they went.
    pub ledger: Ledger,
}

/// How the bytes went, as the kernel says in its notifications.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Ledger {
    /// All bytes.
    pub bytes: u64,
    /// Bytes that went out of the program's pages.
    pub zero_copied_bytes: u64,
    /// The others, by reason.
    pub copied_bytes: BTreeMap<String, u64>,
}

impl Ledger {
    /// Fails unless each byte was either zero-copied or copied, and all are there.
    ///
    /// # Errors
    /// The message holds the ledger.
    pub fn check(&self, bytes: u64) -> Result<()> {
        let copied: u64 = self.copied_bytes.values().sum();
        ensure!(
            self.bytes == bytes && self.zero_copied_bytes + copied == bytes,
            "of {bytes} bytes the ledger has: {self:?}"
        );
        Ok(())
    }

    /// Bytes that were copied for a reason.
    pub fn copied(&self, reason: &str) -> u64 {
        self.copied_bytes.get(reason).copied().unwrap_or(0)
    }
}

/// A file of a pattern in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternFile {
    /// Names the pattern.
    pub seed: u64,
    /// Its length.
    pub bytes: u64,
}

impl PatternFile {
    /// Writes it to `FOLDER`.
    ///
    /// # Errors
    /// The guest has no room for it.
    pub fn write(self, guest: &mut Guest) -> Result<()> {
        self.write_to(guest, FOLDER)
    }

    /// Writes it to another folder.
    ///
    /// # Errors
    /// The guest has no room for it.
    pub fn write_to(self, guest: &mut Guest, folder: &str) -> Result<()> {
        let Self { seed, bytes } = self;
        remote::run(guest, &format!("file {seed} {bytes} {}", self.path(folder)))?;
        Ok(())
    }

    /// Its name in a folder.
    pub fn path(self, folder: &str) -> String {
        format!("{folder}/pattern-{}-{}", self.seed, self.bytes)
    }
}

/// Sends a file of `FOLDER` to a peer, all of it.
///
/// # Errors
/// As [`complete_from`].
pub fn complete(guest: &mut Guest, to: &str, file: PatternFile, options: &str) -> Result<Said> {
    complete_from(guest, to, file, FOLDER, options)
}

/// Sends a file of a folder to a peer, all of it; the ledger has every byte.
///
/// # Errors
/// Not everything was sent; the message holds the program's words.
pub fn complete_from(
    guest: &mut Guest,
    to: &str,
    file: PatternFile,
    folder: &str,
    options: &str,
) -> Result<Said> {
    // A transfer that stalls ends by itself, with a message.
    let timeout = PATIENCE.as_secs();
    let path = file.path(folder);
    let line = format!("zerowire send --to {to} {path} --timeout {timeout} {options} --quiet --json -");
    let output = guest.run(&format!("{line} 2>&1"), PATIENCE.saturating_mul(2))?;
    let words = || format!("in the guest: `{line}`: status {}: {}", output.status, output.text);
    let json = output.text.lines().find(|line| line.starts_with('{')).with_context(words)?;
    let said: Said = serde_json::from_str(json).with_context(words)?;
    let complete = output.status == 0 && said.outcome == "complete" && said.bytes == file.bytes;
    ensure!(complete, words());
    said.ledger.check(file.bytes)?;
    Ok(said)
}

/// Receives a file as datagrams, in order and without a gap.
///
/// # Errors
/// None comes for a while, or a byte is wrong: a datagram was lost, doubled or changed.
pub fn receive_datagrams(socket: &UdpSocket, file: PatternFile, length: usize) -> Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let pattern = Pattern::new(file.seed);
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let (mut received, mut count) = (0, 0_u64);
    while received < file.bytes {
        let wanted = (file.bytes - received).min(length as u64);
        let place = || format!("datagram {count}, at byte {received} of {}", file.bytes);
        let came = socket.recv(&mut buffer).with_context(place)?;
        ensure!(came as u64 == wanted, "{came} bytes came, not {wanted}: {}", place());
        if let Some(wrong) = pattern.first_difference(received, &buffer[..came]) {
            bail!("byte {wrong} is wrong: {}", place());
        }
        received += came as u64;
        count += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
