//! What a watch hears of a session, and that another process goes on with what it has heard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use serde_json::Value;
use zerowire_vhost_user::{
    FLAG_NEED_REPLY, Header, MemoryRegion, MemoryTable, Request, VERSION, VringAddr, VringState, WireError,
    features as f, protocol as p,
};

use super::*;
use crate::serve::{Backing, Control, Device, Listener, Served};
use crate::testing::model;

const MEMORY_BYTES: u64 = 0x4_0000;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Word {
    Busy,
    Settled(Result<SessionImage, String>),
    Ended,
}

#[derive(Debug)]
struct Recorder {
    words: Mutex<Sender<Word>>,
    /// True: whoever keeps the image is gone.
    gone: bool,
}

impl Recorder {
    fn tell(&self, word: Word) {
        let _ = self.words.lock().expect("no panic").send(word);
    }
}

impl SessionWatch for Recorder {
    fn busy(&self) -> io::Result<()> {
        if self.gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.tell(Word::Busy);
        Ok(())
    }

    fn settled(&self, image: Result<SessionImage, String>) {
        self.tell(Word::Settled(image));
    }

    fn ended(&self) {
        self.tell(Word::Ended);
    }
}

/// The model with somebody who watches.
struct WatchedVm<B> {
    model: B,
    recorder: Recorder,
}

impl<B: Backing> Backing for WatchedVm<B> {
    fn control(&self) -> &Control {
        self.model.control()
    }

    fn set_error(&self, text: String) {
        self.model.set_error(text);
    }

    fn device(&self) -> Box<dyn Device + '_> {
        self.model.device()
    }

    fn watch(&self) -> Option<&dyn SessionWatch> {
        Some(&self.recorder)
    }
}

/// A process: it serves one front end, or goes on with a session.
fn serve(
    stream: Option<UnixStream>,
    session: Option<SessionImage>,
    gone: bool,
) -> (Served<impl Backing>, Receiver<Word>) {
    let (words, heard) = channel();
    let vm = WatchedVm { model: model(), recorder: Recorder { words: Mutex::new(words), gone } };
    let served = Served::spawn(Arc::new(vm), Listener::Connected(stream), None, session);
    (served.expect("a thread"), heard)
}

/// A front end, with what is heard of its session.
struct Front {
    socket: MessageSocket,
    heard: Receiver<Word>,
}

impl Front {
    fn connect(gone: bool) -> (Self, Served<impl Backing>) {
        let (near, far) = UnixStream::pair().expect("sockets");
        near.set_nonblocking(true).expect("a socket that does not block");
        far.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let (served, heard) = serve(Some(near), None, gone);
        (Self { socket: MessageSocket::new(far), heard }, served)
    }

    fn word(&self) -> Word {
        self.heard.recv_timeout(PATIENCE).expect("a word")
    }

    /// The image, once nothing is read any more.
    fn settled(&self) -> Result<SessionImage, String> {
        loop {
            if let Word::Settled(image) = self.word() {
                return image;
            }
        }
    }

