//! The rules of the service as a guest's programs see them.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{DOCUMENT, Guest};
use zerowire_metadata::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MetadataTree, TokenPolicy};

fn open_guest() -> Guest {
    Guest::new(DOCUMENT, TokenPolicy::Optional)
}

#[test]
fn a_token_opens_the_tree() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Required);
    let token = guest.token("60");
    assert_eq!(token.status, 200);
    assert_eq!(token.header("X-metadata-token-ttl-seconds"), Some("60"));
    assert_eq!(token.header("Content-Type"), Some("text/plain; charset=utf-8"));
    for name in ["X-metadata-token", "x-aws-ec2-metadata-token"] {
        let header = format!("{name}: {}\r\n", token.text());
        let answer = guest.get("/latest/meta-data/instance-id", &header);
        assert_eq!((answer.status, answer.text()), (200, "i-123"));
    }
    guest.run_for(Duration::from_secs(60));
    let header = format!("X-metadata-token: {}\r\n", token.text());
    assert_eq!(guest.get("/", &header).status, 401, "expired");
    assert_eq!(guest.service.stats().tokens_issued, 1);
}

#[test]
fn without_a_right_token_nothing_is_told() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Required);
    assert_eq!(guest.get("/", "").status, 401);
    assert_eq!(guest.get("/no/such/path", "").status, 401);
    let wrong = format!("X-metadata-token: {}\r\n", "0".repeat(64));
    assert_eq!(guest.get("/", &wrong).status, 401);
    assert_eq!(guest.service.stats().unauthorized, 3);

    let mut guest = open_guest();
    assert_eq!(guest.get("/", "").status, 200);
    assert_eq!(guest.get("/", &wrong).status, 401, "optional, but wrong");
}

#[test]
fn token_lifetimes_have_limits() {
    let mut guest = open_guest();
    for ttl in ["1", "21600"] {
        assert_eq!(guest.token(ttl).status, 200, "{ttl}");
    }
    for ttl in ["0", "21601", "-1", "+1", "x", "", "99999999999999999999"] {
        let answer = guest.token(ttl);
        assert_eq!(answer.status, 400, "{ttl}");
        assert!(answer.text().contains("1 to 21600"), "{}", answer.text());
    }
    let missing = guest.exchange("PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    assert_eq!(missing.status, 400);
    assert!(missing.text().contains("missing"));
    let other_name = guest.exchange(
        "PUT //latest/api/token/ HTTP/1.1\r\nHost: 169.254.169.254\r\nX-aws-ec2-metadata-token-ttl-seconds: 9\r\n\r\n",
    );
    assert_eq!(other_name.status, 200);
    assert_eq!(other_name.header("X-aws-ec2-metadata-token-ttl-seconds"), Some("9"));
}

#[test]
fn put_elsewhere_or_through_a_proxy() {
    let mut guest = open_guest();
    let put = |path: &str, header: &str| {
        format!(
            "PUT {path} HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: 9\r\n{header}\r\n"
        )
    };
    assert_eq!(guest.exchange(&put("/latest/user-data", "")).status, 404);
    let proxied = put("/latest/api/token", "X-Forwarded-For: 1.2.3.4\r\n");
    assert_eq!(guest.exchange(&proxied).status, 403);
    assert_eq!(guest.service.stats().tokens_issued, 0);
}

#[test]
fn other_methods() {
    let mut guest = open_guest();
    for method in ["POST", "DELETE", "OPTIONS", "get"] {
        let answer = guest.exchange(&format!("{method} / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"));
        assert_eq!(answer.status, 405, "{method}");
        assert_eq!(answer.header("Allow"), Some("GET, HEAD, PUT"));
    }
    let answer = guest.get("/latest/api/token", "");
    assert_eq!((answer.status, answer.header("Allow")), (405, Some("PUT")));
}

#[test]
fn head_describes_the_body_only() {
    let mut guest = open_guest();
    let handle = guest.connect();
    guest.send(handle, b"HEAD /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\nGET /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    let mut rest = Vec::new();
    let head = guest.answer_with(handle, true, &mut rest);
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("6")));
    let get = guest.answer_with(handle, false, &mut rest);
    assert_eq!(get.text(), "hello\n");
    assert_eq!(head.head, get.head);
}

