//! Images of any content come back as they were, and bytes that are no image are refused.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use zerowire_vhost_user::MAX_FDS;

use super::*;
use crate::host::RingState;
use crate::memory::MAX_REGIONS;
use crate::ring::RingAddresses;
use crate::serve::Progress;
use crate::session::memory::MAX_REPEATS;

/// Which file a descriptor is of.
fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).expect("a file").st_ino
}

fn file() -> File {
    let file = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC);
    Arc::new(file.expect("a file in memory"))
}

fn region() -> impl Strategy<Value = RegionImage<Token>> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    numbers.prop_map(|(guest_addr, len, user_addr, offset)| RegionImage {
        guest_addr,
        len,
        user_addr,
        offset,
        file: Token::File,
    })
}

fn log() -> impl Strategy<Value = LogImage<Token>> {
    (any::<u64>(), any::<u64>()).prop_map(|(offset, len)| LogImage { offset, len, file: Token::File })
}

fn area(rings: u16) -> impl Strategy<Value = AreaImage<Token>> {
    (1..=rings, 0..=15u32, any::<u64>()).prop_map(|(queues, size, offset)| AreaImage {
        queues,
        queue_size: 1 << size,
        offset,
        file: Token::File,
    })
}

fn ring() -> impl Strategy<Value = RingImage<Token>> {
    let place = (any::<u64>(), any::<u64>(), any::<u64>());
    let state = prop_oneof![Just(RingState::Waiting), Just(RingState::Enabled), Just(RingState::Discarding)];
    let files = (any::<bool>(), any::<bool>(), any::<bool>());
    (0..=15u32, of(place), of(any::<u64>()), any::<u16>(), state, files).prop_map(
        |(size, place, log_at, base, state, (kick, call, err))| {
            let token = |there: bool| there.then_some(Token::File);
            let addresses = place.map(|(desc, avail, used)| RingAddresses { desc, avail, used });
            let kick = token(kick && addresses.is_some());
            let (call, err) = (token(call), token(err));
            RingImage { size: 1 << size, addresses, log_at, base, state, kick, call, err }
        },
    )
}

fn token() -> impl Strategy<Value = Option<Token>> {
    of(Just(Token::File))
}

/// The numbers of an image with these many rings.
fn parts(rings: u16) -> impl Strategy<Value = Parts<Token>> {
    let connection = (vec(any::<u8>(), 0..40), vec(Just(Token::File), 0..=MAX_FDS)).prop_map(
        |(received, received_files)| ConnectionImage { socket: Token::File, received, received_files },
    );
    let progress = prop_oneof![Just(Progress::Asked), Just(Progress::CountedQueues), Just(Progress::SetUp)];
    let front_end = (any::<u64>(), progress, token(), of(any::<u64>()))
        .prop_map(|(protocol, progress, channel, mtu)| FrontEndImage { protocol, progress, channel, mtu });
    let driver = (any::<u64>(), 0..=0xffu64, any::<bool>())
        .prop_map(|(acked, status, needs_reset)| DriverImage { acked, status, needs_reset });
    let memory = (vec(region(), 0..9), vec(any::<(u64, u64, u64)>(), 0..5))
        .prop_map(|(regions, repeats)| MemoryImage { regions, repeats });
    let migration = (of(log()), of(log()), token()).prop_map(|(log, early, signal)| MigrationImage {
        log,
        early,
        signal,
    });
    let inflight = (of(area(rings)), of(area(rings))).prop_map(|(shared, own)| InflightImage { shared, own });
    let rings = vec(ring(), usize::from(rings));
    (connection, front_end, driver, memory, migration, inflight, token(), rings).prop_map(
        |(connection, front_end, driver, memory, migration, inflight, loading, rings)| Parts {
            connection,
            front_end,
            driver,
            memory,
            migration,
            inflight,
            loading,
            rings,
        },
    )
}

