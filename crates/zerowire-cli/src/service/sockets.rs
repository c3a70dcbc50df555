//! Sockets that a service manager hands over at the start (sd_listen_fds(3)).
//!
//! They are the descriptors from 3 on, and each has a name. A socket serves the VM of that name, in
//! place of one that zerowire would make at the VM's path. The manager owns the sockets: they
//! listen while zerowire is down, and their files stay.

use std::os::fd::RawFd;

use anyhow::{Result, bail};
use zerowire_vhost::serve::{Endpoint, MAX_VMS};

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;

/// All sockets that were handed over.
#[derive(Debug, Default)]
pub struct HandedSockets(Vec<HandedSocket>);

#[derive(Debug)]
struct HandedSocket {
    /// Empty if the manager gives no names.
    name: String,
    fd: RawFd,
}

impl HandedSockets {
    /// Those that the environment names. None is opened or changed by that.
    ///
    /// # Errors
    /// The number of sockets is not one.
    pub fn from_environment() -> Result<Self> {
        let set = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].map(|name| std::env::var(name).ok());
        Self::parse(std::process::id(), set.each_ref().map(Option::as_deref))
    }

    fn parse(own: u32, [pid, count, names]: [Option<&str>; 3]) -> Result<Self> {
        // A process that was started by a service finds the service's variables.
        if pid.and_then(|pid| pid.parse().ok()) != Some(own) {
            return Ok(Self::default());
        }
        let text = count.unwrap_or("0");
        let Some(count) = text.parse().ok().filter(|count| *count <= MAX_VMS) else {
            bail!("LISTEN_FDS={text}: a service manager hands over 0 to {MAX_VMS} sockets");
        };
        let mut names = names.unwrap_or_default().split(':');
        let sockets = (FIRST..).take(count);
        let named = sockets.map(|fd| HandedSocket { name: names.next().unwrap_or_default().to_owned(), fd });
        Ok(Self(named.collect()))
    }

    /// The socket of a VM that is the only one, if there is one socket. Its name does not matter.
    pub fn single(&self) -> Option<Endpoint> {
        match &self.0[..] {
            [socket] => Some(Endpoint::Fd(socket.fd)),
            _ => None,
        }
    }

    /// Gives each VM the socket of its name.
    pub fn assign<'a>(&self, vms: impl Iterator<Item = (&'a str, &'a mut Endpoint)>) {
        for (name, endpoint) in vms {
            if let (Endpoint::Path(_), Some(socket)) = (&*endpoint, self.0.iter().find(|s| s.name == name)) {
                *endpoint = Endpoint::Fd(socket.fd);
            }
        }
    }

    /// Checks that each socket has a VM.
    ///
    /// # Errors
    /// One has none: its front ends would wait for ever.
    pub fn check<'a>(&self, endpoints: impl Iterator<Item = &'a Endpoint>) -> Result<()> {
        let taken: Vec<_> = endpoints.collect();
        for HandedSocket { name, fd } in &self.0 {
            if !taken.contains(&&Endpoint::Fd(*fd)) {
                bail!(
                    "no VM takes the socket '{name}' (descriptor {fd}) that the service manager hands over: \
                     FileDescriptorName= of its socket unit must be the name of a VM, and a VM has one socket"
                );
            }
        }
        Ok(())
    }
}

/// Whether front ends can come again and again: not on a descriptor that is a connection.
pub fn lasts(endpoint: &Endpoint) -> bool {
    listens(endpoint).unwrap_or(false)
}

/// Whether the end point is a connection.
pub fn is_connected(endpoint: &Endpoint) -> bool {
    listens(endpoint).is_ok_and(|listens| !listens)
}

fn listens(endpoint: &Endpoint) -> rustix::io::Result<bool> {
    match endpoint {
        Endpoint::Path(_) => Ok(true),
        Endpoint::Fd(fd) => {
            zerowire_sys::fd::duplicate(*fd).and_then(rustix::net::sockopt::socket_acceptconn)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(count: &str, names: Option<&str>) -> Result<HandedSockets> {
        HandedSockets::parse(7, [Some("7"), Some(count), names])
    }

    fn assigned(sockets: &HandedSockets, names: &[&str]) -> Vec<Endpoint> {
        let mut endpoints: Vec<_> = names.iter().map(|name| Endpoint::Path(name.into())).collect();
        sockets.assign(names.iter().copied().zip(endpoints.iter_mut()));
        endpoints
    }

    #[test]
    fn each_vm_gets_the_socket_of_its_name() {
        let sockets = parsed("2", Some("b:a")).expect("two");
        assert_eq!(sockets.single(), None);
        let path = |name: &str| Endpoint::Path(name.into());
        let got = assigned(&sockets, &["a", "b", "c"]);
        assert_eq!(got, [Endpoint::Fd(4), Endpoint::Fd(3), path("c")]);
        sockets.check(got.iter()).expect("each has a VM");
        let got = assigned(&sockets, &["a", "c"]);
        let said = sockets.check(got.iter()).expect_err("b has none").to_string();
        assert!(said.contains("socket 'b' (descriptor 3)") && said.contains("FileDescriptorName="), "{said}");
        // Two of one name are not one VM's.
        let twice = parsed("2", Some("a:a")).expect("two");
        assert!(twice.check(assigned(&twice, &["a"]).iter()).is_err());
        // What --fd names is taken already.
        sockets.check([Endpoint::Fd(3), Endpoint::Fd(4)].iter()).expect("both are");
    }

    #[test]
    fn a_single_socket_needs_no_name() {
        for names in [None, Some("zerowire@vm0.socket"), Some("")] {
            assert_eq!(parsed("1", names).expect("one").single(), Some(Endpoint::Fd(3)), "{names:?}");
        }
    }

    #[test]
    fn what_is_another_processs_is_not_taken() {
        for set in [[None, Some("1"), None], [Some("8"), Some("1"), None], [Some("7"), None, None]] {
            let sockets = HandedSockets::parse(7, set).expect("none");
            assert!(sockets.single().is_none() && sockets.check([].iter()).is_ok(), "{set:?}");
        }
    }

    #[test]
    fn a_number_that_is_none_is_refused() {
        for bad in ["many", "-1", "257", "99999999999999999999"] {
            let said = parsed(bad, None).expect_err(bad).to_string();
            assert!(said.contains(&format!("LISTEN_FDS={bad}")), "{said}");
        }
    }
}
