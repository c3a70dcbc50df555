//! The configuration file: one `[[vm]]` a VM, with a table for each device that it has.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// The file. A key that is not known is an error, so that a misspelt one is not passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    vm: Vec<VmTable>,
}

/// One VM. Each command serves the VMs that have its table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// In logs and statistics.
    pub name: Spanned<String>,
    /// `[vm.net]`.
    pub net: Option<Net>,
    /// `[vm.vsock]`.
    pub vsock: Option<Vsock>,
}

/// What `zerowire net` needs; also the body by which the control socket adds a VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Net {
    /// Where the front end connects.
    pub socket: PathBuf,
    /// tap:NAME[,queues=N].
    pub port: String,
    /// JSON document for the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PathBuf>,
    /// required or optional.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_token: Option<String>,
    /// The device's address, in place of --mac.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Name or number of the user who owns the socket, in place of --socket-owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Name or number of the socket's group, in place of --socket-group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// The socket's permissions in octal, in place of --socket-mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
}

/// What `zerowire vsock` needs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vsock {
    /// Where the front end connects.
    pub socket: PathBuf,
    /// The guest's address.
    pub cid: u64,
    /// Where host programs connect, and the first part of the names of their own sockets.
    pub uds: PathBuf,
    /// Which other VMs it reaches; without it, those that name none either.
    pub groups: Option<Vec<String>>,
    /// Name or number of the user who owns `socket`, in place of --socket-owner.
    pub socket_owner: Option<String>,
    /// Name or number of the group of `socket`, in place of --socket-group.
    pub socket_group: Option<String>,
    /// Permissions of `socket` in octal, in place of --socket-mode.
    pub socket_mode: Option<String>,
    /// Name or number of the user who owns the host end's sockets, in place of --uds-owner.
    pub uds_owner: Option<String>,
    /// Name or number of the host end's group, in place of --uds-group.
    pub uds_group: Option<String>,
    /// Permissions of the host end's sockets in octal, in place of --uds-mode.
    pub uds_mode: Option<String>,
}

/// The tables that `pick` finds in the file's VMs, with the VMs' names, no two of which are the
/// same. An error if there is none; `table` is its name in that message.
pub fn read<T>(path: &Path, table: &str, pick: fn(VmTable) -> Option<T>) -> Result<Vec<(String, T)>> {
    let found = read_any(path, pick)?;
    if found.is_empty() {
        bail!("{}: no [[vm]] with a [{table}] table", path.display());
    }
    Ok(found)
}

/// The same, and none if there is none.
pub fn read_any<T>(path: &Path, pick: fn(VmTable) -> Option<T>) -> Result<Vec<(String, T)>> {
    let context = || format!("configuration file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(context)?;
    // The text of an error ends with a newline.
    let file: File =
        toml::from_str(&text).map_err(|e| anyhow!("{}", e.to_string().trim_end())).with_context(context)?;
    let mut found: Vec<(String, T)> = Vec::new();
    let mut lines = HashMap::new();
    for vm in file.vm {
        let (name, line) = (vm.name.get_ref().clone(), line_of(&text, vm.name.span().start));
        let Some(t) = pick(vm) else { continue };
        if let Some(before) = lines.insert(name.clone(), line) {
            bail!("{}: lines {before} and {line} name two VMs '{name}': names must differ", path.display());
        }
        found.push((name, t));
    }
    Ok(found)
}

/// The number of the line that the byte at `offset` is in, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

#[cfg(test)]
mod tests;
