//! Who may connect to a socket: options, keys of a VM, users and groups by name.

use std::path::PathBuf;

use zerowire_vhost::serve::{Endpoint, SocketAccess};

use crate::file::WrongKey;
use crate::service::HandedSockets;

/// Where to look up names of users. A static program can't ask the system's other sources.
const USERS: &str = "/etc/passwd";
/// Where to look up names of groups.
const GROUPS: &str = "/etc/group";

/// A user's name or number.
pub fn owner(text: &str) -> Result<u32, String> {
    let hint = format!("give one that is, or a number (id -u {text})");
    id(text, USERS).ok_or_else(|| format!("user '{text}' is not in {USERS}: {hint}"))
}

/// A group's name or number.
pub fn group(text: &str) -> Result<u32, String> {
    let hint = format!("give one that is, or a number (getent group {text})");
    id(text, GROUPS).ok_or_else(|| format!("group '{text}' is not in {GROUPS}: {hint}"))
}

/// The main group of a user whom the file names.
pub fn main_group(user: &str) -> Option<u32> {
    let users = std::fs::read_to_string(USERS).ok()?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    // NAME:x:NUMBER:GROUP:…
    fields
        .filter(|fields| fields.first() == Some(&user) || fields.get(2) == Some(&user))
        .find_map(|fields| fields.get(3)?.parse().ok())
}

/// Permission bits.
pub fn mode(text: &str) -> Result<u32, String> {
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mode = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten().filter(|m| *m <= 0o777);
    mode.ok_or_else(|| format!("mode '{text}': give permissions in octal, 000 to 777, such as 0660"))
}

/// The number, or the number of the name in a file with lines NAME:x:NUMBER:…
fn id(text: &str, file: &str) -> Option<u32> {
    if let Ok(id) = text.parse() {
        // The largest one means: change nothing (chown(2)).
        return Some(id).filter(|id| *id != u32::MAX);
    }
    std::fs::read_to_string(file).ok()?.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(text) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

/// What a VM says of its sockets, by the values of these keys: of the owner, the group and the
/// mode.
pub fn of_keys(keys: [&'static str; 3], values: [&Option<String>; 3]) -> Result<SocketAccess, WrongKey> {
    let parsed = |n: usize, parse: fn(&str) -> Result<u32, String>| {
        let value = values[n].as_deref().map(parse).transpose();
        value.map_err(|text| WrongKey { key: keys[n], text })
    };
    Ok(SocketAccess { owner: parsed(0, owner)?, group: parsed(1, group)?, mode: parsed(2, mode)? })
}

/// What a VM says of its own, and beyond that what the command line says of all.
pub fn or(own: SocketAccess, all: SocketAccess) -> SocketAccess {
    SocketAccess {
        owner: own.owner.or(all.owner),
        group: own.group.or(all.group),
        mode: own.mode.or(all.mode),
    }
}

/// The user who owns a socket that is made with these rights.
pub fn owner_of(access: &SocketAccess) -> u32 {
    access.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// Options about the front end's socket.
#[derive(clap::Args, Clone, Debug)]
pub struct SocketArgs {
    /// Unix socket to listen on for the front end (QEMU: -chardev socket,path=PATH). A socket left
    /// behind by a process that is gone is replaced.
    #[arg(long, visible_alias = "socket-path", value_name = "PATH", conflicts_with_all = ["fd", "vm", "config"])]
    socket: Option<PathBuf>,
    /// Inherited descriptor to use in place of --socket: a listening unix socket, or a connected
    /// one; with a connected one the program ends with the connection.
    #[arg(long, value_name = "N", conflicts_with_all = ["vm", "config"])]
    fd: Option<i32>,
    /// User who owns the front end's socket, and may connect: a name of /etc/passwd or a number
    /// (libvirt's QEMU: libvirt-qemu or qemu). Default: the user of this process.
    #[arg(long, value_name = "USER", value_parser = owner, conflicts_with = "fd")]
    socket_owner: Option<u32>,
    /// Group whose users may connect as a front end: a name of /etc/group or a number.
    #[arg(long, value_name = "GROUP", value_parser = group, conflicts_with = "fd")]
    socket_group: Option<u32>,
    /// Permissions of the front end's socket, in octal; to connect takes the right to write.
    /// Default: 0600, and 0660 with --socket-group.
    #[arg(long, value_name = "MODE", value_parser = mode, conflicts_with = "fd")]
    socket_mode: Option<u32>,
}

impl SocketArgs {
    /// Who may connect.
    pub fn access(&self) -> SocketAccess {
        SocketAccess { owner: self.socket_owner, group: self.socket_group, mode: self.socket_mode }
    }

    /// Where the front end of the only VM connects. None: neither an option nor who started this
    /// process says so.
    pub fn endpoint(&self, handed: &HandedSockets) -> Option<Endpoint> {
        if let (Some(path), None, Some(_)) = (&self.socket, self.fd, handed.single()) {
            tracing::warn!(
                "--socket {} is not used: the service manager hands a socket over",
                path.display()
            );
        }
        match (&self.socket, self.fd, handed.single()) {
            (None, Some(fd), _) => Some(Endpoint::Fd(fd)),
            (_, None, Some(endpoint)) => Some(endpoint),
            (Some(path), None, None) => Some(Endpoint::Path(path.clone())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
