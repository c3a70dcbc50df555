//! A program as an ordinary user that has what an AF_XDP port needs, and no more.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Somebody.
const USER: u32 = 1000;

/// What the port needs (docs/xdp.md). CAP_IPC_LOCK is not among it: then memory counts against the
/// limit.
const NEEDED: [CapabilitySet; 3] = [CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW, CapabilitySet::BPF];

/// `as-user BYTES PROGRAM …`: becomes the program, which may lock BYTES bytes of memory. This
/// process has one thread.
pub fn run(bytes: &str, program: &[&str]) -> Result<String> {
    let bytes = bytes.parse().with_context(|| format!("'{bytes}' bytes: give a number"))?;
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    set_keep_capabilities(true)?;
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    let all = NEEDED.into_iter().fold(CapabilitySet::empty(), |all, one| all | one);
    set_capabilities(None, CapabilitySets { effective: all, permitted: all, inheritable: all })?;
    for capability in NEEDED {
        configure_capability_in_ambient_set(capability, true)?;
    }
    let (name, arguments) = program.split_first().context("no program: give one")?;
    let error = Command::new(name).args(arguments).exec();
    Err(error).with_context(|| format!("start {name}"))
}
