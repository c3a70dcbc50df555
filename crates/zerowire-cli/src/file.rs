//! The configuration file: one `[[vm]]` a VM, with a table for each device that it has.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use zerowire_vhost::files;

/// Bytes of a file at most.
const MAX_BYTES: usize = 4 << 20;

/// The file. A key that is not known is an error, so that a misspelt one is not passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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
    /// What the guest may send: CHECK+CHECK+….
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<String>,
    /// What the guest may send in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_limit: Option<String>,
    /// What the guest may receive in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_limit: Option<String>,
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

/// What `zerowire vsock` needs; also the body by which the control socket adds a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vsock {
    /// Where the front end connects.
    pub socket: PathBuf,
    /// The guest's address.
    pub cid: u64,
    /// Where host programs connect, and the first part of the names of their own sockets.
    pub uds: PathBuf,
    /// Which other VMs it reaches; without it, those that name none either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// What the guest may send in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_limit: Option<String>,
    /// What the guest may receive from host programs in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_limit: Option<String>,
    /// Name or number of the user who owns `socket`, in place of --socket-owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Name or number of the group of `socket`, in place of --socket-group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Permissions of `socket` in octal, in place of --socket-mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Name or number of the user who owns the host end's sockets, in place of --uds-owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds_owner: Option<String>,
    /// Name or number of the host end's group, in place of --uds-group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds_group: Option<String>,
    /// Permissions of the host end's sockets in octal, in place of --uds-mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uds_mode: Option<String>,
}

/// A key of a VM that has a wrong value. Its message names the key.
#[derive(Debug, thiserror::Error)]
#[error("{}", if .text.contains(.key) { .text.clone() } else { format!("{}: {}", .key, .text) })]
pub struct WrongKey {
    /// The key.
    pub key: &'static str,
    /// What is wrong with its value.
    pub text: String,
}

/// What the value of a key is parsed to, if it has one.
pub fn parsed<T: FromStr>(key: &'static str, value: &Option<String>) -> Result<Option<T>, WrongKey>
where
    anyhow::Error: From<T::Err>,
{
    of_key(key, value.as_deref().map(|text| Ok(text.parse()?)).transpose())
}

/// The value of a key, or what is wrong with it.
pub fn of_key<T>(key: &'static str, value: Result<T>) -> Result<T, WrongKey> {
    value.map_err(|e| WrongKey { key, text: format!("{e:#}") })
}

/// How the text of a file is read.
pub type ReadText = fn(&Path) -> io::Result<String>;

/// Reads the text at the start. It may come through a pipe as well: this waits for its end.
pub fn text_at_start(path: &Path) -> io::Result<String> {
    files::text_of(File::open(path)?, MAX_BYTES)
}

/// Reads the text while VMs are served. It comes from a regular file that answers, so that no
/// signal waits.
pub fn text_again(path: &Path) -> io::Result<String> {
    files::read_text(path, MAX_BYTES)
}

/// The tables that `pick` finds in the file's VMs, with the VMs' names, no two of which are the
/// same.
pub fn read<T>(path: &Path, text: ReadText, pick: fn(VmTable) -> Option<T>) -> Result<Vec<(String, T)>> {
    let text = text(path).with_context(|| format!("configuration file {}", path.display()))?;
    parse(&text, &path.display().to_string(), pick)
}

/// The same of the text of a file with this name.
pub fn parse<T>(text: &str, file_name: &str, pick: fn(VmTable) -> Option<T>) -> Result<Vec<(String, T)>> {
    let context = || format!("configuration file {file_name}");
    // The text of an error ends with a newline.
    let tables: Tables =
        toml::from_str(text).map_err(|e| anyhow!("{}", e.to_string().trim_end())).with_context(context)?;
    let mut found: Vec<(String, T)> = Vec::new();
    let mut lines = HashMap::new();
    for vm in tables.vm {
        let (name, line) = (vm.name.get_ref().clone(), line_of(text, vm.name.span().start));
        let Some(t) = pick(vm) else { continue };
        if let Some(before) = lines.insert(name.clone(), line) {
            bail!("{file_name}: lines {before} and {line} name two VMs '{name}': names must differ");
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
mod tests {
    use super::*;

    const BOTH: &str = "\
[[vm]]
name = 'a'
[vm.net]
socket = '/a.net'
port = 'tap:t'
metadata-token = 'optional'
socket-owner = 'root'
[vm.vsock]
socket = '/a.vsock'
cid = 3
uds = '/a'
groups = ['x', 'y']
uds-mode = '0666'

[[vm]]
name = 'b'
[vm.vsock]
socket = '/b.vsock'
cid = 4
uds = '/b'

[[vm]]
name = 'c'
[vm.net]
socket = '/c.net'
port = 'tap:u'
";

    #[test]
    fn each_command_takes_its_tables_and_skips_vms_without() {
        let net = parse(BOTH, "a file", |vm| vm.net).expect("a good file");
        let names: Vec<_> = net.iter().map(|(name, n)| (name.as_str(), n.port.as_str())).collect();
        assert_eq!(names, [("a", "tap:t"), ("c", "tap:u")]);
        let vsock = parse(BOTH, "a file", |vm| vm.vsock).expect("a good file");
        let names: Vec<_> = vsock.iter().map(|(name, v)| (name.as_str(), v.cid)).collect();
        assert_eq!(names, [("a", 3), ("b", 4)]);
        assert_eq!(vsock[0].1.groups.as_deref(), Some(&["x".to_owned(), "y".to_owned()][..]));
        assert_eq!(vsock[1].1.groups, None);
    }

    #[test]
    fn a_file_with_unknown_keys_or_two_vms_of_one_name_is_refused() {
        let text = |toml: &str, table: &str| {
            let error = if table == "vm.net" {
                parse(toml, "a file", |vm| vm.net).err()
            } else {
                parse(toml, "a file", |vm| vm.vsock).err().map(|e| e.context("vsock"))
            };
            format!("{:#}", error.expect("an error"))
        };
        let twice = BOTH.replace("name = 'c'", "name = 'a'");
        assert!(
            text(&twice, "vm.net").contains("lines 2 and 23 name two VMs 'a'"),
            "{}",
            text(&twice, "vm.net")
        );
        // What is of the wrong type is named with its line, and nothing is behind the message.
        let wrong = BOTH.replace("cid = 4", "cid = 'four'");
        for table in ["vm.net", "vm.vsock"] {
            let said = text(&wrong, table);
            assert!(
                said.contains("line 19") && said.contains("cid = 'four'") && said.trim() == said,
                "{said}"
            );
        }
        // A mistake in the other command's table is one all the same.
        for (toml, word) in [
            ("[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nprt='tap:t'\n", "prt"),
            ("[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=3\nuds='/b'\ngroup=['x']\n", "group"),
            ("[[vm]]\nname='a'\n[vm.vsok]\n", "vsok"),
            ("[[vms]]\nname='a'\n", "vms"),
        ] {
            for table in ["vm.net", "vm.vsock"] {
                assert!(text(toml, table).contains(word), "{toml}: {}", text(toml, table));
            }
        }
    }
}
