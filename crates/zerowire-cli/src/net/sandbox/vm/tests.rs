use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

use zerowire_confine::ConfineReport;
use zerowire_metadata::TokenPolicy;
use zerowire_net::port::PortSpec;
use zerowire_net::{MetadataSource, Policy};
use zerowire_testkit::net::in_netns;
use zerowire_vhost::serve::Endpoint;

use super::super::message::{ChildStats, VmFigures};
use super::super::pace::EACH;
use super::*;
use crate::sandbox::channel::Channel;
use crate::sandbox::figures::SentFigures;

fn tap() -> PortSpec {
    "tap:zwkeep".parse().expect("a port")
}

/// A VM whose socket is in this folder.
pub(in super::super) fn config(dir: &Path, metadata: Option<&Path>) -> VmConfig {
    VmConfig::new("vm", Endpoint::Path(dir.join("socket")), tap())
        .metadata(
            metadata.map(|file| MetadataSource { file: file.to_owned(), tokens: TokenPolicy::Optional }),
        )
        .policy(Policy::default().gather_max_bytes(0).rx_copybreak_bytes(0))
}

/// What all children of a test have in common.
pub(in super::super) fn common() -> Common {
    let owner = Owner { user: 65534, group: 65534 };
    Common { owner, log: "info".to_owned(), cpu: CpuSum::default() }
}

/// A VM whose child is the test.
pub(in super::super) fn vm(dir: &Path, metadata: Option<&Path>) -> NetVm {
    vm_of(config(dir, metadata))
}

/// The same of this configuration.
pub(in super::super) fn vm_of(config: VmConfig) -> NetVm {
    let read = |source| KeptMetadata::read(source).expect("metadata");
    let metadata = config.metadata.clone().map(read);
    let port = config.port.keep().expect("a tap");
    NetVm {
        child: Mutex::new(HeardChild::new(&*port)),
        port,
        listener: Mutex::new(Listener::new(&config.endpoint, &config.access).expect("a socket")),
        state: Mutex::new(NetState { metadata, ..NetState::default() }),
        common: common(),
        drains: AtomicUsize::new(0),
        follower: Mutex::default(),
        gone: Mutex::default(),
        config,
    }
}

fn set_metadata(vm: &NetVm, source: MetadataSource) -> Result<(), String> {
    let deadline = Instant::now() + ANSWER_PATIENCE;
    vm.keep_metadata(vm.ask_metadata(KeptMetadata::read(source)?, deadline)?, deadline)
}

fn link() -> (Arc<ChildLink>, Channel) {
    let (ours, theirs) = Channel::pair().expect("a pair");
    (Arc::new(ChildLink::new(ours)), Channel::of(theirs))
}

/// The setup that the child gets, and its metadata.
pub(in super::super) fn setup(child: &Channel) -> (ChildSetup, String) {
    let Ok(Some((ChildOrder::Start(setup, _), fds))) = child.receive() else { panic!("no setup") };
    let mut text = String::new();
    if setup.tokens.is_some() {
        let file = fds.into_iter().next_back().expect("a file");
        std::fs::File::from(file).read_to_string(&mut text).expect("read");
    }
    // Nothing comes between the two.
    assert!(matches!(child.receive(), Ok(Some((ChildOrder::Session(None), _)))));
    (*setup, text)
}

/// What the child says, and why it is ended for that.
fn why(keeper: &Keeper<NetVm>, words: Vec<ChildWord>) -> Option<String> {
    let (link, child) = link();
    let end = std::thread::scope(|scope| {
        scope.spawn(move || words.iter().for_each(|word| drop(child.send(word, &[]))));
        keeper.listen(&link, &mut None)
    });
    end.map(|end| {
        assert!(end.is_error, "nobody asked for that");
        end.why
    })
}

