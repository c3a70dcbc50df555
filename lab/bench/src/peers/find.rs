//! The programs that zerowire is compared with, and where they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::Result;
use clap::ValueEnum;

use super::cell::ComparedPart;
use crate::experiment::Failure;
use crate::words::{by_words, wrong};

/// A program of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeerProgram {
    /// DPDK's forwarder between ports; here vhost-user and a tap.
    #[value(name = "dpdk-testpmd")]
    Testpmd,
    /// User-mode networking of a guest.
    Passt,
    /// rust-vmm's vsock device.
    VhostDeviceVsock,
    /// Sends captures.
    Tcpreplay,
    /// Measures TCP.
    Iperf3,
}

by_words!(PeerProgram);

impl PeerProgram {
    /// Which part of zerowire it is compared with.
    pub fn part(self) -> ComparedPart {
        match self {
            Self::Testpmd => ComparedPart::Net,
            Self::Passt => ComparedPart::Udp,
            Self::VhostDeviceVsock => ComparedPart::Vsock,
            Self::Tcpreplay => ComparedPart::Replay,
            Self::Iperf3 => ComparedPart::Tcp,
        }
    }

    /// What to install.
    fn source(self) -> &'static str {
        match self {
            Self::Testpmd => "Debian package dpdk-dev",
            Self::Passt => "Debian package passt",
            Self::VhostDeviceVsock => "no package in Debian 12; `cargo install vhost-device-vsock`",
            Self::Tcpreplay => "Debian package tcpreplay",
            Self::Iperf3 => "Debian package iperf3",
        }
    }
}

/// A peer, and its program's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPeer {
    /// Which one.
    pub peer: PeerProgram,
    /// Its file.
    pub path: PathBuf,
}

impl FromStr for NamedPeer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
        let (name, path) = parts.ok_or_else(|| format!("--peer {text}: give NAME=PATH"))?;
        let peer = PeerProgram::from_str(name, false).map_err(|_| {
            let all: Vec<_> = PeerProgram::value_variants().iter().map(ToString::to_string).collect();
            format!("--peer {text}: there is no peer '{name}': choose one of {}", all.join(", "))
        })?;
        Ok(Self { peer, path: path.into() })
    }
}

/// Refuses a peer that is given twice, and files that are not there.
pub(super) fn verify(given: &[NamedPeer]) -> Result<()> {
    for (index, NamedPeer { peer, path }) in given.iter().enumerate() {
        if given[..index].iter().any(|other| other.peer == *peer) {
            wrong!("--peer {peer}={}: {peer} is given twice", path.display());
        }
        if !path.is_file() {
            wrong!("--peer {peer}={}: there is no such file", path.display());
        }
    }
    Ok(())
}

/// The program of `peer`: the one that was given, else the one in PATH; or why there is none that
/// can be used.
pub(super) fn find(peer: PeerProgram, given: &[NamedPeer]) -> Result<PathBuf, Failure> {
    let named = given.iter().find(|named| named.peer == peer).map(|named| named.path.clone());
    let program = named
        .or_else(|| in_path(&peer.to_string()))
        .ok_or_else(|| Failure::of(peer, format!("{peer} is not installed ({})", peer.source())))?;
    let has_vhost_user = || said(&program, &["--help"]).is_some_and(|help| help.contains("--vhost-user"));
    if peer == PeerProgram::Passt && !has_vhost_user() {
        let words = "passt: the one that is installed has no --vhost-user; Debian 13 has a passt with it";
        return Err(Failure::of(peer, words));
    }
    Ok(program)
}

/// The file `name` in one of the folders of PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The first line that `program` says when it is run with `arguments`, on either output.
pub(super) fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let text = said(program, arguments)?;
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// What `program` says when it is run with `arguments`: standard output, then standard error.
pub(super) fn said(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[cfg(test)]
mod tests;
