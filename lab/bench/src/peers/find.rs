//! The programs that zerowire is compared with, and where they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::Result;
use serde::Serialize;

use super::cell::ComparedPart;
use crate::experiment::Failure;
use crate::wrong::wrong;

/// A program of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum PeerProgram {
    /// DPDK's forwarder between ports; here vhost-user and a tap.
    #[serde(rename = "dpdk-testpmd")]
    Testpmd,
    /// User-mode networking of a guest.
    #[serde(rename = "passt")]
    Passt,
    /// rust-vmm's vsock device.
    #[serde(rename = "vhost-device-vsock")]
    VhostDeviceVsock,
    /// Sends captures.
    #[serde(rename = "tcpreplay")]
    Tcpreplay,
    /// Measures TCP.
    #[serde(rename = "iperf3")]
    Iperf3,
}

impl PeerProgram {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Testpmd, Self::Passt, Self::VhostDeviceVsock, Self::Tcpreplay, Self::Iperf3];

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Testpmd => "dpdk-testpmd",
            Self::Passt => "passt",
            Self::VhostDeviceVsock => "vhost-device-vsock",
            Self::Tcpreplay => "tcpreplay",
            Self::Iperf3 => "iperf3",
        }
    }

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

    /// Why it has no figures.
    pub fn absent(self, reason: impl std::fmt::Display) -> Failure {
        Failure { variant: self.name().to_owned(), reason: reason.to_string() }
    }
}

impl FromStr for PeerProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|peer| peer.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no peer '{text}': choose one of {names}")
        })
    }
}

/// A peer, and the file that is to be run for it.
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
        let peer = name.parse().map_err(|e| format!("--peer {text}: {e}"))?;
        Ok(Self { peer, path: path.into() })
    }
}

/// Refuses a peer that is given twice, and files that are not there.
pub(super) fn verify(given: &[NamedPeer]) -> Result<()> {
    for (index, NamedPeer { peer, path }) in given.iter().enumerate() {
        let name = peer.name();
        if given[..index].iter().any(|other| other.peer == *peer) {
            wrong!("--peer {name}={}: {name} is given twice", path.display());
        }
        if !path.is_file() {
            wrong!("--peer {name}={}: there is no such file", path.display());
        }
    }
    Ok(())
}

/// The program of `peer`: the one that was given, else the one in PATH; or why there is none.
pub(super) fn find(peer: PeerProgram, given: &[NamedPeer]) -> Result<PathBuf, Failure> {
    if let Some(found) = given.iter().find(|named| named.peer == peer) {
        return Ok(found.path.clone());
    }
    in_path(peer.name())
        .ok_or_else(|| peer.absent(format!("{} is not installed ({})", peer.name(), peer.source())))
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