/// Who asks about the VM may keep it for longer.
#[test]
fn a_front_end_is_disconnected_when_no_child_follows() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = vm(dir.path(), None);
        let (mut front, connection) = UnixStream::pair().expect("a pair");
        front.set_nonblocking(true).expect("it does not wait");
        let word = r#"{"Session": {"Kept": {"text": "", "files": 1}}}"#;
        let (link, _child) = link();
        vm.hear(serde_json::from_str(word).expect("a word"), vec![connection.into()], &link);
        assert!(front.read(&mut [0]).is_err(), "it is kept");
        vm.ended();
        assert_eq!(front.read(&mut [0]).expect("the end"), 0);
    });
}

#[test]
fn a_child_that_says_too_much_is_ended() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let keeper = Keeper::new(vm(dir.path(), None));
        let ready = || ChildWord::Ready(ConfineReport::default());
        assert_eq!(why(&keeper, vec![ready()]), None, "it has left");
        let said = why(&keeper, vec![ready(), ready()]);
        assert!(said.as_ref().is_some_and(|why| why.contains("once more")), "{said:?}");
        let said = why(&keeper, vec![ChildWord::Failed("\u{1b}[2J".repeat(5000))]).expect("a reason");
        assert!(said.len() <= 500 && !said.contains(char::is_control), "{said}");
    });
}

#[test]
fn a_child_that_asks_for_mtus_all_the_time_is_slow() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let keeper = Keeper::new(vm(dir.path(), None));
        let (link, child) = link();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| keeper.listen(&link, &mut None));
            for mtu in [67, 1400, 65_536, 1400, 1400] {
                child.send(&ChildWord::Port(format!(r#"{{"SetMtu":{mtu}}}"#)), &[]).expect("sent");
                let Ok(Some((ChildOrder::Done(done), _))) = child.receive() else { panic!("no answer") };
                assert_eq!(done.is_ok(), mtu == 1400, "{done:?}");
            }
            // A verb of another port.
            child.send(&ChildWord::Port(r#""Open""#.to_owned()), &[]).expect("sent");
            let done = child.receive();
            let Ok(Some((ChildOrder::Done(Err(why)), _))) = &done else { panic!("{done:?}") };
            assert_eq!(why, "the port has no such verb");
            link.close();
        });
        assert!(begin.elapsed() >= 6 * EACH, "{:?}", begin.elapsed());
    });
}

#[test]
fn what_is_changed_between_two_children_reaches_the_next_one() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("metadata.json");
        std::fs::write(&file, r#"{"a": "old"}"#).expect("written");
        let vm = vm(dir.path(), Some(&file));
        std::fs::write(&file, r#"{"a": "new"}"#).expect("written");
        let limit = |text: &str| Limits { transmit: Some(text.parse().expect("a limit")), receive: None };
        let source = vm.config().metadata.expect("metadata");
        vm.set_limits(limit("1M/s")).expect("it takes orders");
        set_metadata(&vm, source.clone()).expect("valid");
        // The file is read when somebody says so, and no more.
        std::fs::remove_file(&file).expect("removed");
        let (link, child) = link();
        vm.hand(&link).expect("handed");
        let (first, text) = setup(&child);
        assert_eq!((first.limits, text.as_str()), (limit("1M/s"), r#"{"a": "new"}"#));
        // The child that has its setup hears of it.
        vm.set_limits(limit("2M/s")).expect("it takes orders");
        assert!(matches!(child.receive(), Ok(Some((ChildOrder::Limits(_), _)))));
        vm.drain().expect("it takes orders");
        assert!(matches!(child.receive(), Ok(Some((ChildOrder::Drain, _)))));
        vm.part();
        let (link, child) = self::link();
        vm.hand(&link).expect("handed");
        let (next, _) = setup(&child);
        assert_eq!((next.limits, first.drains, next.drains), (limit("2M/s"), false, true));
    });
}

/// It reads nothing for a while.
#[test]
fn a_child_without_room_hears_of_a_change_when_it_has_some() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = vm(dir.path(), None);
        let (link, child) = link();
        vm.hand(&link).expect("handed");
        setup(&child);
        let text = "x".repeat(20_000);
        let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
        for _ in 0..2 {
            assert!(vm.tell_link(LinkState::Up).is_err_and(|e| e.contains("it takes no order now")));
        }
        assert_eq!(lock(&vm.state).interface, None);
        assert!(vm.drain().is_err_and(|e| e.contains("try again")) && !vm.is_draining());
        std::thread::scope(|scope| {
            let drains = scope.spawn(|| vm.drain());
            (0..full).for_each(|_| drop(child.receive::<String>()));
            assert!(matches!(child.receive(), Ok(Some((ChildOrder::Drain, _)))));
            assert_eq!(drains.join().expect("no panic"), Ok(()));
        });
        assert!(vm.is_draining());
        vm.tell_link(LinkState::Up).expect("it takes orders");
        assert!(matches!(child.receive(), Ok(Some((ChildOrder::Link(LinkState::Up), _)))));
        vm.tell_link(LinkState::Up).expect("it knows");
        assert_eq!(lock(&vm.state).interface, Some(LinkState::Up));
    });
}

