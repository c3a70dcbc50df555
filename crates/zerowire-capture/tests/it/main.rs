//! Captures as other programs read them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zerowire_capture::{
    Capture, CaptureFilter, CaptureInterface, CaptureOptions, CaptureQueue, CaptureRotation, CaptureStats,
    CaptureTarget, LINKTYPE_ETHERNET, LINKTYPE_VSOCK, MAX_SNAPLEN, PacketDirection,
};
use zerowire_testkit::captures::{CaptureFile, CapturedPacket, read, read_file};
use zerowire_testkit::{PATIENCE, wait_until};

/// Without a list of names all interfaces are captured.
const ANY: &str = "an interface of any name";

fn options(path: &Path) -> CaptureOptions {
    CaptureOptions::new(CaptureTarget::File(path.to_owned()))
}

fn mkfifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
}

fn start(options: &CaptureOptions) -> Capture {
    Capture::start(options, "a test").unwrap_or_else(|e| panic!("{e}"))
}

/// A capture, a file for it in a folder, and one interface.
fn one(change: impl FnOnce(&mut CaptureOptions)) -> (tempfile::TempDir, PathBuf, Capture, CaptureInterface) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("capture");
    let mut options = options(&path);
    change(&mut options);
    let capture = start(&options);
    let interface = capture.interface(LINKTYPE_ETHERNET, "vm", "tap:t").expect(ANY);
    (dir, path, capture, interface)
}

/// What a file has that is being written.
fn so_far(path: &Path) -> CaptureFile {
    read(&std::fs::read(path).expect("the file")).0
}

/// The bytes of packet `n`.
fn packet(n: u32, len: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..256).map(|i| (i * 7 + n) as u8).collect();
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    let head = len.min(4);
    bytes[..head].copy_from_slice(&n.to_le_bytes()[..head]);
    bytes
}

fn record(queue: &mut CaptureQueue, bytes: &[u8]) {
    queue.record(PacketDirection::Outbound, bytes.len(), |at, to| {
        to.copy_from_slice(&bytes[at..at + to.len()]);
    });
}

fn number(packet: &CapturedPacket) -> u32 {
    u32::from_le_bytes(packet.bytes[..4].try_into().expect("four bytes"))
}

#[test]
fn packets_of_all_interfaces_come_back_as_they_were() {
    let (_dir, path, capture, first) = one(|_| {});
    let second = capture.interface(LINKTYPE_VSOCK, "other", "cid 3").expect(ANY);
    let mut queues = [first.queue(), second.queue()];
    // Lengths around a word and around what is copied at once.
    let lengths = [4, 7, 8, 9, 60, 1514, 4095, 4096, 4097, 65_557];
    for (n, len) in lengths.into_iter().enumerate() {
        let queue = &mut queues[n % 2];
        record(queue, &packet(n as u32, len));
        queue.publish();
    }
    queues[1].record(PacketDirection::Inbound, 4, |_, to| to.copy_from_slice(b"back"));
    drop(queues);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    assert_eq!(file.program, "a test");
    let interfaces: Vec<_> = file.interfaces.iter().map(|i| (i.link, i.name.as_str(), i.snaplen)).collect();
    assert_eq!(interfaces, [(1, "vm", MAX_SNAPLEN), (271, "other", MAX_SNAPLEN)]);
    assert_eq!(file.interfaces[0].description, "tap:t");
    assert_eq!(file.packets.len(), lengths.len() + 1);
    for (n, (len, got)) in lengths.into_iter().zip(&file.packets).enumerate() {
        assert_eq!((got.interface, got.direction, got.len as usize), (n as u32 % 2, 2, len));
        assert_eq!(got.bytes, packet(n as u32, len), "{len} bytes");
    }
    let last = file.packets.last().expect("a packet");
    assert_eq!((last.direction, &last.bytes[..]), (1, &b"back"[..]));
    assert!(file.packets.is_sorted_by_key(|p| p.time), "the oldest first");
    assert_eq!(file.counts, [(0, 5, 0), (1, 6, 0)]);
    assert_eq!(first.stats(), CaptureStats { captured: 5, lost: 0 });
}

#[test]
fn of_long_packets_the_first_bytes_are_kept() {
    let (_dir, path, capture, interface) = one(|o| o.snaplen = 61);
    let mut queue = interface.queue();
    for (n, len) in [(0, 60), (1, 61), (2, 62), (3, 9000)] {
        record(&mut queue, &packet(n, len));
    }
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    let got: Vec<_> = file.packets.iter().map(|p| (p.bytes.len(), p.len)).collect();
    assert_eq!(got, [(60, 60), (61, 61), (61, 62), (61, 9000)]);
    assert_eq!(file.packets[3].bytes, packet(3, 9000)[..61]);
    assert_eq!(file.interfaces[0].snaplen, 61);
}