    /// Sends a request that is acknowledged. Returns what is heard of it.
    fn ask(
        &mut self,
        request: Request,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<SessionImage, String> {
        self.socket.send_request(request, true, body, files).expect("sent");
        assert!(matches!(self.word(), Word::Busy), "before {} is read", request.name());
        self.socket.recv_ack(request).unwrap_or_else(|e| panic!("{e}"));
        self.settled()
    }

    /// Shares memory and starts ring 0.
    fn set_up(&mut self) -> SessionImage {
        self.set_up_ring(0)
    }

    /// Shares memory and starts a ring. Chains of ring 1 may be taken again, those of ring 0 not.
    fn set_up_ring(&mut self, index: u32) -> SessionImage {
        let at = index as usize;
        let file = rustix::fs::memfd_create("front", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, MEMORY_BYTES).expect("its length");
        let region = MemoryRegion { guest_addr: 0, size: MEMORY_BYTES, user_addr: 0, mmap_offset: 0 };
        let memory = MemoryTable { regions: vec![region] }.encode();
        let ring = VringAddr { index, flags: 0, desc: 0, used: 0x2000, avail: 0x1000, log: 0 }.encode();
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let number = u64::from(index).to_ne_bytes();
        let state = |num| VringState { index, num }.encode();
        let features = (f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES).to_ne_bytes();
        let none: &[BorrowedFd<'_>] = &[];
        self.socket
            .send_request(Request::SetProtocolFeatures, false, &p::REPLY_ACK.to_ne_bytes(), none)
            .expect("sent");
        // What is heard before any message comes first, if the thread was so quick.
        while json(&self.settled().expect("an image"))["front_end"]["protocol"] != p::REPLY_ACK {}
        let image = self.ask(Request::SetFeatures, &features, none).expect("an image");
        let acked = f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES;
        assert_eq!(json(&image)["driver"]["acked"], acked);
        let image = self.ask(Request::SetMemTable, &memory, &[file.as_fd()]).expect("an image");
        assert_eq!(json(&image)["memory"]["regions"][0]["len"], MEMORY_BYTES);
        let image = self.ask(Request::SetVringNum, &state(16), none).expect("an image");
        assert_eq!(json(&image)["rings"][at]["size"], 16);
        let image = self.ask(Request::SetVringBase, &state(0), none).expect("an image");
        assert_eq!(json(&image)["rings"][at]["kick"], Value::Null);
        let image = self.ask(Request::SetVringAddr, &ring, none).expect("an image");
        assert_eq!(json(&image)["rings"][at]["addresses"]["used"], 0x2000);
        let image = self.ask(Request::SetVringCall, &number, &[eventfd.as_fd()]).expect("an image");
        assert_eq!(
            (&json(&image)["rings"][at]["call"], json(&image)["inflight"]["own"].is_null()),
            (&"file".into(), true)
        );
        let image = self.ask(Request::SetVringKick, &number, &[eventfd.as_fd()]).expect("an image");
        assert_eq!(
            (&json(&image)["rings"][at]["kick"], json(&image)["inflight"]["own"].is_null()),
            (&"file".into(), index == 1)
        );
        let image = self.ask(Request::SetVringEnable, &state(1), none).expect("an image");
        assert_eq!(json(&image)["rings"][at]["state"], "enabled");
        image
    }
}

fn json(image: &SessionImage) -> Value {
    let (bytes, _) = image.clone().encode().expect("encoded");
    serde_json::from_slice(&bytes[16..]).expect("JSON")
}

/// As it is for another process: with descriptors of its own.
fn pass_on(image: &SessionImage) -> SessionImage {
    let (bytes, files) = image.clone().encode().expect("encoded");
    SessionImage::decode(&bytes, files).expect("the same image")
}

#[test]
fn each_change_is_told_and_another_process_goes_on_with_it() {
    let (mut front, mut first) = Front::connect(false);
    let image = pass_on(&front.set_up());
    assert!(first.stop());
    let (mut next, heard) = serve(None, Some(image), false);
    front.heard = heard;
    let again = front.settled().expect("an image");
    assert_eq!(json(&again)["rings"][0]["size"], 16);
    assert_eq!(next.vm.control().connections.load(std::sync::atomic::Ordering::Relaxed), 0, "it is the same");
    let disable = VringState { index: 0, num: 0 }.encode();
    let image = front.ask(Request::SetVringEnable, &disable, &[]).expect("an image");
    assert_eq!(json(&image)["rings"][0]["state"], "discarding");
    drop(image);
    assert!(next.stop());
    assert!(matches!(front.word(), Word::Ended));
}

#[test]
fn chains_that_may_be_taken_again_are_not_marked() {
    let (mut front, mut first) = Front::connect(false);
    let image = pass_on(&front.set_up_ring(1));
    assert!(first.stop());
    let (_, files) = image.clone().encode().expect("encoded");
    let is_memory = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|s| s.st_size as u64 == MEMORY_BYTES);
    let memory = files.into_iter().find(is_memory).expect("the guest's memory");
    // The driver has made five chains available behind those that were used.
    for (index, at) in [(0xfffe_u16, 0x2002), (3, 0x1002)] {
        rustix::io::pwrite(&memory, &index.to_le_bytes(), at).expect("written");
    }
    let (mut next, heard) = serve(None, Some(image), false);
    front.heard = heard;
    let again = front.settled().expect("an image");
    assert_eq!(json(&again)["rings"][1]["state"], "enabled");
    assert!(json(&again)["inflight"]["own"].is_null());
    let state = VringState { index: 1, num: 0 }.encode();
    front.socket.send_request(Request::GetVringBase, false, &state, &[]).expect("sent");
    let base = front.socket.recv_reply(Request::GetVringBase).expect("a reply");
    assert_eq!(base.vring_state().expect("a ring").num, 0xfffe, "none of them is skipped");
    assert!(next.stop());
}

#[test]
fn what_has_arrived_of_a_message_is_in_the_image() {
    let (mut front, mut first) = Front::connect(false);
    drop(front.set_up());
    let header =
        Header { request: Request::SetVringEnable as u32, flags: VERSION | FLAG_NEED_REPLY, size: 8 };
    let message = [&header.encode()[..], &VringState { index: 0, num: 0 }.encode()].concat();
    let (begin, rest) = message.split_at(14);
    front.socket.send_raw(begin, &[]).expect("sent");
    let image = pass_on(&front.settled().expect("an image"));
    assert_eq!(json(&image)["connection"]["received"].as_array().map(Vec::len), Some(14));
    assert!(first.stop());
    let (mut next, heard) = serve(None, Some(image), false);
    front.heard = heard;
    front.socket.send_raw(rest, &[]).expect("sent");
    front.socket.recv_ack(Request::SetVringEnable).expect("carried out");
    assert!(next.stop());
}

#[test]
fn a_session_of_a_guest_that_migrates_can_not_go_on() {
    let (mut front, mut served) = Front::connect(false);
    drop(front.set_up());
    let logged = (f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES | f::VHOST_LOG_ALL).to_ne_bytes();
    let why = front.ask(Request::SetFeatures, &logged, &[]).expect_err("no image");
    assert_eq!(why, "the guest migrates");
    let features = (f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES).to_ne_bytes();
    front.ask(Request::SetFeatures, &features, &[]).expect("an image again");
    assert!(served.stop());
}

#[test]
fn no_message_is_read_where_nobody_keeps_the_session() {
    let (mut front, _served) = Front::connect(true);
    let image = front.settled().expect("an image");
    front.socket.send_request(Request::GetFeatures, false, &[], &[]).expect("sent");
    assert!(matches!(front.word(), Word::Ended));
    let (mut next, heard) = serve(None, Some(pass_on(&image)), false);
    let features = front.socket.recv_reply(Request::GetFeatures).expect("a reply").u64().expect("a number");
    assert_ne!(features, 0);
    assert!(next.stop());
    // Each image has the connection as well.
    drop((image, heard));
    let end = front.socket.recv();
    assert!(matches!(end, Ok(None) | Err(WireError::CutOff { .. })), "{end:?}");
}

#[test]
fn a_session_that_can_not_go_on_is_told() {
    let (mut front, mut first) = Front::connect(false);
    let (bytes, files) = front.set_up().encode().expect("encoded");
    assert!(first.stop());
    let text = String::from_utf8_lossy(&bytes[16..]).replace("\"size\":16", "\"size\":32768");
    let head = [&bytes[..12], &(text.len() as u32).to_le_bytes()].concat();
    let forged = SessionImage::decode(&[&head, text.as_bytes()].concat(), files).expect("an image");
    let (served, heard) = serve(None, Some(forged), false);
    front.heard = heard;
    assert!(matches!(front.word(), Word::Ended), "the ring is not in memory");
    assert_eq!(served.vm.control().connection_errors.load(std::sync::atomic::Ordering::Relaxed), 1);
}
