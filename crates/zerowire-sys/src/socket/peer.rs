//! Who is at the other end of a unix socket.

use std::io;
use std::os::fd::AsFd;

use super::values;

/// The user and the group of the process that made the connection (SO_PEERCRED). Its process id is
/// 0 if it is in a PID namespace out of this one's sight, so nothing is made of that.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_owner(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let [_process, user, group] = values::PEERCRED.get(socket)?;
    Ok((user, group))
}

/// The supplementary groups that the process had when it made the connection (SO_PEERGROUPS). The
/// one of SO_PEERCRED need not be among them.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let socket = socket.as_fd();
    let mut groups = vec![0; 32];
    loop {
        match values::PEERGROUPS.get_list(socket, &mut groups) {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // As many as there are: at most NGROUPS_MAX (65536).
            Err((e, count)) if e.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                groups.resize(count, 0);
            }
            Err((e, _)) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_the_user_and_the_group_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(peer_owner(&ours).expect("its owner"), own);
    }

    #[test]
    fn a_peer_has_the_groups_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut told = peer_groups(&ours).expect("its groups");
        let status = std::fs::read_to_string("/proc/self/status").expect("this process");
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).expect("a line");
        let mut have: Vec<u32> = line.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        told.sort_unstable();
        have.sort_unstable();
        assert_eq!(told, have);
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        assert!(peer_groups(&pipe).is_err());
    }
}
