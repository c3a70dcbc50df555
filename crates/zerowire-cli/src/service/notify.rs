//! What a service tells its manager (sd_notify(3)): a datagram of assignments, one a line, to the
//! socket that NOTIFY_SOCKET names.
//!
//! ```text
//! start ─▶ READY ─▶ STATUS …  WATCHDOG …  ─▶ STOPPING
//!                   RELOADING ─▶ READY
//! ```
//! The watchdog covers the main thread and the control threads of all VMs. The main thread asks
//! them, and tells the manager only if all have answered since it asked last. A manager that hears
//! nothing for the time that it allows (WATCHDOG_USEC) ends the service and starts it anew.
//!
//! The manager's socket may be full. What it must hear waits for the next turn, in its order. At
//! the end it goes out when the doors are closed, or when the VMs are stopped.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The pause between two looks at the status.
const STATUS: Duration = Duration::from_secs(2);

/// Signs of life in the time that the manager allows.
const PARTS: u32 = 4;

/// A server as its manager sees it.
pub trait Watched {
    /// Whether a connection is there or may still come.
    fn is_alive(&self) -> bool;

    /// How many VMs have a front end, and how many VMs there are.
    fn connected(&self) -> (usize, usize);

    /// Asks all control threads for a sign of life.
    fn ask(&self);

    /// Names of the VMs whose control threads have not answered.
    fn silent(&self) -> Vec<String>;
}

/// The way to the manager. Without one it does nothing.
pub struct Notifier(Option<Manager>);

struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Watchdog>,
    /// What is still to be told, the oldest first: a reload, that it is done, the end.
    unsent: VecDeque<String>,
    /// The status that was told last.
    status: String,
    /// True: the log has that the manager can't be reached.
    is_lost: bool,
}

struct Watchdog {
    /// Between two signs of life.
    period: Duration,
    /// When the next one is due.
    next: Instant,
    /// The silent VMs that the log has named.
    named: Vec<String>,
}

impl Notifier {
    /// As the environment says.
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        match Manager::reach(&name) {
            Ok(manager) => Self(Some(manager)),
            Err(e) => {
                tracing::warn!("NOTIFY_SOCKET={}: the service manager is told nothing: {e}", name.display());
                Self(None)
            }
        }
    }

    /// How long the main thread may sleep before it calls [`Self::turn`].
    pub fn patience(&self) -> Option<Duration> {
        let period = |watchdog: &Watchdog| watchdog.period.min(STATUS);
        self.0.as_ref().map(|manager| manager.watchdog.as_ref().map_or(STATUS, period))
    }

    /// All sockets listen, at the start or after [`Self::reloading`].
    pub fn ready(&mut self, server: &dyn Watched) {
        let Some(manager) = &mut self.0 else { return };
        manager.status = status(server);
        manager.tell(format!("READY=1\nSTATUS={}", manager.status));
        server.ask();
    }

    /// Files are read again, until [`Self::ready`].
    pub fn reloading(&mut self) {
        let Some(manager) = &mut self.0 else { return };
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        // It says more than a reload before that the manager has not heard of.
        manager.unsent.clear();
        manager.tell(format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// The end begins.
    pub fn stopping(&mut self) {
        if let Some(manager) = &mut self.0 {
            manager.tell("STOPPING=1".to_owned());
        }
    }

    /// Tells what waits.
    pub fn tell_unsent(&mut self) {
        if let Some(manager) = &mut self.0 {
            manager.tell_unsent();
        }
    }

    /// Tells what is new, and that the service lives.
    pub fn turn(&mut self, server: &dyn Watched) {
        let Some(manager) = &mut self.0 else { return };
        let now = status(server);
        if manager.tell_unsent() && now != manager.status && manager.send(&format!("STATUS={now}")) {
            manager.status = now;
        }
        if manager.watchdog.as_mut().is_some_and(|watchdog| watchdog.is_content(server)) {
            manager.send("WATCHDOG=1");
        }
    }
}

impl Manager {
    fn reach(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::other("give a path, or @NAME")),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that reads nothing holds up nothing here.
        socket.set_nonblocking(true)?;
        let set = ["WATCHDOG_PID", "WATCHDOG_USEC"].map(|name| std::env::var(name).ok());
        let allowed = allowed(std::process::id(), set.each_ref().map(Option::as_deref));
        let watchdog = allowed.map(|allowed| {
            let period = allowed / PARTS;
            Watchdog { period, next: Instant::now() + period, named: Vec::new() }
        });
        let (unsent, status) = (VecDeque::new(), String::new());
        Ok(Self { socket, address, watchdog, unsent, status, is_lost: false })
    }

    /// Tells it behind all that waits, now or in a later turn.
    fn tell(&mut self, text: String) {
        self.unsent.push_back(text);
        self.tell_unsent();
    }

    /// False: some of it waits still.
    fn tell_unsent(&mut self) -> bool {
        while let Some(text) = self.unsent.pop_front() {
            if !self.send(&text) {
                self.unsent.push_front(text);
                return false;
            }
        }
        true
    }

    /// False: the manager does not hear it.
    fn send(&mut self, text: &str) -> bool {
        let sent = self.socket.send_to_addr(text.as_bytes(), &self.address);
        if let Err(e) = &sent
            && !self.is_lost
        {
            tracing::warn!("the service manager can't be told '{}': {e}", text.replace('\n', " "));
        }
        self.is_lost = sent.is_err();
        sent.is_ok()
    }
}

impl Watchdog {
    /// Whether a sign of life is due, and all threads that were asked have answered.
    fn is_content(&mut self, server: &dyn Watched) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + self.period;
        let silent = server.silent();
        if silent.is_empty() {
            self.named.clear();
            server.ask();
            return true;
        }
        if silent != self.named {
            tracing::error!(
                "VM {}: no sign of life within {:?}: its front end holds it up; the service manager gets none either, and \
                 restarts the program if that goes on",
                silent.join(", "),
                self.period
            );
            self.named = silent;
        }
        false
    }
}

fn status(server: &dyn Watched) -> String {
    let (connected, all) = server.connected();
    format!("{connected} of {all} VMs connected")
}

/// The time between two signs of life that the manager allows at most.
fn allowed(own: u32, [pid, microseconds]: [Option<&str>; 2]) -> Option<Duration> {
    // Without a process it is meant for each one.
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let microseconds: u64 = microseconds?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_the_one_of_this_process() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(allowed(7, [Some("7"), Some("1000000")]), second);
        assert_eq!(allowed(7, [None, Some("1000000")]), second);
        for set in [
            [Some("8"), Some("1000000")],
            [Some("x"), Some("1000000")],
            [None, None],
            [None, Some("0")],
            [None, Some("x")],
        ] {
            assert_eq!(allowed(7, set), None, "{set:?}");
        }
    }
}
