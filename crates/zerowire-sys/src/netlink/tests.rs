//! Answers as bytes: good, cut off, and hostile.

use proptest::prelude::*;

use super::attributes::{Attributes, Builder};
use super::error::Malformed;
use super::ethtool::{Channels, DataSplit, Features, Rings, Rss};
use super::generic::family_id;
use super::link::{LinkInfo, XdpAttached};
use super::message::{MessageBody, NetlinkMessages, question};
use super::netdev::{Device, Queue, QueueUser};

fn some() -> Builder {
    Builder::default()
}

/// An attribute as bytes, its length as the test wants it.
fn raw(len: u16, kind: u16, value: &[u8]) -> Vec<u8> {
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
}

#[test]
fn attributes_go_there_and_back() {
    let inner = some().word(1, 7);
    let bytes = some().text(2, "eth0").nested(3, &inner).bytes(4, &[1]).finish();
    let all: Vec<_> = Attributes::new(&bytes).map(|a| a.expect("whole")).collect();
    assert_eq!(all.iter().map(|a| a.kind).collect::<Vec<_>>(), [2, 3, 4], "the flags are taken off");
    assert_eq!(all[0].text(), "eth0");
    assert_eq!(all[1].nested().next().expect("one").expect("whole").word(), Ok(7));
    assert_eq!(all[2].number(), Ok(1));
    assert_eq!(bytes.len() % 4, 0);
}

#[test]
fn numbers_have_the_width_that_they_say() {
    for (value, number) in
        [(&[5u8][..], 5), (&5u16.to_ne_bytes()[..], 5), (&(1u64 << 40).to_ne_bytes()[..], 1 << 40)]
    {
        let bytes = some().bytes(1, value).finish();
        let a = Attributes::new(&bytes).next().expect("one").expect("whole");
        assert_eq!(a.number(), Ok(number));
    }
    for value in [&[][..], &[1, 2, 3], &[0; 9]] {
        let bytes = some().bytes(1, value).finish();
        assert!(Attributes::new(&bytes).next().expect("one").expect("whole").number().is_err());
    }
    let wide = some().bytes(1, &(1u64 << 40).to_ne_bytes()).finish();
    assert!(Attributes::new(&wide).next().expect("one").expect("whole").word().is_err());
}

/// Lengths that lie: shorter than the header, longer than what is there. Each ends the list, with
/// an error.
#[test]
fn a_hostile_length_ends_the_list() {
    for len in [0, 1, 3, 9, 200, u16::MAX] {
        let bytes = raw(len, 1, &[0; 4]);
        let mut list = Attributes::new(&bytes);
        assert!(matches!(list.next(), Some(Err(Malformed(_)))), "{len}");
        assert!(list.next().is_none(), "{len}");
        assert!(Rings::parse(&bytes).is_err() && LinkInfo::parse(&[vec![0; 16], bytes].concat()).is_err());
    }
    assert_eq!(Attributes::new(&[1, 2, 3]).count(), 0, "less than a header is padding");
    // A header alone, and a value whose padding is missing.
    assert_eq!(Attributes::new(&raw(4, 1, &[])).count(), 1);
    assert_eq!(Attributes::new(&raw(5, 1, &[9])).count(), 1);
}

#[test]
fn messages_are_told_apart() {
    let data = question(0x20, 0, 5, &[1, 2, 3, 4, 5]);
    let mut datagram = data.clone();
    datagram.resize(datagram.len().next_multiple_of(4), 0);
    datagram.extend(question(2, 0, 5, &(-libc::ENODEV).to_ne_bytes()));
    datagram.extend(question(3, 0, 6, &[]));
    datagram.extend(question(1, 0, 7, &[]));
    let all: Vec<_> = NetlinkMessages::new(&datagram).map(|m| m.expect("whole")).collect();
    assert_eq!(all[0].body, MessageBody::Data(&[1, 2, 3, 4, 5]));
    assert_eq!((all[1].body, all[1].sequence), (MessageBody::End(libc::ENODEV), 5));
    assert_eq!((all[2].body, all[2].sequence), (MessageBody::End(0), 6));
    assert_eq!(all[3].body, MessageBody::Nothing);
    for len in [0u32, 15, 17, u32::MAX] {
        let mut bad = question(0x20, 0, 5, &[]);
        bad[..4].copy_from_slice(&len.to_ne_bytes());
        let mut list = NetlinkMessages::new(&bad);
        assert!(list.next().is_some_and(|m| m.is_err()) && list.next().is_none(), "{len}");
    }
    assert!(
        NetlinkMessages::new(&question(2, 0, 1, &[1])).next().is_some_and(|m| m.is_err()),
        "an error cut off"
    );
}

