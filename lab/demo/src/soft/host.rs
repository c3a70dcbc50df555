//! The other end of the transfers: a socket of the host's kernel and a thread, and the
//! bytes that both ends agree on.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::HOST;
use crate::story::ledger::Way;

/// Bytes without a period within it, sent again and again. Its odd length lets it start
/// at other places of frames and buffers each time.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(PATTERN_BYTES + 8);
    while bytes.len() < PATTERN_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(PATTERN_BYTES);
    bytes
});

const PATTERN_BYTES: usize = (1 << 20) + 13;

/// Bytes of one read or write of the host's thread.
const CHUNK: usize = 256 << 10;

/// How long a peer that hears nothing waits.
const SILENCE: Duration = Duration::from_secs(20);

/// The pattern from byte `at` of the stream on, as far as it is in one piece.
pub(super) fn pattern_at(at: u64) -> &'static [u8] {
    &PATTERN[(at % PATTERN_BYTES as u64) as usize..]
}

/// Fails unless `bytes` are those that belong at byte `at` of the stream.
pub(super) fn check_pattern(mut at: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let wanted = pattern_at(at);
        let len = wanted.len().min(bytes.len());
        if bytes[..len] != wanted[..len] {
            let place = bytes.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(0);
            bail!("byte {} of the transfer is wrong", at + place as u64);
        }
        at += len as u64;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// A thread that serves one connection.
pub(super) struct HostPeer {
    port: u16,
    thread: JoinHandle<Result<u64>>,
}

impl HostPeer {
    /// Listens in the calling thread's network namespace: takes what comes from the guest,
    /// or sends it `bytes`.
    pub(super) fn start(way: Way, bytes: u64) -> Result<Self> {
        let listener = TcpListener::bind((HOST, 0)).with_context(|| format!("listen on {HOST}"))?;
        let port = listener.local_addr()?.port();
        let thread = std::thread::Builder::new().name("host".into()).spawn(move || {
            let (stream, _) = listener.accept().context("accept the guest's connection")?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            match way {
                Way::FromGuest => take(stream),
                Way::ToGuest => give(stream, bytes),
            }
        })?;
        Ok(Self { port, thread })
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Waits for its end; returns how many bytes it moved.
    pub(super) fn finish(self) -> Result<u64> {
        self.thread.join().map_err(|_| anyhow!("the host's thread panicked; its message is above"))?
    }
}

/// Reads and compares to the end of the stream; returns how many bytes came.
pub(super) fn take(mut stream: impl Read) -> Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    loop {
        let len = stream.read(&mut buffer).context("receive from the guest")?;
        if len == 0 {
            return Ok(done);
        }
        check_pattern(done, &buffer[..len])?;
        done += len as u64;
    }
}

/// Writes `bytes` bytes of the pattern.
pub(super) fn give(mut stream: impl Write, bytes: u64) -> Result<u64> {
    let mut done = 0;
    while done < bytes {
        let rest = pattern_at(done);
        let len = rest.len().min(CHUNK).min((bytes - done) as usize);
        stream.write_all(&rest[..len]).context("send to the guest")?;
        done += len as u64;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_and_named() {
        let mut bytes = pattern_at(5)[..1000].to_vec();
        assert!(check_pattern(5, &bytes).is_ok());
        bytes[10] ^= 1;
        assert!(check_pattern(5, &bytes).unwrap_err().to_string().contains("byte 15 "));
    }

    #[test]
    fn the_pattern_goes_on_at_its_end() {
        let at = PATTERN_BYTES as u64 - 3;
        let bytes = [&PATTERN[PATTERN_BYTES - 3..], &PATTERN[..4]].concat();
        assert!(check_pattern(at, &bytes).is_ok());
    }
}
