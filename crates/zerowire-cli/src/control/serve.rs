//! A door: a socket that listens, and the thread that accepts its connections.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendFlags, SocketFlags, send};
use zerowire_vhost::files;
use zerowire_vhost::serve::{ControlSocket, ends_in_time};

use super::connections::Connections;
use super::conversation::converse;
use super::http::{ControlRequest, Response, Stream};

/// Connections of a door at most.
const MAX_CONNECTIONS: usize = 32;
/// Connections of clients that get 403, at most.
const MAX_STRANGERS: usize = 4;
/// Stack of a connection's thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 512 * 1024;
/// How long the end waits for requests that are being carried out.
const STOP_PATIENCE: Duration = Duration::from_secs(6);
/// How long it waits for a client that does not read its answer.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// Pause after an error of accept(2): most likely there are no descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// Answers the requests of a door. Calls come from several threads at once.
pub trait Handler: Send + Sync + 'static {
    /// The answer to a request.
    fn answer(&self, request: &ControlRequest, body: &[u8]) -> Response;

    /// The next piece of a stream, of at least one byte.
    fn piece(&self, stream: Stream) -> Vec<u8>;
}

/// What listens.
pub enum ControlListener {
    /// A unix socket, for those who may manage.
    Control(ControlSocket),
    /// A TCP socket, for everybody.
    Tcp(TcpListener),
}

impl ControlListener {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Control(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Control(socket) => socket.accept(),
            Self::Tcp(socket) => Ok(rustix::net::accept_with(socket, SocketFlags::CLOEXEC)?),
        }
    }

    /// Whether the client may ask.
    fn admits(&self, client: &OwnedFd) -> bool {
        match self {
            Self::Control(socket) => may_manage(socket, client).unwrap_or(false),
            Self::Tcp(_) => true,
        }
    }
}

/// Root, the user of this process, the owner of the socket's file, and its group.
fn may_manage(socket: &ControlSocket, client: &OwnedFd) -> io::Result<bool> {
    let (user, of_user) = zerowire_sys::socket::peer_owner(client)?;
    let (owner, group) = socket.owner()?;
    if [0, rustix::process::geteuid().as_raw(), owner].contains(&user) || of_user == group {
        return Ok(true);
    }
    Ok(zerowire_sys::socket::peer_groups(client)?.contains(&group))
}

/// A door that is open. Dropping it closes it, and ends its connections.
pub struct Service {
    /// An eventfd that is readable from the end on.
    stop: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
    pools: [Arc<Connections>; 2],
}

impl Service {
    /// Begins to accept. `name` is that of the threads.
    pub fn start(name: &str, door: ControlListener, handler: Arc<dyn Handler>) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let pools = [MAX_CONNECTIONS, MAX_STRANGERS].map(Connections::new);
        let acceptor =
            Acceptor { name: name.to_owned(), door, handler, pools: pools.clone(), stop: stop.clone() };
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let acceptor = Some(thread.spawn(move || acceptor.run())?);
        Ok(Self { stop, acceptor, pools })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // Closing the door can take long, see `zerowire_vhost::files`.
        if let Some(acceptor) = self.acceptor.take_if(|thread| ends_in_time(thread, Instant::now())) {
            let _ = acceptor.join();
        }
        self.pools.iter().for_each(|pool| pool.close());
        let start = Instant::now();
        while self.pools.iter().any(|pool| pool.are_open()) && start.elapsed() < STOP_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            if start.elapsed() > LAST_ANSWER {
                // Also those that don't read it.
                self.pools.iter().for_each(|pool| pool.close());
            }
        }
    }
}

struct Acceptor {
    name: String,
    door: ControlListener,
    handler: Arc<dyn Handler>,
    pools: [Arc<Connections>; 2],
    stop: Arc<OwnedFd>,
}

impl Acceptor {
    fn run(self) {
        loop {
            let mut fds =
                [self.stop.as_fd(), self.door.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // No client is taken who might not be let go of.
            let takes = files::may_close_client();
            let retry = (!takes).then_some(Timespec { tv_sec: 0, tv_nsec: RETRY.subsec_nanos().into() });
            let woken = poll(&mut fds[..1 + usize::from(takes)], retry.as_ref());
            let [stops, comes] = fds.each_ref().map(|fd| fd.revents().contains(PollFlags::IN));
            if woken.is_ok() && stops {
                return;
            }
            if woken.is_err() || !comes {
                continue;
            }
            match self.door.accept() {
                Ok(client) => self.receive(client),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    tracing::error!("{}: accept failed: {e}", self.name);
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    fn receive(&self, client: OwnedFd) {
        let admitted = self.door.admits(&client);
        let pool = &self.pools[usize::from(!admitted)];
        let connection = match pool.enter(client) {
            Ok(connection) => connection,
            Err(client) => {
                let busy = Response::error(503, "all connections are busy: try again", None).bytes(false);
                let _ = send(&client, &busy, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                // This thread has all other clients to accept.
                files::close_client(client);
                return;
            }
        };
        let handler = self.handler.clone();
        let thread = std::thread::Builder::new().name(self.name.clone()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || converse(&connection, &*handler, admitted));
        if let Err(e) = started {
            tracing::error!("{}: no thread for a connection: {e}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use zerowire_testkit::PATIENCE;
    use zerowire_testkit::linger::send_lingering;

    use super::*;

    struct Nothing;

    impl Handler for Nothing {
        fn answer(&self, _request: &ControlRequest, _body: &[u8]) -> Response {
            Response::error(404, "nothing", None)
        }

        fn piece(&self, _stream: Stream) -> Vec<u8> {
            Vec::new()
        }
    }

    /// Does `work` on a thread of its own, which must end.
    fn ends(work: impl FnOnce() + Send + 'static) {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            work();
            let _ = done.send(());
        });
        ended.recv_timeout(PATIENCE).expect("it ends");
    }

    /// The kernel refuses such descriptors since Linux 6.16. A pair of sockets takes them.
    #[test]
    fn a_client_that_gets_no_place_cant_hold_up_the_acceptor() {
        let pools = [1, 1].map(Connections::new);
        pools.iter().for_each(|pool| pool.close());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let door = ControlListener::Tcp(TcpListener::bind("127.0.0.1:0").expect("loopback"));
        let acceptor = Acceptor { name: "test".to_owned(), door, handler: Arc::new(Nothing), pools, stop };
        let (client, socket) = UnixStream::pair().expect("a pair");
        let peer = send_lingering(&client, b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        ends(move || acceptor.receive(socket.into()));
        drop(peer);
    }

    #[test]
    fn the_end_waits_for_no_acceptor_that_is_held_up() {
        let (let_go, held) = mpsc::channel::<()>();
        let acceptor = Some(std::thread::spawn(move || held.iter().for_each(drop)));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let service = Service { stop, acceptor, pools: [1, 1].map(Connections::new) };
        ends(move || drop(service));
        drop(let_go);
    }
}
