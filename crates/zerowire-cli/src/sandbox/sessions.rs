//! The session of a VM's front end, which outlives the child that serves it.
//!
//! ```text
//! child                          supervisor                 the next child
//!  Busy: reads messages ───────▶  drops what it has
//!  Kept: has answered them ────▶  keeps image and
//!  dies                           descriptors ────────────▶  takes the session up, or Ended
//! ```
//! The supervisor passes an image on and reads nothing of it. Its descriptors keep the front end's
//! socket open, so the front end sees no disconnection. A child can harm its own VM by what it
//! tells, and a session whose children die early is given up.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use zerowire_vhost::serve::SessionWatch;
use zerowire_vhost::session::{ImageError, SessionImage};

use super::channel::{Channel, DESCRIPTORS};
use super::message::short;

/// A child that dies so soon behind its start may have died of the session.
const EARLY: Duration = Duration::from_secs(1);
/// As many children in a row may die early.
const EARLY_DEATHS: u32 = 2;

/// How long the supervisor may take to read what a child has said before.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a child says of its front end's session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionWord {
    /// Messages are read: nobody can go on with what was kept.
    Busy,
    /// All of them are carried out. The descriptors come along.
    Kept(ImageText),
    /// All of them are carried out, but nobody can go on with the session, for this reason.
    Lost(String),
    /// The session has ended.
    Ended,
}

/// An image's bytes, each as the character with its number, and how many descriptors it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ImageText {
    text: String,
    files: usize,
}

impl ImageText {
    fn of(image: SessionImage) -> Result<(Self, Vec<OwnedFd>), ImageError> {
        let (bytes, files) = image.encode()?;
        Ok((Self { text: bytes.into_iter().map(char::from).collect(), files: files.len() }, files))
    }

    /// The image, for a child that is confined: its values come from a child before, which may have
    /// been taken over.
    fn image(&self, files: Vec<OwnedFd>) -> Result<SessionImage, String> {
        let bytes = self.text.chars().map(u8::try_from).collect::<Result<Vec<_>, _>>();
        let bytes =
            bytes.map_err(|_| "a session's image: its text has characters that are no bytes".to_owned())?;
        SessionImage::decode(&bytes, files).map_err(|e| e.to_string())
    }
}

/// Tells the supervisor of a VM's session.
#[derive(Debug)]
pub(crate) struct Teller<W> {
    pub(crate) channel: Arc<Channel>,
    /// The VM's number among those that the child serves.
    pub(crate) vm: usize,
    /// What the child says then.
    pub(crate) word: fn(usize, SessionWord) -> W,
}

impl<W: Debug + Serialize> Teller<W> {
    fn tell(&self, word: SessionWord, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.channel.send_until(&(self.word)(self.vm, word), &files, Instant::now() + PATIENCE)
    }

    /// The session that a child before has left. None where it can't go on, which the log says.
    pub(crate) fn take_up(&self, name: &str, image: &ImageText, files: Vec<OwnedFd>) -> Option<SessionImage> {
        let refused = |e: &String| {
            tracing::error!("{name}: the session can't go on: {e}");
            self.ended();
        };
        image.image(files).inspect_err(refused).ok()
    }

    fn keep(&self, image: SessionImage) -> Result<(), String> {
        let (image, files) = ImageText::of(image).map_err(|e| e.to_string())?;
        if files.len() > DESCRIPTORS {
            return Err(format!("it has {} descriptors, where {DESCRIPTORS} are kept at most", files.len()));
        }
        self.tell(SessionWord::Kept(image), &files).map_err(|e| format!("its image can't be sent: {e}"))
    }
}

impl<W: Debug + Serialize> SessionWatch for Teller<W> {
    fn busy(&self) -> io::Result<()> {
        self.tell(SessionWord::Busy, &[])
    }

    fn settled(&self, image: Result<SessionImage, String>) {
        if let Err(why) = image.and_then(|image| self.keep(image)) {
            // The supervisor has nothing to go on with, which is safe.
            let _ = self.tell(SessionWord::Lost(why), &[]);
        }
    }