/// Both wait for room at the same time.
#[test]
fn a_drain_that_gives_up_leaves_the_one_that_a_child_gets() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = vm(dir.path(), None);
        let (link, child) = link();
        vm.hand(&link).expect("handed");
        setup(&child);
        let text = "x".repeat(20_000);
        let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
        std::thread::scope(|scope| {
            let gives_up = scope.spawn(|| vm.drain());
            std::thread::sleep(ANSWER_PATIENCE / 2);
            let waits = scope.spawn(|| vm.drain());
            assert!(gives_up.join().expect("no panic").is_err_and(|e| e.contains("try again")));
            (0..full).for_each(|_| drop(child.receive::<String>()));
            assert_eq!(waits.join().expect("no panic"), Ok(()));
        });
        assert!(vm.is_draining());
    });
}

#[test]
fn metadata_that_a_child_refuses_are_not_kept() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("old.json"), dir.path().join("new.json"));
        for file in [&old, &new] {
            std::fs::write(file, "{}").expect("written");
        }
        let vm = vm(dir.path(), Some(&old));
        let (link, child) = link();
        vm.hand(&link).expect("handed");
        setup(&child);
        let other = MetadataSource { file: new.clone(), tokens: TokenPolicy::Optional };
        let set = |refused: Option<String>| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let Ok(Some((ChildOrder::Metadata(number, _), _))) = child.receive() else {
                        panic!("no question")
                    };
                    link.take(ChildWord::Metadata(number, refused));
                });
                set_metadata(&vm, other.clone())
            })
        };
        let refused = set(Some("\u{1b}no ".repeat(10_000))).expect_err("refused");
        assert!(refused.len() <= 500 && !refused.contains(char::is_control), "{refused}");
        assert_eq!(vm.config().metadata.expect("metadata").file, old);
        set(None).expect("taken");
        assert_eq!(vm.config().metadata.expect("metadata").file, new);
    });
}

#[test]
fn statistics_of_a_child_that_has_ended_are_not_the_next_ones() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = vm(dir.path(), None);
        let connections = |asked| vm.stats(asked, Instant::now()).connections;
        let told = |number| {
            let mut figures = VmFigures { connections: 3, ..Default::default() };
            let stats = ChildStats { figures: SentFigures::of(&mut figures), ..Default::default() };
            ChildWord::Statistics(number, Box::new(stats))
        };
        let (first, _child) = link();
        vm.hand(&first).expect("handed");
        let asked = vm.ask_stats();
        first.take(told(1));
        vm.part();
        lock(&vm.state).sums.died(Some("killed"));
        let (second, _child) = link();
        vm.hand(&second).expect("handed");
        assert_eq!(connections(asked), 0, "of the first one");
        let asked = vm.ask_stats();
        second.take(told(1));
        assert_eq!(connections(asked), 3);
    });
}
