use super::*;

fn text(response: &Response, keeps_alive: bool) -> String {
    String::from_utf8(response.bytes(keeps_alive)).expect("text")
}

#[test]
fn responses_have_the_length_that_they_say() {
    let error = Response::error(422, "port 'x' is \"bad\"", Some("/port"));
    let said = text(&error, false);
    let (head, body) = said.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 422 Unprocessable Content\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(head.ends_with("Connection: close"), "{head}");
    assert_eq!(body, "{\"error\":\"port 'x' is \\\"bad\\\"\",\"pointer\":\"/port\"}\n");
    let bad = text(&Response::error(400, "no", None), true);
    assert!(bad.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{bad}");
    let without = text(&Response::error(400, "no", None).without_body(), true);
    assert!(bad.len() > without.len() && bad.starts_with(&without), "{without}");
    assert_eq!(text(&Response::empty(204), true), "HTTP/1.1 204 No Content\r\n\r\n");
    let stream = text(&Response::stream(Stream::JsonLines), true);
    assert!(stream.contains("Transfer-Encoding: chunked") && !stream.contains("Content-Length"), "{stream}");
}

#[test]
fn a_chunk_begins_with_its_length() {
    assert_eq!(chunk(&[b'x'; 26]), [b"1a\r\n", &[b'x'; 26][..], b"\r\n"].concat());
}