#[test]
fn a_family_is_found_in_its_answer() {
    let answer =
        [vec![1, 2, 0, 0], some().text(2, "netdev").bytes(1, &29u16.to_ne_bytes()).finish()].concat();
    assert_eq!(family_id(&answer), Ok(29));
    assert!(family_id(&answer[..4]).is_err());
    assert!(family_id(&[1, 2]).is_err());
}

#[test]
fn rings_as_a_splitting_driver_tells_them() {
    let bytes = some()
        .nested(1, &some().word(1, 4).text(2, "eth1"))
        .word(2, 2047)
        .word(6, 1023)
        .word(10, 4096)
        .bytes(11, &[2])
        .word(17, 0)
        .word(18, 1023)
        .finish();
    let rings = Rings::parse(&bytes).expect("sound");
    assert_eq!((rings.rx, rings.rx_max, rings.rx_buf_len), (Some(1023), Some(2047), Some(4096)));
    assert_eq!((rings.data_split, rings.hds_thresh), (Some(DataSplit::On), Some(0)));
    let off = Rings::parse(&some().bytes(11, &[1]).finish()).expect("sound");
    assert_eq!((off.data_split, off.hds_thresh), (Some(DataSplit::Off), None));
    let unknown = Rings::parse(&some().bytes(11, &[0]).word(10, 0).finish()).expect("sound");
    assert_eq!(unknown, Rings::default());
}

#[test]
fn channels_that_receive_are_added() {
    let bytes = some().word(2, 3).word(5, 8).word(6, 1).word(9, 4).finish();
    let channels = Channels::parse(&bytes).expect("sound");
    assert_eq!((channels.receive_queues(), channels.receive_queues_max()), (5, 11));
    let bytes = some().word(6, u32::MAX).word(9, u32::MAX).finish();
    assert_eq!(Channels::parse(&bytes).expect("sound").receive_queues(), u32::MAX);
}

