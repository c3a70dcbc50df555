//! Ports as text and back.

use super::*;
use crate::port::xdp::{XdpMatch, XdpMode};

fn port(text: &str) -> Result<PortSpec, PortSpecError> {
    text.parse()
}

#[test]
fn ports_are_parsed_and_shown_as_they_are_given() {
    assert_eq!(port("tap:t0"), Ok(PortSpec::Tap(TapSpec { name: "t0".into(), queues: 1 })));
    assert_eq!(port("tap:t0,queues=4").map(|p| p.queues()), Ok(4));
    assert_eq!(port("xdp:e0"), Ok(PortSpec::Xdp(XdpSpec::new("e0"))));
    for (word, offloads) in [("on", true), ("off", false)] {
        let spec = XdpSpec { offloads: Some(offloads), ..XdpSpec::new("e0") };
        assert_eq!([true, false].map(|zero_copy| spec.does_offloads(zero_copy)), [offloads; 2]);
        assert_eq!(port(&format!("xdp:e0,offloads={word}")), Ok(PortSpec::Xdp(spec)));
    }
    assert_eq!(port("xdp:e0,promisc=on,pin=all"), port("xdp:e0"));
    let by_default = |spec: XdpSpec| [false, true].map(|zero_copy| spec.does_offloads(zero_copy));
    assert_eq!(by_default(XdpSpec::new("e0")), [true, false]);
    assert_eq!(by_default(XdpSpec { mode: XdpMode::Copy, ..XdpSpec::new("e0") }), [true; 2]);
    assert_eq!(by_default(XdpSpec { mode: XdpMode::ZeroCopy, ..XdpSpec::new("e0") }), [false; 2]);
    assert_eq!(by_default(XdpSpec { filter: XdpMatch::Mac([2; 6]), ..XdpSpec::new("e0") }), [true; 2]);
    for text in ["packet:e0", "packet:e0,rings=auto,receive=auto,link=ignore"] {
        assert_eq!(port(text), Ok(PortSpec::Packet(PacketSpec::new("e0"))));
    }
    for text in [
        "tap:t0,queues=3",
        "packet:e0",
        "packet:e0,rings=on",
        "packet:e0,rings=off",
        "packet:e0,receive=ring",
        "packet:e0,receive=socket",
        "packet:e0,link=follow",
        "packet:e0,rings=on,receive=socket,link=follow",
        "xdp:e0,queue=0,queues=1,link=follow",
        "xdp:e0,queue=0,queues=1",
        "xdp:e0,queue=2,queues=4,mode=zerocopy",
        "xdp:e0,queue=0,queues=1,mode=copy",
        "xdp:e0,queue=1,queues=1,mode=copy,match=mac:02:00:00:00:00:0a,offloads=on",
        "xdp:e0,queue=0,queues=1,promisc=off",
        "xdp:e0,queue=0,queues=1,pin=partial",
        "xdp:e0,queue=0,queues=1,offloads=off,promisc=off,pin=off,link=follow",
    ] {
        assert_eq!(port(text).map(|p| p.to_string()).as_deref(), Ok(text));
        let mut options = text.split([',', '=']).skip(1).step_by(2);
        assert!(options.all(|key| PortSpec::OPTIONS.contains(&key)), "{text}");
    }
}

#[test]
fn a_link_is_followed_where_that_is_asked_for() {
    for (text, followed) in [
        ("tap:t0", None),
        ("packet:e0", None),
        ("xdp:e0", None),
        ("packet:e0,link=ignore", None),
        ("xdp:e0,link=ignore", None),
        ("packet:e0,link=follow", Some("e0")),
        ("xdp:e0,link=follow", Some("e0")),
    ] {
        assert_eq!(port(text).unwrap().followed(), followed, "{text}");
    }
}

#[test]
fn errors_name_the_value() {
    for (bad, word) in [
        ("veth:a", "the kind 'veth' is not known: give tap:a, packet:a or xdp:a"),
        ("eth0", "the kind is missing: give tap:eth0, packet:eth0 or xdp:eth0"),
        ("", "give tap:NAME, packet:IF or xdp:IF"),
        ("veth:", "give tap:NAME, packet:IF or xdp:IF"),
        ("tap:", "an interface's name has 1 to 15 bytes"),
        ("tap:.", "'..', 'all' and 'default' are no names"),
        ("tap:..", "has 1 to 15 bytes"),
        ("tap:all", "has 1 to 15 bytes"),
        ("tap:default", "has 1 to 15 bytes"),
        ("tap:v%d", "none of them '/', ':', '%', a space or NUL"),
        ("tap:a/b", "has 1 to 15 bytes"),
        ("tap:a b", "has 1 to 15 bytes"),
        ("tap:a:b", "has 1 to 15 bytes"),
        ("packet:sixteen-bytes-xx", "has 1 to 15 bytes"),
        ("xdp:a b,queue=1", "has 1 to 15 bytes"),
        ("tap:t0,queues=0", "queues=0"),
        ("tap:t0,mtu=9", "mtu=9"),
        ("xdp:e0,queues=129", "queues=129"),
        ("xdp:e0,queue=x", "queue=x"),
        ("xdp:e0,queue=4294967295,queues=2", "queue=4294967295 and queues=2"),
        ("xdp:e0,match=mac:02:00:00:00:00:+1", "match=mac:02:00:00:00:00:+1"),
        ("xdp:e0,mode=fast", "mode=fast"),
        ("xdp:e0,offloads=some", "offloads=some"),
        ("xdp:e0,promisc=maybe", "promisc=maybe"),
        ("packet:e0,promisc=off", "promisc=off"),
        ("xdp:e0,pin=on", "pin=on: give all, partial or off"),
        ("tap:t0,pin=off", "'pin=off' is not known"),
        ("packet:e0,pin=off", "'pin=off' is not known"),
        ("xdp:e0,match=mac:02:00", "mac:02:00"),
        ("xdp:e0,match=mac:02:00:00:00:00:00:00", "match=mac"),
        ("xdp:e0,zero", "'zero'"),
        ("packet:e0,queues=2", "queues=2"),
        ("packet:e0,rings=2", "rings=2"),
        ("packet:e0,receive=on", "receive=on: give ring, socket or auto"),
        ("packet:e0,receive=", "receive=: give"),
        ("packet:e0,recieve=ring", "only rings=on|off|auto, receive=ring|socket|auto and"),
        ("xdp:e0,receive=ring", "receive=ring"),
        ("tap:t0,receive=ring", "receive=ring"),
        ("packet:e0,link=up", "link=up"),
        ("xdp:e0,link=up", "link=up"),
        ("tap:t0,link=follow", "link=follow"),
        ("packet:e0,mode=copy", "mode=copy"),
        ("xdp:", "name is missing: give xdp:IF"),
        ("packet:", "give packet:IF"),
        ("xdp:e0,queue=1,queue=2", "queue=1 and queue=2: give 'queue' once"),
        ("packet:e0,rings=on,rings=on", "give 'rings' once"),
        ("tap:t0,queues=1,queues=2", "give 'queues' once"),
        ("xdp:e0,mode=zerocopy,match=mac:02:00:00:00:00:01", "give match=all, or mode=copy"),
        ("xdp:e0,match=mac:02:00:00:00:00:01,mode=zerocopy", "give match=all, or mode=copy"),
    ] {
        let text = port(bad).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(text.contains(word) && text.contains(bad), "{bad}: {text}");
    }
}
