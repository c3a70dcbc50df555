//! The program itself: `zerowire net --port xdp:…,mode=zerocopy` as a process in the guest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::backend;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::xdp::{frame, tagged};

use super::{Card, check_zero_copy};

/// Lengths of frames without a tag, bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// What the program writes goes to these files.
const OUT: &str = "/tmp/net.out";
const LOG: &str = "/tmp/net.log";
const PID: &str = "/tmp/net.pid";
const STATUS: &str = "/tmp/net.status";

/// For an answer to a signal.
const ANSWER: Duration = Duration::from_secs(20);

/// `zerowire net --json` in the guest.
#[derive(Debug)]
pub struct Program {
    /// Statistics that were asked for.
    answers: usize,
}

impl Program {
    /// Starts it; one at a time.
    pub fn start(guest: &mut Guest, arguments: &str) -> Result<Self> {
        Self::start_by(guest, "", arguments)
    }

    /// Starts it by a command that becomes it.
    pub fn start_by(guest: &mut Guest, by: &str, arguments: &str) -> Result<Self> {
        backend::static_program()?;
        guest.sh(&format!(
            "rm -f {STATUS}; (sh -c 'echo $$ >{PID}; exec {by} zerowire net --json {arguments}'; echo $? >{STATUS}) \
             >{OUT} 2>{LOG} &"
        ))?;
        let mut program = Self { answers: 0 };
        let listening = guest.until(&format!("grep -q 'listening on' {LOG} || test -e {STATUS}"), COMMAND);
        listening.and_then(|_| program.check_runs(guest)).with_context(|| program.log(guest))?;
        Ok(program)
    }

    fn check_runs(&mut self, guest: &mut Guest) -> Result<()> {
        let ended = guest.run(&format!("cat {STATUS}"), COMMAND)?;
        ensure!(ended.status != 0, "zerowire net has ended with status {}", ended.text);
        Ok(())
    }

    /// What it has written to standard error.
    pub fn log(&self, guest: &mut Guest) -> String {
        Self::last_log(guest)
    }

    /// The same of the one that was started last.
    pub fn last_log(guest: &mut Guest) -> String {
        guest.sh(&format!("cat {LOG}")).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// What the kernel says of the process.
    pub fn status(&self, guest: &mut Guest) -> Result<String> {
        guest.sh(&format!("cat /proc/$(cat {PID})/status"))
    }

    /// Its statistics now.
    pub fn statistics(&mut self, guest: &mut Guest) -> Result<Value> {
        self.check_runs(guest)?;
        self.signal(guest, "USR1")
    }

    /// Ends it; returns the statistics that it prints then.
    pub fn stop(mut self, guest: &mut Guest) -> Result<Value> {
        self.check_runs(guest)?;
        let last = self.signal(guest, "TERM")?;
        let status = guest.until(&format!("cat {STATUS}"), ANSWER)?;
        ensure!(status.trim() == "0", "after SIGTERM zerowire net ended with {status}: {}", self.log(guest));
        Ok(last)
    }

    /// The next line of standard output after a signal.
    fn signal(&mut self, guest: &mut Guest, name: &str) -> Result<Value> {
        self.answers += 1;
        let line = self.answers;
        guest.sh(&format!("kill -{name} $(cat {PID})"))?;
        let line = guest.until(&format!("sed -n {line}p {OUT} | grep ."), ANSWER);
        let line = line.with_context(|| format!("statistics after SIG{name}: {}", self.log(guest)))?;
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }
}

/// Frames of every length both ways through the program.
pub fn frames(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let all = LENGTHS.map(|len| frame(len as u32, len));
    let (log, vm) = through(&mut card, all)?;
    // What the port is, and why the guest has no offloads: with them frames would be copied.
    let port = format!("port xdp:{},queue=0,queues=1,mode=zerocopy", card.interface);
    for words in [port.as_str(), "offloads=off (with them frames could not be sent without a copy"] {
        ensure!(log.contains(words), "no '{words}' in {log}");
    }
    check_zero_copy(&vm, LENGTHS.count() as u64)
}

/// Frames with VLAN tags both ways through the program.
pub fn vlan(env: &Env<'_>) -> Result<String> {
    // Priority only, lowest and highest VLAN, with all priority bits, and one tag in another (IEEE
    // 802.1Q, 802.1ad).
    let kinds: [&[[u8; 4]]; 5] = [
        &[[0x81, 0, 0xe0, 0]],
        &[[0x81, 0, 0, 1]],
        &[[0x81, 0, 0xff, 0xfe]],
        &[[0x81, 0, 0x20, 100]],
        &[[0x88, 0xa8, 0, 7], [0x81, 0, 0, 100]],
    ];
    let mut card = Card::plug(env)?;
    // The card gives its driver frames of VLANs that were asked for, or of all where it is
    // promiscuous, which the program sees to.
    let lengths: Vec<usize> = (64..=1518).step_by(23).chain([1513, 1514, 1515, 1517, 1518]).collect();
    let all = lengths.iter().zip(0_u32..).flat_map(|(&len, n)| kinds.map(|tags| tagged(tags, n, len)));
    let (_, vm) = through(&mut card, all)?;
    check_zero_copy(&vm, (lengths.len() * kinds.len()) as u64)
}

/// The card filters: frames for the VM's own address come only where the program has the interface
/// promiscuous.
pub fn address(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    // Another last byte than the card's address has.
    let mut other = frame(2, 300);
    other[5] ^= 8;
    for (promisc, comes) in [("off", false), ("on", true)] {
        let socket = format!("/tmp/{promisc}");
        let port = format!("--socket {socket} --port xdp:{},mode=zerocopy,promisc={promisc}", card.interface);
        let program = Program::start(&mut card.guest, &port)?;
        card.with_vms(&[format!("echo {socket} 1 0")], |card| {
            card.wire.round_trip(&frame(1, 300)).with_context(|| program.log(&mut card.guest))?;
            ensure!(
                card.wire.comes_back(&other)? == comes,
                "promisc={promisc}: {}",
                program.log(&mut card.guest)
            );
            program.stop(&mut card.guest).map(drop)
        })?;
    }
    Ok("frames for another address than the card's with promisc=on only".to_owned())
}

/// Sends frames back and forth through the program with one VM. Returns its log, and the VM's
/// statistics at its end.
fn through(card: &mut Card, frames: impl Iterator<Item = Vec<u8>>) -> Result<(String, Value)> {
    let port = format!("--socket /tmp/vm --port xdp:{},mode=zerocopy", card.interface);
    let program = Program::start(&mut card.guest, &port)?;
    let mut said = None;
    card.with_vms(&["echo /tmp/vm 1 0".to_owned()], |card| {
        for frame in frames {
            card.wire.round_trip(&frame).with_context(|| program.log(&mut card.guest))?;
        }
        let log = program.log(&mut card.guest);
        // While the VM is there.
        said = Some((log, program.stop(&mut card.guest)?));
        Ok(())
    })?;
    let (log, mut all) = said.context("no statistics")?;
    let vm = all["vms"][0].take();
    ensure!(vm["connected"] == true, "the VM was gone: {vm}");
    Ok((log, vm))
}