/// An image with these numbers, each of whose descriptors is of another file.
fn image(parts: Parts<Token>) -> SessionImage {
    let parts = parts.map(&mut |_| Ok::<_, ImageError>(file())).expect("nothing fails");
    SessionImage(Box::new(parts))
}

/// An image, with the file of each descriptor in its place.
fn inodes(image: &SessionImage) -> Parts<u64> {
    image.0.clone().map(&mut |file| Ok::<_, ImageError>(inode(&file))).expect("nothing fails")
}

/// An image with as few descriptors as there can be.
fn bare() -> Parts<Token> {
    Parts {
        connection: ConnectionImage { socket: Token::File, received: Vec::new(), received_files: Vec::new() },
        front_end: FrontEndImage { protocol: 0, progress: Progress::Asked, channel: None, mtu: None },
        driver: DriverImage { acked: 0, status: 0, needs_reset: false },
        memory: MemoryImage { regions: Vec::new(), repeats: Vec::new() },
        migration: MigrationImage { log: None, early: None, signal: None },
        inflight: InflightImage { shared: None, own: None },
        loading: None,
        rings: vec![empty_ring(); 2],
    }
}

fn empty_ring() -> RingImage<Token> {
    RingImage {
        size: 0,
        addresses: None,
        log_at: None,
        base: 0,
        state: RingState::Waiting,
        kick: None,
        call: None,
        err: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_value_and_each_descriptor_comes_back(parts in parts(3)) {
        let image = image(parts);
        let before = inodes(&image);
        let (bytes, files) = image.encode().expect("encoded");
        let order: Vec<u64> = files.iter().map(inode).collect();
        let after = SessionImage::decode(&bytes, files).expect("decoded");
        prop_assert_eq!(&before, &inodes(&after));
        // Descriptors are in the order of the places, however often an image goes on.
        let (again, files) = after.encode().expect("encoded");
        prop_assert_eq!(bytes, again);
        prop_assert_eq!(order, files.iter().map(inode).collect::<Vec<_>>());
    }

    #[test]
    fn no_cut_is_taken(parts in parts(2), cut in any::<prop::sample::Index>()) {
        let (bytes, files) = image(parts).encode().expect("encoded");
        let cut = cut.index(bytes.len());
        prop_assert!(SessionImage::decode(&bytes[..cut], files).is_err());
    }

    /// Any answer will do but a panic.
    #[test]
    fn changed_bytes_are_taken_or_refused(
        parts in parts(2),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut bytes, files) = image(parts).encode().expect("encoded");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = SessionImage::decode(&bytes, files);
    }

    #[test]
    fn bytes_of_any_kind_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(SessionImage::decode(&bytes, Vec::new()).is_err());
    }
}

fn refusal(decoded: Result<SessionImage, ImageError>) -> String {
    decoded.expect_err("it is refused").to_string()
}

/// What is said of an image with these numbers.
fn refusal_of(change: impl FnOnce(&mut Parts<Token>)) -> String {
    let mut parts = bare();
    change(&mut parts);
    let (bytes, files) = image(parts).encode().expect("encoded");
    refusal(SessionImage::decode(&bytes, files))
}

#[test]
fn the_frame_around_the_values_is_checked() {
    let (bytes, _) = image(bare()).encode().expect("encoded");
    let sound = || vec![file().try_clone().expect("a descriptor")];
    let changed = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        refusal(SessionImage::decode(&bytes, sound()))
    };
    assert!(SessionImage::decode(&bytes, sound()).is_ok());
    assert!(changed(0, b'Z').contains("begins with"));
    assert!(changed(8, 2).contains("version 2: this program knows version 1"));
    assert!(changed(12, bytes[12] ^ 1).contains("follow its first 16"));
    assert!(changed(HEAD_BYTES, b'[').contains("line 1 column"));
    assert!(refusal(SessionImage::decode(&bytes[..15], sound())).contains("image of 15 bytes"));
    let long = [bytes.clone(), vec![b' '; MAX_BYTES]].concat();
    assert!(refusal(SessionImage::decode(&long, sound())).contains("4194304 are the most"));
    let longer = [bytes.clone(), b" ".to_vec()].concat();
    assert!(refusal(SessionImage::decode(&longer, sound())).contains("follow its first 16"));
}

