//! A card with two queues: one VM on both, and two VMs on one each.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::xdp::flow;

use super::program::Program;
use super::{Card, check_zero_copy};

/// UDP ports to send from: by them the tap chooses a queue, and frames of one port stay on that.
const PORTS: std::ops::Range<u16> = 5000..5032;

/// Lengths of frames from each port, bytes.
const LENGTHS: [usize; 6] = [60, 61, 257, 1000, 1513, 1514];

/// Queues of the card that the driver receives from, and those that it sends on (virtio 1.3
/// §5.1.2).
const RECEIVE: [u16; 2] = [0, 2];
const TRANSMIT: [u16; 2] = [1, 3];

/// One VM with two queue pairs: frames go both ways on both.
pub fn two(env: &Env<'_>) -> Result<String> {
    in_namespace(|| {
        let mut card = Card::plug_on_tap(env, 2)?;
        let port = format!("--socket /tmp/vm --port xdp:{},queues=2,mode=zerocopy", card.interface);
        let program = Program::start(&mut card.guest, &port)?;
        let mut all = Value::Null;
        let frames = card.with_vms(&["echo /tmp/vm 2 0".to_owned()], |card| {
            let exchanged = exchange(card);
            all = program.stop(&mut card.guest)?;
            exchanged.with_context(|| all.to_string())?;
            Ok(())
        })?;
        let vm = &all["vms"][0];
        let text = check_zero_copy(vm, (PORTS.len() * LENGTHS.len()) as u64)?;
        for way in ["transmit", "receive"] {
            let by_queue = by_queue(vm, way)?;
            ensure!(
                by_queue.len() == 2 && by_queue.iter().all(|n| *n >= LENGTHS.len() as u64),
                "{way}: {vm}"
            );
        }
        Ok(format!("{text}; received on each queue: {}", frames.join(" ")))
    })
}

/// Two VMs with a queue each: a frame for one never reaches the other.
pub fn two_vms(env: &Env<'_>) -> Result<String> {
    in_namespace(|| {
        let mut card = Card::plug_on_tap(env, 2)?;
        let vm = |name: char, queue: u32| {
            format!(
                "--vm name={name},socket=/tmp/{name},port=xdp:{},queue={queue},mode=zerocopy",
                card.interface
            )
        };
        let arguments = format!("{} {}", vm('a', 0), vm('b', 1));
        let mut program = Program::start(&mut card.guest, &arguments)?;
        let mut text = Vec::new();
        card.with_vms(&["echo /tmp/a 1 0".to_owned(), "echo /tmp/b 1 1".to_owned()], |card| {
            // From here on all frames of both queues are the VMs'.
            let first = exchange(card)?;
            let before = Counts::read(card, &mut program)?;
            for _ in 0..3 {
                let again = exchange(card)?;
                ensure!(again == first, "frames of one port went to another VM: {first:?}, then {again:?}");
            }
            let after = Counts::read(card, &mut program)?;
            // What QEMU put into a queue of the card, and took from one, is what that queue's VM
            // had.
            for queue in 0..2 {
                for (way, name) in ["received", "sent"].into_iter().enumerate() {
                    let [now, then] = [&after, &before].map(|c| (c.card[queue][way], c.vms[queue][way]));
                    let by_card = (now.0 + 0x1_0000 - then.0) % 0x1_0000;
                    let by_vm = now.1 - then.1;
                    ensure!(
                        by_card == by_vm && by_card > 0,
                        "queue {queue}: the card has {name} {by_card} frames, the VM {by_vm}: {before:?}, {after:?}"
                    );
                    text.push(format!("{name} {by_vm}"));
                }
            }
            let all = program.stop(&mut card.guest)?;
            for vm in all["vms"].as_array().context("VMs")? {
                check_zero_copy(vm, LENGTHS.len() as u64)?;
            }
            Ok(())
        })?;
        Ok(format!("two VMs, by queue: {}", text.join(", ")))
    })
}

/// Runs `test` in a network namespace of its own, QEMU included.
fn in_namespace(test: impl FnOnce() -> Result<String> + Send) -> Result<String> {
    let namespace = Netns::new()?;
    // All that the tap's other end sends is what this program sends there.
    namespace.inside(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").context("IPv6 off")?;
        test()
    })
}

/// Sends frames of each length from each port; says which VM has answered each port, always the
/// same one, and both some.
fn exchange(card: &mut Card) -> Result<BTreeMap<u16, u8>> {
    let mut names = BTreeMap::new();
    for (len, n) in LENGTHS.into_iter().zip(0..) {
        for port in PORTS {
            let name = card.wire.round_trip(&flow(port, n, len))?;
            if let Some(before) = names.insert(port, name).filter(|before| *before != name) {
                bail!("VM {name} answered a frame of {len} bytes from port {port}, VM {before} one before");
            }
        }
    }
    Ok(names)
}

/// Frames by queue, received and sent.
#[derive(Debug)]
struct Counts {
    /// As QEMU counts them, modulo 65536.
    card: [[u64; 2]; 2],
    /// As the VMs' statistics have them.
    vms: [[u64; 2]; 2],
}

impl Counts {
    fn read(card: &mut Card, program: &mut Program) -> Result<Self> {
        let mut queues = [[0; 2]; 2];
        for (queue, counts) in queues.iter_mut().enumerate() {
            *counts = [card.used(RECEIVE[queue])?.into(), card.used(TRANSMIT[queue])?.into()];
        }
        let all = program.statistics(&mut card.guest)?;
        let mut vms = [[0; 2]; 2];
        for (vm, counts) in vms.iter_mut().enumerate() {
            for (way, count) in ["receive", "transmit"].into_iter().zip(counts) {
                *count = by_queue(&all["vms"][vm], way)?.iter().sum();
            }
        }
        Ok(Self { card: queues, vms })
    }
}

fn by_queue(vm: &Value, way: &str) -> Result<Vec<u64>> {
    let list =
        vm[way]["frames_by_queue"].as_array().with_context(|| format!("no frames_by_queue in {vm}"))?;
    Ok(list.iter().filter_map(Value::as_u64).collect())
}
