use super::*;

#[test]
fn requests_and_replies_come_back() {
    let options = MapOptions {
        windows: 8,
        lowat: 777,
        credit: 65536,
        packed: false,
        direct: true,
        ..Default::default()
    };
    let r = MapRequest { op: MapOp::Listen, port: 5000, kind: 2, options };
    assert_eq!(MapRequest::from_bytes(&r.to_bytes()), Ok(r));
    let a = MapReply { status: 0, host_port: 1, guest_port: 2, options, regions: 3, text: "é".repeat(200) };
    let back = MapReply::from_bytes(&a.to_bytes()).expect("sound");
    assert_eq!(back.text, "é".repeat(96));
    assert_eq!(MapReply { text: a.text.clone(), ..back }, a);
}

#[test]
fn wrong_requests_are_named() {
    let sound = MapRequest { op: MapOp::Connect, port: 1, kind: 1, options: MapOptions::default() };
    let broken = |at: usize, n: u8| {
        let mut b = sound.to_bytes();
        b[at] = n;
        MapRequest::from_bytes(&b).expect_err("wrong")
    };
    assert!(broken(0, 0).contains("0x524d5700"));
    assert!(broken(4, 2).contains("version 2"));
    assert!(broken(6, 9).contains("operation 9"));
    assert!(broken(12, 3).contains("type 3"));
    assert!(broken(14, 8).contains("flags 0x8"));
    assert!(broken(16, 1).contains("windows: 1 is not in 2 to 64"));
    assert!(broken(20, 17).contains("header pages: 17"));
    assert!(broken(28, 0).contains("low-water mark: 0"));
    assert!(MapRequest::from_bytes(&[0; 3]).expect_err("short").contains("3 bytes"));
}

#[test]
fn windows_lie_behind_each_other() {
    let o = MapOptions { windows: 3, header_pages: 2, data_pages: 5, ..Default::default() };
    assert_eq!(o.headers_len(), 7 * PAGE);
    assert_eq!(o.header_at(2) + 2 * PAGE, o.headers_len());
    assert_eq!(o.data_at(2) + 5 * PAGE, o.data_len());
    assert_eq!(o.max_entries(), 1022);
    assert_eq!(MapOptions::default().max_entries(), 510);
}
