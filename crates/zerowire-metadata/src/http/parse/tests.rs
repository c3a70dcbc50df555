use super::*;

fn complete(text: &str) -> (Head, usize) {
    match parse(text.as_bytes()) {
        Parsed::Complete(head, len) => (*head, len),
        other => panic!("{text:?} gave {other:?}"),
    }
}

fn bad(text: &str) -> BadRequest {
    match parse(text.as_bytes()) {
        Parsed::Bad(error) => error,
        other => panic!("{text:?} gave {other:?}"),
    }
}

#[test]
fn a_request_is_complete_at_its_empty_line() {
    let text = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    for end in 0..text.len() {
        assert!(matches!(parse(&text.as_bytes()[..end]), Parsed::Partial));
    }
    let (head, len) = complete(&format!("{text}GET /next"));
    assert_eq!(len, text.len());
    assert_eq!(head.method, Method::Get);
    assert_eq!(head.target, "/a");
    assert!(head.keep_alive);
}

#[test]
fn headers_are_read_without_case() {
    let (head, _) = complete(
        "PUT / HTTP/1.1\r\nhost:x\r\nX-METADATA-TOKEN:  abc \r\n\
             x-aws-ec2-metadata-token-ttl-seconds: 60\r\nx-forwarded-for: y\r\n\
             content-length: 12\r\nconnection: foo, CLOSE\r\n\r\n",
    );
    assert_eq!(head.token.as_deref(), Some(&b"abc"[..]));
    assert_eq!(head.ttl, Some(("X-aws-ec2-metadata-token-ttl-seconds", b"60".to_vec())));
    assert!(head.forwarded && !head.keep_alive);
    assert_eq!(head.body.content_length, 12);
}

#[test]
fn old_clients_close_unless_they_say_otherwise() {
    assert!(!complete("GET / HTTP/1.0\r\n\r\n").0.keep_alive);
    assert!(complete("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").0.keep_alive);
}

#[test]
fn limits() {
    let long = "x".repeat(MAX_TARGET_BYTES);
    let target = format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(bad(&target), BadRequest::TargetTooLong);
    let endless = format!("GET /{}", "x".repeat(MAX_HEAD_BYTES));
    assert_eq!(bad(&endless), BadRequest::TargetTooLong);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
    assert_eq!(bad(&many), BadRequest::HeadTooLarge);
    let large = format!("GET / HTTP/1.1\r\na: {}", "x".repeat(MAX_HEAD_BYTES));
    assert_eq!(bad(&large), BadRequest::HeadTooLarge);
}

#[test]
fn ambiguous_or_broken_requests_are_refused() {
    for text in [
        "\0\x01\x02\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ] {
        assert!(matches!(bad(text), BadRequest::Syntax(_)), "{text:?}");
    }
}