#[test]
fn the_count_of_descriptors_is_the_image_s() {
    let (bytes, _) = image(bare()).encode().expect("encoded");
    for got in [0, 2, 300] {
        let files = (0..got).map(|_| file().try_clone().expect("a descriptor")).collect();
        let text = refusal(SessionImage::decode(&bytes, files));
        assert!(text.contains(&format!("{got} descriptors came")) && text.ends_with("names 1"), "{text}");
    }
}

#[test]
fn each_value_out_of_its_range_is_named() {
    let queue = |change: fn(&mut RingImage<Token>)| {
        refusal_of(|p| {
            let addresses = Some(RingAddresses { desc: 0, avail: 0, used: 0 });
            p.rings[1] = RingImage { size: 256, addresses, kick: Some(Token::File), ..empty_ring() };
            change(&mut p.rings[1]);
        })
    };
    assert!(queue(|r| r.size = 0).contains("the size of queue 1 is 0"));
    assert!(queue(|r| r.size = 255).contains("the size of queue 1 is 255"));
    assert!(queue(|r| r.addresses = None).contains("queue 1 runs and has no addresses"));
    assert!(refusal_of(|p| p.rings[0].size = 3).contains("the size of queue 0 is 3"));
    assert!(refusal_of(|p| p.rings = vec![empty_ring(); MAX_RINGS + 1]).contains("rings: 513"));
    assert!(refusal_of(|p| p.driver.status = 256).contains("device status is 256"));
    assert!(refusal_of(|p| p.connection.received = vec![0; 4109]).contains("unfinished message: 4109"));
    let files = |p: &mut Parts<Token>| p.connection.received_files = vec![Token::File; 9];
    assert!(refusal_of(files).contains("descriptors of an unfinished message: 9"));
    let repeats = |p: &mut Parts<Token>| p.memory.repeats = vec![(0, 0, 0); MAX_REPEATS + 1];
    assert!(refusal_of(repeats).contains("regions added again: 16385"));
    let area = |queues, queue_size| {
        let area = AreaImage { queues, queue_size, offset: 0, file: Token::File };
        refusal_of(|p| p.inflight.own = Some(area.clone()))
    };
    assert!(area(0, 256).contains("queues of an in-flight region is 0"));
    assert!(area(3, 256).contains("queues of an in-flight region is 3"));
    assert!(area(2, 100).contains("entries of an in-flight region is 100"));
    assert!(area(2, 0).contains("entries of an in-flight region is 0"));
}

#[test]
fn more_regions_than_a_vm_can_have_are_refused() {
    let region = RegionImage { guest_addr: 0, len: 0, user_addr: 0, offset: 0, file: Token::File };
    let mut parts = bare();
    parts.memory.regions = vec![region; MAX_REGIONS + 1];
    assert!(parts.check().expect_err("too many").to_string().contains("memory regions: 510"));
    // They need no descriptor each to be refused.
    let json = serde_json::to_vec(&parts).expect("JSON");
    let head = [&MAGIC[..], &VERSION.to_le_bytes(), &(json.len() as u32).to_le_bytes()].concat();
    let text = refusal(SessionImage::decode(&[head, json].concat(), Vec::new()));
    assert!(text.contains("memory regions: 510"), "{text}");
}

#[test]
fn fields_that_are_missing_or_unknown_are_named() {
    let json = serde_json::to_string(&bare()).expect("JSON");
    let decode = |json: &str| {
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &(json.len() as u32).to_le_bytes()].concat();
        refusal(SessionImage::decode(&[&head, json.as_bytes()].concat(), vec![]))
    };
    assert!(decode(&json.replace("\"status\":0,", "")).contains("missing field `status`"));
    assert!(decode(&json.replace("\"status\"", "\"statuses\"")).contains("unknown field `statuses`"));
    assert!(decode(&json.replace("\"status\":0", "\"status\":-1")).contains("-1"));
    assert!(decode(&json.replace("\"waiting\"", "\"asleep\"")).contains("unknown variant `asleep`"));
    assert!(decode(&"[".repeat(100_000)).contains("line 1"));
}

