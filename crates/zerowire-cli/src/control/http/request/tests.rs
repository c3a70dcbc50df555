use super::*;

fn complete(text: &str) -> ControlRequest {
    match parse(text.as_bytes()) {
        Parsed::Complete(request, len) => {
            assert_eq!(len, text.len());
            *request
        }
        other => panic!("{text:?} gave {other:?}"),
    }
}

fn status(text: &str) -> u16 {
    match parse(text.as_bytes()) {
        Parsed::Bad(e) => e.status,
        other => panic!("{text:?} gave {other:?}"),
    }
}

#[test]
fn a_head_is_complete_at_its_empty_line() {
    let text = "PUT /vms/a%20b%2fc?x=1 HTTP/1.1\r\ncontent-length: 12\r\nExpect: 100-Continue\r\n\r\n";
    for end in 0..text.len() {
        assert_eq!(parse(&text.as_bytes()[..end]), Parsed::Partial);
    }
    let request = complete(text);
    assert_eq!(request.method, Method::Put);
    assert_eq!(request.path, ["vms", "a b/c"]);
    assert_eq!((request.query.as_str(), request.body_bytes), ("x=1", 12));
    assert!(request.keeps_alive && request.expects_continue);
}

#[test]
fn what_a_client_would_like_to_read_is_named() {
    let accept = |value: &str| complete(&format!("GET /x HTTP/1.1\r\nAccept: {value}\r\n\r\n")).accept;
    assert_eq!(accept("*/*"), Accept::default());
    assert_eq!(accept("text/plain"), Accept { text: true, open_metrics: false });
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5";
    assert_eq!(accept(prometheus), Accept { text: true, open_metrics: true });
}

#[test]
fn connections_stay_or_end_as_the_client_says() {
    assert!(!complete("GET / HTTP/1.0\r\n\r\n").keeps_alive);
    assert!(complete("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keeps_alive);
    assert!(!complete("GET / HTTP/1.1\r\nConnection: foo, CLOSE\r\n\r\n").keeps_alive);
}

#[test]
fn what_is_no_request_has_a_status() {
    let long = "x".repeat(MAX_HEAD_BYTES);
    let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
    for (text, want) in [
        ("\0\x01\x02\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ("GET /%4 HTTP/1.1\r\n\r\n", 400),
        ("GET /%zz HTTP/1.1\r\n\r\n", 400),
        ("GET /%ff HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: \r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        ("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        ("PUT / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", 413),
        ("PUT / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (&format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        (&format!("GET /{long}"), 431),
        (&format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
    ] {
        assert_eq!(status(text), want, "{text:?}");
    }
    assert_eq!(complete("PUT / HTTP/1.1\r\nContent-Length: 65536\r\n\r\n").body_bytes, MAX_BODY_BYTES);
}
