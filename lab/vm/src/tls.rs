//! TLS in the kernel (Documentation/networking/tls.rst) between two sockets of this machine, and
//! zerowire's sender on it. The kernel encrypts what is sent into memory of its own, so nothing can
//! be lent.

use std::io::Error;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use zerowire::send::{SendError, SendOptions, Sender};

use crate::vsock::guest::set_option;
use crate::vsock::job::{self, Load};
use crate::vsock::pattern::Pattern;
use crate::vsock::{PATIENCE, limit};

/// What a sender did, and what the kernel says to a plain program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sent {
    /// The error of `send` with MSG_ZEROCOPY on such a connection.
    pub errno: i32,
    /// The sender's words of what ran.
    pub path: String,
    /// The sender's ledger.
    pub ledger: crate::send::Ledger,
}

/// A TCP connection. What is written to the first end is read from the second one. Between them the
/// kernel encrypts and decrypts it by AES-GCM with a key of 128 bits.
fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let near = TcpStream::connect(listener.local_addr()?).context("connect")?;
    let (far, _) = listener.accept().context("accept")?;
    let keys = libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_2_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [1; 8],
        key: [2; 16],
        salt: [3; 4],
        rec_seq: [0; 8],
    };
    for (socket, direction) in [(&near, libc::TLS_TX), (&far, libc::TLS_RX)] {
        limit(socket)?;
        set_option(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls").context("TCP_ULP tls")?;
        set_option(socket, libc::SOL_TLS, direction, &keys).context("keys for TLS in the kernel")?;
    }
    Ok((near, far))
}

/// The error of a plain program that lends a byte.
fn refusal() -> Result<i32> {
    static BYTE: [u8; 1] = [0];
    let (near, _far) = pair()?;
    set_option(&near, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1_i32).context("SO_ZEROCOPY")?;
    // SAFETY: the byte lives for ever.
    let sent = unsafe { libc::send(near.as_raw_fd(), BYTE.as_ptr().cast(), 1, libc::MSG_ZEROCOPY) };
    ensure!(sent < 0, "the kernel takes lent memory");
    Error::last_os_error().raw_os_error().context("no error number")
}

/// Sends a load by zerowire's sender; a plain program reads and compares it.
///
/// # Errors
/// This kernel has no TLS, a send fails, or a byte is wrong.
pub fn send(options: SendOptions, load: Load) -> Result<Sent> {
    let errno = refusal()?;
    let (near, far) = pair()?;
    let memory: &'static [u8] = Vec::leak(Pattern::new(load.seed).bytes(0, usize::try_from(load.bytes)?));
    let mut sender = Sender::new(near.into(), options)?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| job::receive_whole(&far, load));
        for (number, payload) in memory.chunks(load.write_bytes).enumerate() {
            sender.send(payload).with_context(|| format!("payload {number}"))?;
        }
        sender.wait_all(PATIENCE)?;
        let (path, counters) = (sender.path(), sender.counters());
        job::end_data(sender.into_socket(PATIENCE).map_err(SendError::from)?)?;
        reader.join().ok().context("the reader panicked")??;
        let ledger = serde_json::from_value(serde_json::to_value(counters.snapshot())?)?;
        Ok(Sent { errno, path, ledger })
    })
}