#[test]
fn a_clone_keeps_its_descriptors() {
    let image = image(bare());
    let clone = image.clone();
    let before = inodes(&image);
    let (_, files) = image.encode().expect("encoded");
    assert_eq!(files.iter().map(inode).collect::<Vec<_>>(), [before.connection.socket]);
    drop(files);
    assert_eq!(inodes(&clone), before);
}

mod transfer {
    use std::io::Write;
    use std::time::Duration;

    use zerowire_testkit::own_process;
    use zerowire_testkit::process::{become_ordinary, limit};
    use zerowire_vhost_user::{MessageSocket, WireError};

    use super::*;

    /// More descriptors than a message takes.
    fn many() -> Parts<Token> {
        let region = RegionImage { guest_addr: 0, len: 0, user_addr: 0, offset: 0, file: Token::File };
        let mut parts = bare();
        parts.memory.regions = vec![region; 300];
        parts
    }

    #[test]
    fn an_image_goes_through_a_socket() {
        for parts in [bare(), many()] {
            let (near, far) = UnixStream::pair().expect("sockets");
            let image = image(parts);
            let before = inodes(&image);
            let sender = std::thread::spawn(move || {
                image.clone().send(&near).expect("sent");
                image.send(&near).expect("sent once more");
            });
            for _ in 0..2 {
                assert_eq!(inodes(&SessionImage::receive(&far).expect("received")), before);
            }
            sender.join().expect("no panic");
        }
    }

    /// A user without rights has as many under way in sockets as a process of it may have.
    #[test]
    fn descriptors_wait_until_others_have_arrived() {
        own_process!();
        let images = [image(bare()), image(bare())];
        limit(libc::RLIMIT_NOFILE, 64, 64).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        for image in images {
            let (near, far) = UnixStream::pair().expect("sockets");
            let (to, unread) = UnixStream::pair().expect("sockets");
            let mut to = MessageSocket::new(to);
            let refused = (0..100).find_map(|_| to.send_raw(&[0], &[near.as_fd(); 32]).err());
            let refused = refused.expect("too many");
            assert!(matches!(refused, WireError::Crowded), "{refused}");
            assert!(refused.to_string().contains("'ulimit -n'"), "{refused}");
            let goes = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                drop(unread);
            });
            let before = inodes(&image);
            image.send(&near).expect("sent");
            goes.join().expect("no panic");
            assert_eq!(inodes(&SessionImage::receive(&far).expect("received")), before);
        }
    }

    /// What is said of these bytes, and the end of the stream behind them.
    fn refused(bytes: &[u8]) -> String {
        let (mut near, far) = UnixStream::pair().expect("sockets");
        near.write_all(bytes).expect("written");
        drop(near);
        refusal(SessionImage::receive(&far))
    }

    #[test]
    fn what_comes_is_bounded_before_it_is_read() {
        let head = |count: u32, len: u32| [count, len].map(u32::to_le_bytes).concat();
        assert!(refused(&head(u32::MAX, 16)).contains("descriptors: 4294967295"));
        assert!(refused(&head(1, u32::MAX)).contains("image of 4294967295 bytes"));
        assert!(refused(&head(1, 16)).contains("receiving it"));
        assert!(refused(&[0; 7]).contains("receiving it"));
    }

    #[test]
    fn a_byte_without_descriptors_is_not_waited_for_again() {
        let (bytes, _) = image(bare()).encode().expect("encoded");
        let head = [1, bytes.len() as u32].map(u32::to_le_bytes).concat();
        let text = refused(&[head, bytes, vec![0]].concat());
        assert!(text.contains("0 descriptors came with a session's image that names 1"), "{text}");
    }
}