/// Packets that go back to where they came from are not in the capture, and come once when they
/// are over.
#[test]
fn packets_that_are_taken_back_leave_no_trace() {
    let (_dir, path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    for n in 0..5 {
        queue.mark(n as usize, true);
        record(&mut queue, &packet(n, 100));
    }
    queue.rewind(5);
    queue.rewind(2);
    queue.publish();
    for n in 2..4 {
        queue.mark(n as usize - 2, true);
        record(&mut queue, &packet(n, 200));
    }
    queue.rewind(1);
    queue.publish();
    // Nothing is taken back behind that.
    queue.rewind(0);
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    let got: Vec<_> = file.packets.iter().map(|p| (number(p), p.len)).collect();
    assert_eq!(got, [(0, 100), (1, 100), (2, 200)]);
}

/// What finds no room is counted, and nobody waits for room.
#[test]
fn packets_that_find_no_room_are_counted() {
    let (_dir, path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    // Nothing is published before all are recorded, so the writer can't make room.
    let room = (1 << 19) / (2 + 70_000 / 8);
    for n in 0..80 {
        queue.mark(n as usize, true);
        record(&mut queue, &packet(n, 70_000));
    }
    queue.publish();
    wait_until("the writer makes room", || interface.stats().captured == room);
    record(&mut queue, &packet(80, 70_000));
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    let got: Vec<_> = file.packets.iter().map(number).collect();
    let want: Vec<_> = (0..room as u32).chain([80]).collect();
    assert_eq!(got, want);
    assert!(file.packets.iter().all(|p| p.bytes == packet(number(p), 70_000)));
    assert_eq!(file.counts, [(0, 81, 80 - room)]);
    assert_eq!(interface.stats(), CaptureStats { captured: room + 1, lost: 80 - room });
}

/// A packet that found no room, and comes again until it does, is not lost.
#[test]
fn packets_that_are_taken_back_are_not_lost() {
    let (_dir, path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    // Nothing is published before all are recorded, so the writer can't make room.
    let room = (1 << 19) / (2 + 70_000 / 8);
    for n in 0..room {
        queue.mark(n, true);
        record(&mut queue, &packet(n as u32, 70_000));
    }
    for _ in 0..3 {
        queue.mark(room, true);
        record(&mut queue, &packet(room as u32, 70_000));
        queue.rewind(room);
    }
    queue.publish();
    wait_until("the writer makes room", || interface.stats().captured == room as u64);
    record(&mut queue, &packet(room as u32, 70_000));
    drop(queue);
    assert!(capture.finish(PATIENCE));
    assert_eq!(read_file(&path).packets.len(), room + 1);
    assert_eq!(interface.stats(), CaptureStats { captured: room as u64 + 1, lost: 0 });
}

/// A batch that is longer than the ring is handed on piece by piece.
#[test]
fn a_long_batch_is_written_before_it_ends() {
    let (_dir, _path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    let mut recorded = 0;
    wait_until("packets of the batch are written", || {
        // The one before each is over when the next one is marked.
        queue.mark(recorded as usize, false);
        record(&mut queue, &packet(recorded, 60_000));
        recorded += 1;
        interface.stats().captured > 0
    });
    queue.rewind(recorded as usize - 1);
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let CaptureStats { captured, lost } = interface.stats();
    assert_eq!((captured + lost, lost), (u64::from(recorded) - 1, 0));
}

/// Whoever follows the file sees a packet without waiting for others.
#[test]
fn a_single_packet_is_written_at_once() {
    let (_dir, path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    for n in 0..3 {
        record(&mut queue, &packet(n, 64));
        queue.publish();
        wait_until("the packet is in the file", || so_far(&path).packets.len() == n as usize + 1);
        // The writer has nothing to do meanwhile, and sleeps.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(capture.finish(PATIENCE));
}

#[test]
fn files_follow_each_other_and_the_oldest_goes() {
    const BYTES: u64 = 100_000;
    let rotation = CaptureRotation { bytes: BYTES, files: 3 };
    let (dir, path, capture, interface) = one(|o| o.rotation = Some(rotation));
    let mut queue = interface.queue();
    for n in 0..100 {
        record(&mut queue, &packet(n, 10_000));
        queue.publish();
        // None is lost for want of room.
        wait_until("the packet is taken", || interface.stats().captured == u64::from(n) + 1);
    }
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let file = |n| if n == 0 { path.clone() } else { dir.path().join(format!("capture.{n}")) };
    let mut numbers = Vec::new();
    for n in (0..3).rev() {
        let read = read_file(&file(n));
        let bytes = file(n).metadata().expect("a file").len();
        assert!(bytes <= BYTES, "{bytes} bytes in {n}");
        assert!(n == 0 || bytes > BYTES - 10_100, "file {n} was full, with {bytes} bytes");
        assert_eq!((read.interfaces.len(), read.counts.len()), (1, 1), "each file is whole");
        numbers.extend(read.packets.iter().map(number));
    }
    assert!(!file(3).exists());
    let first = numbers[0];
    assert!(first > 0 && numbers.len() < 100, "the oldest went");
    assert_eq!(numbers, (first..100).collect::<Vec<_>>());
}

/// An interface that has gone is counted, and files that begin later don't have it.
#[test]
fn interfaces_come_and_go() {
    let rotation = CaptureRotation { bytes: 1 << 16, files: 2 };
    let (dir, path, capture, stays) = one(|o| o.rotation = Some(rotation));
    let goes = capture.interface(LINKTYPE_ETHERNET, "goes", "").expect(ANY);
    let mut queue = goes.queue();
    record(&mut queue, &packet(0, 60));
    drop((queue, goes));
    let mut queue = stays.queue();
    // The writer looks who is gone when it has something to write.
    wait_until("it is counted", || {
        record(&mut queue, &packet(0, 60));
        queue.publish();
        so_far(&path).counts == [(1, 1, 0)]
    });
    for n in 1..3 {
        record(&mut queue, &packet(n, 40_000));
        queue.publish();
    }
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let names = |path: &Path| {
        let file = read_file(path);
        file.interfaces.into_iter().map(|i| i.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&dir.path().join("capture.1")), ["vm", "goes"]);
    assert_eq!(names(&path), ["vm"]);
    assert_eq!(read_file(&path).packets[0].interface, 0);
}

/// Its reader goes. Workers go on, and their packets are counted.
#[test]
fn a_capture_that_cant_be_written_ends_and_counts() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("pipe");
    mkfifo(&path);
    // One that writes as well is not waited for.
    let reader = std::fs::File::options().read(true).write(true).open(&path).expect("a reader");
    let capture = start(&options(&path));
    let interface = capture.interface(LINKTYPE_ETHERNET, "vm", "").expect(ANY);
    let mut queue = interface.queue();
    // A worker is in the middle of a batch when the capture ends.
    record(&mut queue, &packet(0, 64));
    drop(reader);
    // Nobody reads its block.
    let _other = capture.interface(LINKTYPE_ETHERNET, "other", "").expect(ANY);
    wait_until("it has ended", || capture.has_ended());
    queue.publish();
    for n in 1..3 {
        record(&mut queue, &packet(n, 64));
        queue.publish();
    }
    wait_until("all are counted", || interface.stats().lost >= 3);
    assert_eq!(interface.stats(), CaptureStats { captured: 0, lost: 3 });
    assert!(capture.finish(PATIENCE));
}

/// Nobody reads on: the rings are full by then. What the pipe has no room for is lost, too.
#[test]
fn packets_that_wait_when_the_capture_ends_are_lost_to_it() {
    const PACKETS: u32 = 2000;
    /// Bytes that a pipe holds.
    const PIPE_BYTES: u64 = 64 << 10;
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("pipe");
    mkfifo(&path);
    let none = Capture::start(&options(&path), "").expect_err("no reader").to_string();
    assert!(none.contains("nobody reads the pipe"), "{none}");
    // One that writes as well is not waited for.
    let reader = std::fs::File::options().read(true).write(true).open(&path).expect("a reader");
    let capture = start(&options(&path));
    let interface = capture.interface(LINKTYPE_ETHERNET, "vm", "").expect(ANY);
    let mut queue = interface.queue();
    for n in 0..PACKETS {
        record(&mut queue, &packet(n, 1000));
        queue.publish();
    }
    drop((queue, reader));
    assert!(capture.finish(PATIENCE));
    let CaptureStats { captured, lost } = interface.stats();
    assert!(captured > 0 && captured + lost == u64::from(PACKETS), "{captured} and {lost}");
    assert!(captured < PIPE_BYTES / 1000, "{captured} of 1000 bytes each");
}

#[test]
fn what_cant_be_opened_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let error = |options: &CaptureOptions| Capture::start(options, "").expect_err("an error").to_string();
    let nowhere = dir.path().join("no/such");
    // There is no room for how the file begins.
    assert!(error(&options("/dev/full".as_ref())).contains("/dev/full: No space left"));
    let said = error(&options(&nowhere));
    assert!(said.contains(&*nowhere.to_string_lossy()) && said.contains("No such file"), "{said}");
    let rotation = Some(CaptureRotation { bytes: 1 << 20, files: 2 });
    let said = error(&options("/dev/null".as_ref()).rotation(rotation));
    assert!(said.contains("/dev/null") && said.contains("regular file"), "{said}");
    let said = error(&CaptureOptions::new(CaptureTarget::Stdout).rotation(rotation));
    assert!(said.contains("standard output"), "{said}");
}

/// Frames are nobody's business but the owner's.
#[test]
fn others_cant_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, path, capture, _interface) = one(|_| {});
    assert_eq!(path.metadata().expect("the file").permissions().mode() & 0o777, 0o600);
    assert!(capture.finish(PATIENCE));
}

/// Four workers at full speed: what is not counted as lost is there, whole and in order.
#[test]
fn what_is_not_lost_is_whole_and_in_order() {
    const PACKETS: u32 = 20_000;
    let (_dir, path, capture, interface) = one(|_| {});
    std::thread::scope(|scope| {
        for worker in 0..4u32 {
            let mut queue = interface.queue();
            scope.spawn(move || {
                for n in 0..PACKETS {
                    let len = 60 + (n as usize * 37) % 1400;
                    record(&mut queue, &packet(worker << 24 | n, len));
                    if n.is_multiple_of(16) {
                        queue.publish();
                    }
                }
            });
        }
    });
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    let stats = interface.stats();
    assert_eq!(stats.captured + stats.lost, 4 * u64::from(PACKETS));
    assert_eq!(file.packets.len() as u64, stats.captured);
    for worker in 0..4 {
        let of = |p: &&CapturedPacket| number(p) >> 24 == worker;
        let packets: Vec<_> = file.packets.iter().filter(of).collect();
        assert!(packets.is_sorted_by(|a, b| number(a) < number(b)), "worker {worker}");
        for p in packets {
            let n = number(p) & 0xff_ffff;
            assert_eq!(p.bytes, packet(worker << 24 | n, 60 + (n as usize * 37) % 1400));
        }
    }
}

/// A second capture leaves the file of the first one alone.
#[test]
fn a_file_that_is_being_written_is_refused() {
    let (_dir, path, capture, interface) = one(|_| {});
    let mut queue = interface.queue();
    record(&mut queue, &packet(7, 64));
    let said = Capture::start(&options(&path), "").expect_err("an error").to_string();
    assert!(said.contains("another capture") && said.contains(&*path.to_string_lossy()), "{said}");
    drop(queue);
    assert!(capture.finish(PATIENCE));
    assert_eq!(number(&read_file(&path).packets[0]), 7);
    // When the first one is over the file can be had.
    let again = start(&options(&path));
    assert!(again.finish(PATIENCE));
    assert!(read_file(&path).packets.is_empty());
}

#[test]
fn of_named_interfaces_alone_there_are_packets() {
    let (_dir, path, capture, interface) = one(|o| o.only = vec!["vm".to_owned(), "later".to_owned()]);
    assert!(capture.interface(LINKTYPE_ETHERNET, "other", "").is_none());
    let later = capture.interface(LINKTYPE_ETHERNET, "later", "").expect("a name of the list");
    record(&mut later.queue(), &packet(1, 60));
    assert!(capture.finish(PATIENCE));
    drop(interface);
    let file = read_file(&path);
    let names: Vec<_> = file.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!((names, file.packets.len()), (vec!["vm", "later"], 1));
}

/// A frame that the guest sends from this UDP port, 1000 bytes long.
fn datagram(port: u16) -> Vec<u8> {
    let mut frame = [[2; 12].as_slice(), &[8, 0, 0x45, 0, 3, 0xda, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
    frame.extend([[10, 0, 0, 1], [10, 0, 0, 2]].concat());
    frame.extend([port, 80].iter().flat_map(|port| port.to_be_bytes()));
    frame.resize(1000, 7);
    frame
}

#[test]
fn what_passes_the_filter_is_kept_in_its_first_bytes() {
    let filter = CaptureFilter::parse("udp port 53", LINKTYPE_ETHERNET).expect("a filter");
    let (_dir, path, capture, interface) = one(|o| (o.snaplen, o.filter) = (20, Some(filter)));
    let mut queue = interface.queue();
    [52, 53, 54, 53].into_iter().for_each(|port| record(&mut queue, &datagram(port)));
    drop(queue);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    assert_eq!(file.interfaces[0].snaplen, 20, "the filter looked at more, and the file does not have it");
    let kept: Vec<_> = file.packets.iter().map(|p| (p.len, p.bytes.as_slice())).collect();
    assert_eq!(kept, [(1000, &datagram(53)[..20]); 2]);
    assert_eq!(interface.stats(), CaptureStats { captured: 2, lost: 0 });
}

/// What a capture of another process writes.
fn stream(record_all: impl FnOnce(&mut CaptureQueue)) -> Vec<u8> {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let reads = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("read");
        bytes
    });
    let capture = Capture::stream(writer.into(), MAX_SNAPLEN).expect("a capture");
    let mut queue = capture.interface(LINKTYPE_ETHERNET, "of the child", "").expect(ANY).queue();
    record_all(&mut queue);
    drop(queue);
    assert!(capture.finish(PATIENCE));
    reads.join().expect("the bytes")
}

#[test]
fn a_stream_of_another_process_is_recorded() {
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos() as u64;
    let lengths = [0, 4, 60, 1514, 65_557];
    let bytes = stream(|queue| {
        for (n, len) in lengths.into_iter().enumerate() {
            record(queue, &packet(n as u32, len));
            queue.publish();
        }
        queue.record(PacketDirection::Inbound, 4, |_, to| to.copy_from_slice(b"back"));
    });
    let (_dir, path, capture, interface) = one(|options| options.snaplen = 1000);
    // The process may end anywhere.
    interface.record_stream(&bytes[..bytes.len() - 1]).expect("a stream");
    drop(interface);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    assert_eq!((file.program.as_str(), file.interfaces.len()), ("a test", 1));
    assert_eq!(file.interfaces[0].name, "vm");
    for (n, len) in lengths.into_iter().enumerate() {
        let got = &file.packets[n];
        assert_eq!((got.len as usize, got.direction), (len, 2));
        assert_eq!(got.bytes, packet(n as u32, len)[..len.min(1000)]);
        assert!(got.time >= before);
    }
    assert_eq!((file.packets[5].bytes.as_slice(), file.packets[5].direction), (&b"back"[..], 1));
    assert_eq!(file.counts, [(0, 6, 0)]);
}

#[test]
fn what_another_process_has_lost_is_lost() {
    // The reader begins when the ring has lost packets.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let theirs = Capture::stream(writer.into(), MAX_SNAPLEN).expect("a capture");
    let part = theirs.interface(LINKTYPE_ETHERNET, "of the child", "").expect(ANY);
    let mut queue = part.queue();
    let mut count = 0;
    while part.stats().lost < 10 {
        record(&mut queue, &packet(count, 60_000));
        queue.publish();
        count += 1;
    }
    let (_dir, path, capture, interface) = one(|options| options.snaplen = 64);
    let for_thread = interface.clone();
    let reads = std::thread::spawn(move || for_thread.record_stream(reader));
    wait_until("the losses are told while the stream goes on", || interface.stats().lost == 10);
    drop((queue, part));
    assert!(theirs.finish(PATIENCE));
    drop(theirs);
    reads.join().expect("no panic").expect("a stream");
    drop(interface);
    assert!(capture.finish(PATIENCE));
    let counts = read_file(&path).counts;
    assert_eq!(counts, [(0, u64::from(count), 10)]);
}

#[test]
fn what_is_no_stream_of_packets_is_refused() {
    let good = stream(|queue| record(queue, &packet(1, 60)));
    let at = good.windows(4).position(|bytes| bytes == 6_u32.to_le_bytes()).expect("the packet's block");
    let word = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let (_dir, path, capture, interface) = one(|_| {});
    for (bytes, what) in [
        (vec![0xff; 64], "the length of a block"),
        (word(4, 0), "the length of a block"),
        (word(at + 4, MAX_SNAPLEN * 2), "the length of a block"),
        (word(at, 3), "a block of another kind"),
        // More bytes than the block has.
        (word(at + 20, 1000), "a packet"),
        (word(at + 20, u32::MAX), "a packet"),
    ] {
        let said = interface.record_stream(&bytes[..]).expect_err(what);
        assert!(said.to_string().starts_with(what), "{said}");
    }
    // A packet of the future is one of now, and one that claims another interface is this one's.
    let mut bytes = word(at + 8, 77);
    bytes[at + 12..at + 20].fill(0xff);
    interface.record_stream(&bytes[..]).expect("a stream");
    drop(interface);
    assert!(capture.finish(PATIENCE));
    let packets = read_file(&path).packets;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos() as u64;
    assert!(packets.len() == 1 && packets[0].time <= now && packets[0].interface == 0);
}
