//! The program as an ordinary user in zero-copy mode: memory that it registers counts against its
//! limit (RLIMIT_MEMLOCK).

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::xdp::frame;

use super::program::Program;
use super::{Card, check_zero_copy};

/// Lengths of the frames, bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// What a VM of `zw-xdp echo` needs: its 8 MiB, the padding before them, and the slab of a queue
/// pair.
const NEED_BYTES: u64 = (8 << 20) + (128 << 10) + 2048 * 256 + 512 * 4096;

/// The limit has no room for the VM; for a part of it; for all.
const TOO_LITTLE: u64 = 1 << 20;
const A_PART: u64 = NEED_BYTES - (4 << 20);
const ENOUGH: u64 = NEED_BYTES + 4096;

/// Where the limit is too low the back end refuses with the figures and the remedy. Where it is
/// not, all frames go without a copy. With `pin=partial` a part of the memory is registered, and
/// frames elsewhere are copied.
pub fn ordinary_user(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    too_little(&mut card).context("too low a limit")?;
    let part = frames(&mut card, "part", A_PART, ",pin=partial")?;
    let path = part["path"].as_str().unwrap_or_default();
    ensure!(
        path.contains(", zero copy; ") && path.contains("of 8 MiB of the guest's memory are pinned"),
        "{part}"
    );
    ensure!(part["ring_errors"] == 0 && part["connection_errors"] == 0, "{part}");
    for way in ["transmit", "receive"] {
        ensure!(part[way]["zero_copied_frames"].as_u64() > Some(0), "{way}: {part}");
    }
    let all = frames(&mut card, "all", ENOUGH, "")?;
    let text = check_zero_copy(&all, LENGTHS.count() as u64)?;
    Ok(format!("refused with {TOO_LITTLE} bytes; {path}; with {ENOUGH} bytes {text}"))
}

/// The program as the user, with one VM at the socket.
fn start(card: &mut Card, socket: &str, limit: u64, more: &str) -> Result<Program> {
    let arguments = format!("--socket {socket} --port xdp:{},mode=zerocopy{more}", card.interface);
    let program = Program::start_by(&mut card.guest, &format!("zw-xdp as-user {limit}"), &arguments)?;
    // Neither root, nor with the capability that lifts the limit (bit 14): CAP_NET_ADMIN,
    // CAP_NET_RAW, CAP_BPF.
    let status = program.status(&mut card.guest)?;
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim();
    ensure!(line("Uid:").starts_with("1000\t1000\t1000"), "{status}");
    ensure!(line("CapEff:") == "0000008000003000" && line("CapPrm:") == line("CapEff:"), "{status}");
    Ok(program)
}

fn too_little(card: &mut Card) -> Result<()> {
    let mut program = start(card, "/tmp/few", TOO_LITTLE, "")?;
    let refused = card.guest.run("zw-xdp echo /tmp/few 1 0", COMMAND)?;
    ensure!(refused.status != 0 && refused.text.contains("SET_VRING_KICK"), "not refused: {}", refused.text);
    let log = program.log(&mut card.guest);
    for word in [
        &format!("{NEED_BYTES} bytes can't be locked"),
        &format!("{TOO_LITTLE} bytes for all programs"),
        "ulimit -l",
        "LimitMEMLOCK=",
        "CAP_IPC_LOCK",
        "pin=partial",
    ] {
        ensure!(log.contains(word), "no '{word}' in {log}");
    }
    // It goes on, and holds nothing.
    let all = program.statistics(&mut card.guest)?;
    let error = all["vms"][0]["last_error"].as_str().unwrap_or_default();
    ensure!(error.contains("can't be locked"), "{all}");
    let status = program.status(&mut card.guest)?;
    ensure!(!status.lines().any(|l| l.starts_with("VmPin:") && !l.ends_with(" 0 kB")), "{status}");
    program.stop(&mut card.guest).map(drop)
}

/// Frames of every length both ways; returns the VM's statistics.
fn frames(card: &mut Card, name: &str, limit: u64, more: &str) -> Result<Value> {
    let socket = format!("/tmp/{name}");
    let program = start(card, &socket, limit, more)?;
    let mut said = None;
    let ran = card.with_vms(&[format!("echo {socket} 1 0")], |card| {
        LENGTHS.map(|len| card.wire.round_trip(&frame(len as u32, len))).try_for_each(|r| r.map(drop))?;
        said = Some(program.stop(&mut card.guest)?);
        Ok(())
    });
    ran.with_context(|| format!("{name}: {}", Program::last_log(&mut card.guest)))?;
    Ok(said.context("no statistics")?["vms"][0].take())
}