#[test]
fn a_share_of_the_table() {
    let table: Vec<u8> = [0u32, 1, 0, 1, 2, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let rss = Rss::parse(&some().bytes(4, &table).finish()).expect("sound");
    assert_eq!((rss.share(0), rss.share(2), rss.share(7)), ((3, 6), (1, 6), (0, 6)));
    assert!(Rss::parse(&some().bytes(4, &table[..7]).finish()).is_err());
}

#[test]
fn features_with_and_without_a_mask() {
    let bit = |name: &str, value: bool| {
        let bit = some().word(1, 3).text(2, name);
        if value { bit.bytes(3, &[]) } else { bit }
    };
    let list = some().bytes(1, &[]).nested(3, &some().nested(1, &bit("rx-hashing", false)));
    let masked = some().nested(3, &some().nested(1, &bit("a", true)).nested(1, &bit("b", false)));
    let features = Features::parse(&some().nested(2, &masked).nested(4, &list).finish()).expect("sound");
    assert_eq!((features.hardware, features.active), (vec!["a".to_owned()], vec!["rx-hashing".to_owned()]));
}

#[test]
fn a_queue_and_its_user() {
    let queue = |user: Option<u16>| {
        let bytes = some().word(1, 3).word(2, 4).word(3, 0).word(4, 8193);
        let bytes = user.map_or(bytes.clone(), |u| bytes.nested(u, &some()));
        Queue::parse(&bytes.finish()).expect("sound").expect("a receive queue")
    };
    assert_eq!((queue(None).id, queue(None).napi, queue(None).user), (3, Some(8193), None));
    assert_eq!(queue(Some(6)).user, Some(QueueUser::IoUring));
    assert_eq!(queue(Some(7)).user, Some(QueueUser::AfXdp));
    let dmabuf = some().word(1, 0).word(5, 12).finish();
    assert_eq!(Queue::parse(&dmabuf).expect("sound").expect("one").user, Some(QueueUser::Dmabuf));
    assert_eq!(Queue::parse(&some().word(1, 0).word(3, 1).finish()), Ok(None), "one that sends");
    assert!(Queue::parse(&some().word(3, 0).finish()).is_err(), "without a number");
    let device = Device::parse(&some().bytes(3, &9u64.to_ne_bytes()).word(4, 17).finish()).expect("sound");
    assert!(device.has_xsk_zerocopy() && device.xdp_zc_max_segs == Some(17));
}

#[test]
fn a_link_with_a_program() {
    let mut header = vec![0u8; 16];
    header[4..8].copy_from_slice(&4i32.to_ne_bytes());
    header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    let xdp = some().bytes(2, &[2]).word(4, 77);
    let attributes = some()
        .text(3, "eth1")
        .word(4, 1500)
        .nested(18, &some().text(1, "veth"))
        .nested(43, &xdp)
        .text(56, "0000:01:00.0")
        .text(57, "pci")
        .finish();
    let link = LinkInfo::parse(&[header.clone(), attributes].concat()).expect("sound");
    assert_eq!((link.index, link.name.as_str(), link.is_up, link.is_running), (4, "eth1", true, false));
    assert_eq!(link.xdp, Some((XdpAttached::Stack, Some(77))));
    assert_eq!((link.kind.as_deref(), link.parent.as_deref()), (Some("veth"), Some("pci 0000:01:00.0")));
    let none = some().nested(43, &some().bytes(2, &[0])).finish();
    assert_eq!(LinkInfo::parse(&[header, none].concat()).expect("sound").xdp, None);
    assert!(LinkInfo::parse(&[0; 15]).is_err());
}

#[test]
fn names_are_checked_before_the_kernel_is_asked() {
    for name in ["", ".", "a/b", "a b", "a\0b", "sixteen-bytes-ab", "a:1", "all", "v%d", "a\u{b}", "\u{e0}"] {
        let error = LinkInfo::find(name).expect_err("no name");
        assert_eq!(error.errno(), Some(libc::ENODEV), "{name:?}: {error}");
        assert!(error.to_string().contains("1 to 15 bytes"), "{error}");
    }
}

/// Bytes that look like attributes more often than random ones do: lengths that nearly fit.
fn near_attributes() -> impl Strategy<Value = Vec<u8>> {
    let one = (0u16..40, any::<u16>(), proptest::collection::vec(any::<u8>(), 0..24));
    proptest::collection::vec(one, 0..12).prop_map(|list| {
        list.into_iter().flat_map(|(len, kind, value)| raw(len, kind & 0x803f, &value)).collect()
    })
}

fn parse_all(bytes: &[u8]) {
    let _ = Rings::parse(bytes);
    let _ = Channels::parse(bytes);
    let _ = Rss::parse(bytes);
    let _ = Features::parse(bytes);
    let _ = Device::parse(bytes);
    let _ = Queue::parse(bytes);
    let _ = LinkInfo::parse(bytes);
    let _ = family_id(bytes);
    assert!(NetlinkMessages::new(bytes).count() <= bytes.len());
    assert!(Attributes::new(bytes).count() <= bytes.len());
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic_or_loop(
        random in proptest::collection::vec(any::<u8>(), 0..300),
        near in near_attributes(),
        header in any::<[u8; 16]>(),
    ) {
        parse_all(&random);
        parse_all(&near);
        parse_all(&[&header[..], &near].concat());
    }

    /// Every beginning of a good answer is refused or understood, and never read past its end.
    #[test]
    fn a_cut_answer_is_no_harm(cut in 0usize..200) {
        let table = [0u8; 64];
        let bytes = some().nested(1, &some().word(1, 4)).word(2, 9).bytes(4, &table).bytes(11, &[2]).finish();
        parse_all(&bytes[..cut.min(bytes.len())]);
    }
}
