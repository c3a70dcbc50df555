use super::*;

const FILE: PatternFile = PatternFile { seed: 9, bytes: 2_500 };

fn pair() -> (UdpSocket, UdpSocket) {
    let one = UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    one.connect(other.local_addr().unwrap()).unwrap();
    (one, other)
}

#[test]
fn a_file_in_datagrams_is_received() {
    let (one, other) = pair();
    for part in Pattern::new(9).bytes(0, 2_500).chunks(1_000) {
        one.send(part).unwrap();
    }
    receive_datagrams(&other, FILE, 1_000).unwrap();
}

#[test]
fn a_lost_datagram_is_named() {
    let (one, other) = pair();
    let bytes = Pattern::new(9).bytes(0, 2_500);
    one.send(&bytes[..1_000]).unwrap();
    one.send(&bytes[2_000..]).unwrap();
    let error = receive_datagrams(&other, FILE, 1_000).unwrap_err().to_string();
    assert!(error.contains("datagram 1"), "{error}");
}

#[test]
fn a_ledger_must_have_every_byte() {
    let text = r#"{"outcome":"complete","error":null,"path":"p","bytes":30,"ledger":{"frames":2,"bytes":30,
            "zero_copied_bytes":20,"copied_bytes":{"small":10},"more":1},"left":{}}"#;
    let said: Said = serde_json::from_str(text).unwrap();
    said.ledger.check(30).unwrap();
    assert_eq!((said.ledger.copied("small"), said.ledger.copied("asked")), (10, 0));
    assert!(said.ledger.check(31).is_err());
}