    fn ended(&self) {
        let _ = self.tell(SessionWord::Ended, &[]);
    }
}

/// Whether a descriptor is in the upper half of what this process may have. The kernel gives the
/// least number that is free. So however many VMs there are, their sessions leave room to start
/// children.
fn is_beyond_half(file: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    limit.is_some_and(|limit| u64::try_from(file.as_raw_fd()).is_ok_and(|number| number > limit / 2))
}

/// Whether a descriptor is a socket of the network. A child could hand its packet socket on to the
/// next one, whose list of system calls tells sockets apart by their numbers.
fn is_foreign_socket(file: &OwnedFd) -> bool {
    socket_domain(file).is_ok_and(|domain| domain != AddressFamily::UNIX)
}

/// What the supervisor has of a session.
#[derive(Debug, Default)]
enum SessionState {
    /// No front end is connected.
    #[default]
    Nothing,
    /// A front end is connected that has to connect again if its child dies, for this reason.
    Lost(String),
    Image(ImageText, Vec<OwnedFd>),
}

/// The session of a VM's front end, for the child that follows.
#[derive(Debug, Default)]
pub(crate) struct KeptSession {
    state: SessionState,
    /// True: the child that runs has got it.
    given: bool,
    /// When that child was ready.
    since: Option<Instant>,
    /// How many children in a row died early that had got it.
    early_deaths: u32,
}

impl KeptSession {
    /// The child has said this.
    pub(crate) fn hear(&mut self, word: SessionWord, files: Vec<OwnedFd>) {
        self.state = match word {
            SessionWord::Busy => {
                SessionState::Lost("its child died while it carried a message out".to_owned())
            }
            // This process may have no room for them.
            SessionWord::Kept(image) if image.files != files.len() => {
                SessionState::Lost(format!("{} of {} descriptors came", files.len(), image.files))
            }
            SessionWord::Kept(_) if files.iter().any(is_beyond_half) => {
                SessionState::Lost("half of the descriptors that this process may have are in use".to_owned())
            }
            SessionWord::Kept(_) if files.iter().any(is_foreign_socket) => {
                SessionState::Lost("its child has put a socket among them that is no front end's".to_owned())
            }
            SessionWord::Kept(image) => SessionState::Image(image, files),
            SessionWord::Lost(why) => SessionState::Lost(short(&why)),
            SessionWord::Ended => SessionState::Nothing,
        };
    }

    /// What is kept, for a child that starts.
    pub(crate) fn give(&mut self) -> (Option<ImageText>, Vec<BorrowedFd<'_>>) {
        self.since = None;
        self.given = matches!(self.state, SessionState::Image(..));
        match &self.state {
            SessionState::Image(image, files) => {
                (Some(image.clone()), files.iter().map(AsFd::as_fd).collect())
            }
            _ => (None, Vec::new()),
        }
    }

    /// It could not be sent: the child has not got it.
    pub(crate) fn not_given(&mut self) {
        self.given = false;
    }

