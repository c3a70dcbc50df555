//! From bytes to a request head, within limits.

use std::cmp::Reverse;

use zerowire_wire::http;

/// The longest request head (request line and headers), bytes.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;

/// The largest request body, bytes: a VM's keys with paths of any length take a part of it.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// Headers of a request at most.
const MAX_HEADERS: usize = 64;

/// What a request asks to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Read what GET says, without its body.
    Head,
    /// Make.
    Put,
    /// Change.
    Patch,
    /// Remove.
    Delete,
    /// Do something else.
    Post,
    /// Nothing that is served here.
    Other,
}

impl Method {
    /// The word of the request line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Post => "POST",
            Self::Other => "OTHER",
        }
    }

    fn parse(word: Option<&str>) -> Self {
        let known = [Self::Get, Self::Head, Self::Put, Self::Patch, Self::Delete, Self::Post];
        known.into_iter().find(|m| word == Some(m.name())).unwrap_or(Self::Other)
    }
}

/// What a client would like to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Words for people (`text/plain`) before JSON.
    pub text: bool,
    /// `application/openmetrics-text` before `text/plain`.
    pub open_metrics: bool,
}

impl Accept {
    /// By media ranges and their weights (RFC 9110 §12.5.1). Of equal ones the first is taken, but
    /// `*/*` comes last: JSON has to be named to stand before words.
    fn of(ranges: &[&[u8]]) -> Self {
        let wish = |media_type: &str| {
            let named = |range: &&[u8]| media(range).eq_ignore_ascii_case(media_type.as_bytes());
            let at = ranges.iter().position(named)?;
            let weight = weight(ranges[at]);
            (weight > 0).then_some((weight, Reverse(at)))
        };
        let (text, any) = (wish("text/plain"), wish("*/*"));
        let first = |one: Option<_>, other: Option<_>| one.is_some() && one > other;
        let is_text =
            first(text, wish("application/json")) && any.map(|any| any.0) <= text.map(|text| text.0);
        Self { text: is_text, open_metrics: first(wish("application/openmetrics-text"), text) }
    }
}

/// A media range without its parameters.
fn media(range: &[u8]) -> &[u8] {
    range.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Its weight in thousandths: 1000 where it has no number from 0 to 1.
fn weight(range: &[u8]) -> u16 {
    let parameter = |part: &[u8]| {
        let (name, value) = std::str::from_utf8(part).ok()?.split_once('=')?;
        let value: f32 = name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().ok())??;
        (0.0..=1.0).contains(&value).then_some((value * 1000.0) as u16)
    };
    range.split(|byte| *byte == b';').skip(1).find_map(parameter).unwrap_or(1000)
}

/// A request head. Nothing in it refers to the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRequest {
    /// What to do.
    pub method: Method,
    /// The parts of the path between slashes, decoded.
    pub path: Vec<String>,
    /// What stands behind the question mark; empty without one.
    pub query: String,
    /// Length of the body, bytes: at most [`MAX_BODY_BYTES`].
    pub body_bytes: usize,
    /// The client waits for a word before it sends the body.
    pub expects_continue: bool,
    /// Further requests may come on the connection.
    pub keeps_alive: bool,
    /// What the client would like to read.
    pub accept: Accept,
}

/// Why bytes are no request that can be answered by its content. The connection ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// HTTP status.
    pub status: u16,
    /// What is wrong, and what to send.
    pub text: &'static str,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The begin of a request head.
    Partial,
    /// A request head, and its length in bytes.
    Complete(Box<ControlRequest>, usize),
    /// No request.
    Bad(BadRequest),
}

const fn bad(status: u16, text: &'static str) -> BadRequest {
    BadRequest { status, text }
}

/// Parses the request head at the begin of `input`.
pub fn parse(input: &[u8]) -> Parsed {
    const TOO_LARGE: BadRequest =
        bad(431, "the request head is longer than 8192 bytes, or has over 64 headers");
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = match request.parse(input) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_BYTES => head(&request).map(|r| (r, len)),
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD_BYTES => return Parsed::Partial,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => Err(TOO_LARGE),
        Err(_) => Err(bad(400, "not an HTTP/1.x request")),
    };
    match parsed {
        Ok((request, len)) => Parsed::Complete(Box::new(request), len),
        Err(e) => Parsed::Bad(e),
    }
}

fn head(request: &httparse::Request<'_, '_>) -> Result<ControlRequest, BadRequest> {
    let target = request.path.unwrap_or_default();
    // The absolute form is for proxies.
    let Some(target) = target.strip_prefix('/') else {
        return Err(bad(400, "the request target must be a path that begins with a slash"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut head = ControlRequest {
        method: Method::parse(request.method),
        path: path.split('/').map(decode).collect::<Result<_, _>>()?,
        query: query.to_owned(),
        body_bytes: 0,
        expects_continue: false,
        keeps_alive: request.version == Some(1),
        accept: Accept::default(),
    };
    let (mut length, mut accepted) = (None, Vec::new());
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("Content-Length") {
            let bytes = content_length(header.value)?;
            if length.is_some_and(|before| before != bytes) {
                return Err(bad(400, "two different Content-Length headers"));
            }
            length = Some(bytes);
        } else if is("Transfer-Encoding") {
            return Err(bad(
                411,
                "a body needs a Content-Length header here: Transfer-Encoding is not taken",
            ));
        } else if is("Expect") {
            head.expects_continue = header.value.eq_ignore_ascii_case(b"100-continue");
        } else if is("Connection") {
            head.keeps_alive = http::keeps_alive(header.value, head.keeps_alive);
        } else if is("Accept") {
            accepted.extend(header.value.split(|byte| *byte == b','));
        }
    }
    head.body_bytes = length.unwrap_or(0);
    head.accept = Accept::of(&accepted);
    Ok(head)
}

fn content_length(value: &[u8]) -> Result<usize, BadRequest> {
    let bytes = http::content_length(value).ok_or(bad(400, "Content-Length is no number"))?;
    let bytes = usize::try_from(bytes).ok().filter(|n| *n <= MAX_BODY_BYTES);
    bytes.ok_or(bad(413, "the body is longer than 65536 bytes"))
}

/// A part of a path without its percent signs.
fn decode(part: &str) -> Result<String, BadRequest> {
    const WRONG: BadRequest = bad(
        400,
        "a percent sign in the path needs two hexadecimal digits, which make up UTF-8 with the rest",
    );
    http::percent_decoded(part).and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(WRONG)
}

#[cfg(test)]
mod tests {
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
        let text = Accept { text: true, open_metrics: false };
        for words in
            ["text/plain", "Text/Plain; charset=utf-8", "text/plain, application/json", "*/*, text/plain"]
        {
            assert_eq!(accept(words), text, "{words}");
        }
        for json in [
            "application/json, text/plain, */*",
            "application/json, text/plain;q=0",
            "text/plain;q=0.5, application/json;q=0.6",
            "text/plain; Q=0.5, */*",
            "text/html, */*;q=0.8",
        ] {
            assert_eq!(accept(json), Accept::default(), "{json}");
        }
        assert_eq!(accept("text/plain;q=0.9, application/openmetrics-text;q=0.1"), text);
        assert_eq!(accept("text/plain;q=2, application/json;q=0.9"), text, "2 is no weight");
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
}