#[test]
fn listings_values_and_json() {
    let mut guest = open_guest();
    for (path, text) in [
        ("/", "latest/"),
        ("/latest", "meta-data/\nuser-data"),
        ("//latest//meta-data///", "cpus\ninstance-id\nnetwork/"),
        ("/latest/meta-data/cpus?x=1", "4"),
        ("/%6catest/user%2Ddata", "hello\n"),
        ("http://169.254.169.254/latest/user-data", "hello\n"),
    ] {
        let answer = guest.get(path, "Accept: */*\r\n");
        assert_eq!((answer.status, answer.text()), (200, text), "{path}");
        assert_eq!(answer.header("Content-Type"), Some("text/plain; charset=utf-8"));
    }
    let answer = guest.get("/latest/meta-data", "Accept: application/json\r\n");
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    assert_eq!(answer.text(), r#"{"cpus":4,"instance-id":"i-123","network":{"mac":"x"}}"#);
    let answer = guest.get("/latest/user-data", "Accept: application/json\r\n");
    assert_eq!(answer.text(), r#""hello\n""#);
}

/// A page whose name resolves to the service's address asks by that name (DNS rebinding).
#[test]
fn a_request_by_another_name_is_refused() {
    let mut guest = open_guest();
    for host in ["attacker.example", "169.254.169.254.attacker.example", "localhost:8080", ""] {
        for request in ["GET /latest/user-data", "PUT /latest/api/token"] {
            let ttl = "X-metadata-token-ttl-seconds: 60";
            let answer = guest.exchange(&format!("{request} HTTP/1.1\r\nHost: {host}\r\n{ttl}\r\n\r\n"));
            assert_eq!(answer.status, 421, "{request} {host}");
            assert!(answer.text().contains("ask http://169.254.169.254/"), "{}", answer.text());
        }
    }
    assert_eq!(guest.get("http://attacker.example/latest/user-data", "").status, 421);
    assert_eq!(guest.service.stats().tokens_issued, 0);
    for host in ["169.254.169.254", "169.254.169.254:80", "[fd00:ec2::254]", "[fd00:ec2::254]:80"] {
        let answer = guest.exchange(&format!("GET /latest/user-data HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(answer.text(), "hello\n", "{host}");
    }
    // An HTTP/1.0 client need not say it.
    assert_eq!(guest.exchange("GET /latest/user-data HTTP/1.0\r\n\r\n").text(), "hello\n");
}

#[test]
fn unknown_paths_are_named() {
    let mut guest = open_guest();
    for path in ["/nope", "/latest/../latest", "/latest/user-data/x", "/%00", "/%ff"] {
        let answer = guest.get(path, "");
        assert_eq!(answer.status, 404);
        assert_eq!(answer.text(), format!("not found: {path}"));
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut guest = open_guest();
    let handle = guest.connect();
    let mut requests = String::new();
    for _ in 0..50 {
        for path in ["/latest/user-data", "/latest/meta-data/cpus", "/nope"] {
            requests += &format!("GET {path} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
        }
    }
    guest.send(handle, requests.as_bytes());
    let mut rest = Vec::new();
    for _ in 0..50 {
        for text in ["hello\n", "4", "not found: /nope"] {
            assert_eq!(guest.answer_with(handle, false, &mut rest).text(), text);
        }
    }
    assert_eq!(guest.service.stats().connections_opened, 1);
}

#[test]
fn connections_stay_or_close_as_asked() {
    let mut guest = open_guest();
    for (request, closes) in [
        ("GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n", true),
        ("GET / HTTP/1.0\r\n\r\n", true),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false),
    ] {
        let handle = guest.connect();
        guest.send(handle, request.as_bytes());
        let answer = guest.answer(handle);
        assert_eq!(answer.header("Connection") == Some("close"), closes, "{request}");
        if closes {
            guest.wait_closed(handle);
        } else {
            guest.send(handle, request.as_bytes());
            assert_eq!(guest.answer(handle).status, 200, "{request}");
        }
    }
}

#[test]
fn a_half_closed_client_is_answered() {
    let mut guest = open_guest();
    let handle = guest.connect();
    guest.send(handle, b"GET /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    guest.socket(handle).close();
    assert_eq!(guest.answer(handle).text(), "hello\n");
    guest.run_for(Duration::from_secs(20));
    assert!(!guest.service.is_active());
}

#[test]
fn bad_requests_end_the_connection() {
    let long_header = format!("GET / HTTP/1.1\r\na: {}\r\n", "x".repeat(MAX_HEAD_BYTES));
    let no_line_end = "G".repeat(MAX_HEAD_BYTES + 1000);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", "x".repeat(3000));
    let mut guest = open_guest();
    for (request, status) in [
        ("\x16\x03\x01\r\n\r\n", 400),
        ("hello\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET /% HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 400),
        (&long_header, 431),
        (&many, 431),
        (&long_path, 414),
        (&no_line_end, 414),
    ] {
        let handle = guest.connect();
        guest.send(handle, request.as_bytes());
        let answer = guest.answer(handle);
        assert_eq!(answer.status, status, "{request:.40}");
        assert_eq!(answer.header("Connection"), Some("close"));
        guest.wait_closed(handle);
    }
}

#[test]
fn bodies_are_skipped_or_refused() {
    let mut guest = open_guest();
    let put = |length: u64| {
        format!(
            "PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: 9\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    // A body that looks like a request isn't taken for one.
    let body = "GET /nope HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";
    let filler = "x".repeat(usize::try_from(MAX_BODY_BYTES).expect("small") - body.len());
    let handle = guest.connect();
    let request = put(MAX_BODY_BYTES)
        + body
        + &filler
        + "GET /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";
    guest.send(handle, request.as_bytes());
    let mut rest = Vec::new();
    assert_eq!(guest.answer_with(handle, false, &mut rest).body.len(), 64);
    assert_eq!(guest.answer_with(handle, false, &mut rest).text(), "hello\n");

    for (request, status) in [
        (put(MAX_BODY_BYTES + 1), 413),
        ("GET / HTTP/1.1\r\nHost: 169.254.169.254\r\nContent-Length: 1\r\n\r\n".into(), 413),
        (
            "PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nTransfer-Encoding: chunked\r\n\r\n"
                .into(),
            411,
        ),
        ("POST / HTTP/1.1\r\nHost: 169.254.169.254\r\nContent-Length: 9999\r\n\r\n".into(), 405),
    ] {
        let handle = guest.connect();
        guest.send(handle, request.as_bytes());
        assert_eq!(guest.answer(handle).status, status, "{request}");
        guest.wait_closed(handle);
    }
}

#[test]
fn a_reload_changes_new_answers_only() {
    let old = "o".repeat(300_000);
    let mut guest = Guest::new(&format!(r#"{{"v": "{old}"}}"#), TokenPolicy::Optional);
    let token = guest.token("60");
    let handle = guest.connect();
    guest.send(handle, b"GET /v HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    guest.run_until("the begin of the answer", |guest| guest.socket(handle).can_recv());
    let tree = MetadataTree::from_json_str(r#"{"v": "new"}"#).expect("valid");
    guest.service.set_tree(Arc::new(tree));
    assert_eq!(guest.answer(handle).text(), old);
    let header = format!("X-metadata-token: {}\r\n", token.text());
    assert_eq!(guest.get("/v", &header).text(), "new");
}