    /// The child is ready.
    pub(crate) fn begin(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Whether a child that starts gets it.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.state, SessionState::Image(..))
    }

    /// The child tells nothing that can be believed.
    pub(crate) fn forget(&mut self) {
        self.state = SessionState::Nothing;
    }

    /// The child has died. Returns what that means for the front end, for the log.
    pub(crate) fn died(&mut self) -> String {
        let was_early = self.given && self.since.is_none_or(|since| since.elapsed() < EARLY);
        self.early_deaths = if was_early { self.early_deaths + 1 } else { 0 };
        if self.early_deaths >= EARLY_DEATHS && matches!(self.state, SessionState::Image(..)) {
            self.early_deaths = 0;
            let text = format!("{EARLY_DEATHS} children died as soon as they had its session");
            self.state = SessionState::Lost(text);
        }
        self.replaced()
    }

    /// The same of a child that has made room for the next one.
    pub(crate) fn replaced(&mut self) -> String {
        match std::mem::take(&mut self.state) {
            SessionState::Nothing => String::new(),
            SessionState::Lost(why) => format!("; its front end is disconnected: {why}"),
            image @ SessionState::Image(..) => {
                self.state = image;
                " and goes on with its front end".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zerowire_testkit::own_process;

    use super::*;

    fn kept(files: usize) -> SessionWord {
        SessionWord::Kept(ImageText { text: String::new(), files })
    }

    #[test]
    fn a_socket_of_the_network_is_not_handed_on() {
        let mut session = KeptSession::default();
        let (stream, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        session.hear(kept(2), vec![pipe(), stream.into()]);
        assert!(session.died().contains("goes on with its front end"));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        session.hear(kept(2), vec![pipe(), socket.into()]);
        let said = session.died();
        assert!(said.contains("no front end's"), "{said}");
    }

    fn pipe() -> OwnedFd {
        std::io::pipe().expect("a pipe").0.into()
    }

    #[test]
    fn a_session_is_kept_between_two_messages_and_while_it_lasts() {
        let mut session = KeptSession::default();
        session.hear(kept(1), vec![pipe()]);
        assert_eq!(session.died(), " and goes on with its front end");
        session.hear(SessionWord::Busy, Vec::new());
        assert!(session.died().contains("carried a message out"));
        session.hear(kept(1), vec![pipe()]);
        session.hear(SessionWord::Ended, Vec::new());
        assert_eq!(session.died(), "");
        session.hear(kept(2), vec![pipe()]);
        assert!(session.died().contains("1 of 2 descriptors came"));
        session.hear(SessionWord::Lost("\u{1b}[2J it migrates".to_owned()), Vec::new());
        assert_eq!(session.died(), "; its front end is disconnected: [2J it migrates");
    }

    #[test]
    fn a_session_is_given_to_two_children_that_die_early_and_to_any_that_do_not() {
        let mut session = KeptSession::default();
        session.hear(kept(1), vec![pipe()]);
        assert_eq!(session.died(), " and goes on with its front end", "that one had not got it");
        let mut next = |lives: Duration| {
            let _ = session.give();
            session.begin();
            session.since = Instant::now().checked_sub(lives);
            session.died()
        };
        for _ in 0..3 {
            assert_eq!(next(Duration::ZERO), " and goes on with its front end");
            assert_eq!(next(EARLY), " and goes on with its front end");
        }
        assert_eq!(next(Duration::ZERO), " and goes on with its front end");
        assert!(next(Duration::ZERO).contains("2 children died"));
        assert_eq!(next(Duration::ZERO), "", "the next one gets nothing");
    }

    #[test]
    fn sessions_leave_half_of_the_descriptors_free() {
        own_process!();
        let limit = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
        rustix::process::setrlimit(Resource::Nofile, limit).expect("a lower limit");
        let mut session = KeptSession::default();
        let files: Vec<_> = (0..30).map(|_| pipe()).collect();
        session.hear(kept(30), files);
        let there = session.died();
        assert_eq!(there, " and goes on with its front end");
        let more: Vec<_> = (0..30).map(|_| pipe()).collect();
        let mut other = KeptSession::default();
        other.hear(kept(30), more);
        assert!(other.died().contains("half of the descriptors"));
    }

    #[test]
    fn a_child_that_was_not_sent_the_session_does_not_die_of_it() {
        let mut session = KeptSession::default();
        session.hear(kept(1), vec![pipe()]);
        for _ in 0..2 * EARLY_DEATHS {
            let _ = session.give();
            session.not_given();
            assert_eq!(session.died(), " and goes on with its front end");
        }
    }

    #[test]
    fn a_text_that_is_no_image_is_refused() {
        let refused = |text: &str| ImageText { text: text.to_owned(), files: 0 }.image(Vec::new()).err();
        assert!(refused("\u{100}").is_some_and(|e| e.contains("no bytes")));
        assert!(refused("zwimage\n").is_some_and(|e| e.contains("16 are the least")));
    }
}
