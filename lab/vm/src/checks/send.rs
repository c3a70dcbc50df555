//! `zerowire send` in a guest, over its virtio-net card to plain receivers on the host's end of the
//! tap. Every byte arrives, and what the guest's kernel says of copies is what was requested.
//!
//! ```text
//!  guest: zerowire send ── TCP, UDP ── virtio-net ── zerowire net ── tap0 ── this program
//! ```

use std::net::{TcpListener, UdpSocket};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::send::{self, PatternFile, Said};
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::limit;

use super::setup::{HOST, Net, Plan};
use super::vsock::setup::together;

/// Odd lengths, so that the last call is a short one, though none that is copied for being small.
const STREAM: PatternFile = PatternFile { seed: 70, bytes: (4 << 20) + 4_321 };
const DATAGRAMS: PatternFile = PatternFile { seed: 71, bytes: (4 << 20) + 4_321 };

/// Length of each datagram but the last, as `zerowire send` has it without an option.
const DATAGRAM_BYTES: usize = 1_400;

/// Room for all datagrams at once with what the kernel counts for each: the receiver loses none,
/// however late it is.
const ROOM_BYTES: usize = 64 << 20;

/// Of lent bytes, percent that the kernel must not have copied.
const ZERO_COPIED: u64 = 90;

/// The same of what SEND_ZC has lent over TCP: at times Linux 7.3 says of one or two payloads of 17
/// that it copied them.
const ZERO_COPIED_BY_SEND_ZC: u64 = 60;

/// Modes of `zerowire send`.
const MODES: [&str; 2] = ["copy", "zerocopy"];

/// Back ends of `zerowire send`.
const BACKENDS: [&str; 2] = ["socket", "uring"];

/// A plain receiver at an address.
pub struct Sink {
    listener: TcpListener,
}

impl Sink {
    /// Listens on the host's end of the link.
    pub fn new(net: &Net) -> Result<Self> {
        let listener = net.namespace.inside(|| TcpListener::bind((HOST, 0)).context("listen on TCP"))?;
        // A guest that fails before it connects is not awaited for ever.
        limit(&listener)?;
        Ok(Self { listener })
    }

    /// HOST:PORT
    pub fn address(&self) -> Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    /// Takes one connection and compares every byte that comes.
    pub fn receive(&self, file: PatternFile) -> Result<()> {
        let (socket, _) = self.listener.accept().context("accept")?;
        limit(&socket)?;
        let load = Load { seed: file.seed, bytes: file.bytes, write_bytes: 0 };
        job::receive_whole(&socket, load)
    }
}

/// TCP and UDP, copying and lending, by socket calls and by io_uring.
pub fn net(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    net.wait_for_link()?;
    for file in [STREAM, DATAGRAMS] {
        file.write(&mut net.guest)?;
    }
    let sink = Sink::new(&net)?;
    let udp = net.namespace.inside(|| UdpSocket::bind((HOST, 0)).context("a UDP socket"))?;
    set_socket_recv_buffer_size_force(&udp, ROOM_BYTES).context("SO_RCVBUFFORCE")?;
    let mut text = Vec::new();
    for backend in BACKENDS {
        let tcp_at_least = if backend == "uring" { ZERO_COPIED_BY_SEND_ZC } else { ZERO_COPIED };
        for mode in MODES {
            let options = format!("--mode {mode} --backend {backend}");
            let to = sink.address()?;
            let guest = &mut net.guest;
            let sent = together(|| sink.receive(STREAM), || send::complete(guest, &to, STREAM, &options));
            let checked = sent.and_then(|(said, ())| check(&said, mode, tcp_at_least));
            let tcp = checked.with_context(|| format!("TCP, {options}"))?;

            let to = udp.local_addr()?.to_string();
            let options = format!("{options} --udp");
            let guest = &mut net.guest;
            let receive = || send::receive_datagrams(&udp, DATAGRAMS, DATAGRAM_BYTES);
            let sent = together(receive, || send::complete(guest, &to, DATAGRAMS, &options));
            let checked = sent.and_then(|(said, ())| check(&said, mode, ZERO_COPIED));
            let udp = checked.with_context(|| format!("UDP, {options}"))?;
            text.push(format!("{mode} {backend}: TCP {tcp} %, UDP {udp} %"));
        }
    }
    net.finish()?;
    Ok(format!("zero-copied: {}", text.join("; ")))
}

/// Fails unless the ledger is what this mode means: lent bytes are zero-copied, `at_least` this
/// percentage of them. Returns the percentage.
fn check(said: &Said, mode: &str, at_least: u64) -> Result<u64> {
    let ledger = &said.ledger;
    let share = ledger.zero_copied_bytes * 100 / said.bytes;
    match mode {
        "copy" => ensure!(ledger.copied("asked") == said.bytes, "not copied as asked: {said:?}"),
        _ => ensure!(share >= at_least, "only {share} % were zero-copied: {said:?}"),
    }
    Ok(share)
}
