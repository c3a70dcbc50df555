//! From bytes to a request head, within limits.

use zerowire_wire::http;

use super::accept::Accept;
use super::host::{is_service, of_target};
use super::path::Path;

/// The longest request head (request line and headers) in bytes: what common
/// servers allow; a token and its name need about 100.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;

/// The longest request target in bytes.
pub const MAX_TARGET_BYTES: usize = 2 * 1024;

/// The largest request body in bytes. No request needs one; some clients send
/// a small one with PUT, which is read and ignored.
pub const MAX_BODY_BYTES: u64 = 4 * 1024;

/// The most headers in a request; each costs a slot of the parser's stack.
const MAX_HEADERS: usize = 64;

/// The headers that carry a token. Names compare without case.
const TOKEN_HEADERS: [&str; 2] = ["X-metadata-token", "X-aws-ec2-metadata-token"];

/// The headers that carry the lifetime of a token to be made.
const TTL_HEADERS: [&str; 2] = ["X-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token-ttl-seconds"];

/// Request methods that the service tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Put,
    Other,
}

/// What a request head said of the body behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Body {
    pub(crate) content_length: u64,
    pub(crate) chunked: bool,
    pub(crate) expects_continue: bool,
}

/// What a request head said; nothing in it refers to the input.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// As the guest wrote it, for the text of a 404.
    pub(crate) target: String,
    pub(crate) path: Path,
    pub(crate) body: Body,
    pub(crate) keep_alive: bool,
    /// Whether the client is HTTP/1.0 and must be told of `keep_alive`.
    pub(crate) old_client: bool,
    pub(crate) accept: Accept,
    pub(crate) token: Option<Vec<u8>>,
    /// The lifetime's header, as this service spells it, and value.
    pub(crate) ttl: Option<(&'static str, Vec<u8>)>,
    pub(crate) forwarded: bool,
    /// The host that was asked for, where that isn't this service.
    pub(crate) foreign_host: Option<String>,
}

/// Why bytes are no request that can be answered by its content. The
/// connection ends after each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRequest {
    Syntax(&'static str),
    HeadTooLarge,
    TargetTooLong,
}

/// What the bytes so far are.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The begin of a request.
    Partial,
    /// A request head and its length in bytes.
    Complete(Box<Head>, usize),
    /// No request.
    Bad(BadRequest),
}

/// Parses the request head at the begin of `input`.
pub(crate) fn parse(input: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(input) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_BYTES => len,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD_BYTES => return Parsed::Partial,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            // Which part is too large decides between 414 and 431.
            let long_target = request.path.is_none_or(|target| target.len() > MAX_TARGET_BYTES);
            return Parsed::Bad(if long_target {
                BadRequest::TargetTooLong
            } else {
                BadRequest::HeadTooLarge
            });
        }
        Err(_) => return Parsed::Bad(BadRequest::Syntax("not an HTTP/1.x request")),
    };
    match head(&request) {
        Ok(head) => Parsed::Complete(Box::new(head), len),
        Err(error) => Parsed::Bad(error),
    }
}

fn head(request: &httparse::Request<'_, '_>) -> Result<Head, BadRequest> {
    let target = request.path.unwrap_or_default();
    if target.len() > MAX_TARGET_BYTES {
        return Err(BadRequest::TargetTooLong);
    }
    let old_client = request.version == Some(0);
    let mut head = Head {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("PUT") => Method::Put,
            _ => Method::Other,
        },
        target: target.to_owned(),
        path: Path::parse(target),
        body: Body::default(),
        keep_alive: !old_client,
        old_client,
        accept: Accept::default(),
        token: None,
        ttl: None,
        forwarded: false,
        foreign_host: None,
    };
    if head.path == Path::Malformed {
        return Err(BadRequest::Syntax("a percent sign in the path needs two hexadecimal digits"));
    }
    let (hosts, host) = read_headers(request, &mut head)?;
    // RFC 9112 section 3.2: one Host header, except from HTTP/1.0 clients.
    if hosts > 1 || (hosts == 0 && !old_client) {
        return Err(BadRequest::Syntax("an HTTP/1.1 request needs one Host header"));
    }
    let host = of_target(target).map(str::to_owned).or(host);
    head.foreign_host = host.filter(|host| !is_service(host));
    Ok(head)
}

/// Enters the headers, and returns how many named a host, and the last of these.
fn read_headers(
    request: &httparse::Request<'_, '_>,
    head: &mut Head,
) -> Result<(usize, Option<String>), BadRequest> {
    let (mut hosts, mut host, mut lengths) = (0, None, None);
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("Host") {
            hosts += 1;
            host = Some(String::from_utf8_lossy(header.value).into_owned());
        } else if is("Content-Length") {
            let length = content_length(header.value)?;
            if lengths.is_some_and(|earlier| earlier != length) {
                return Err(BadRequest::Syntax("two different Content-Length headers"));
            }
            lengths = Some(length);
        } else if is("Transfer-Encoding") {
            head.body.chunked = true;
        } else if is("Expect") {
            head.body.expects_continue = true;
        } else if is("Connection") {
            head.keep_alive = http::keeps_alive(header.value, head.keep_alive);
        } else if is("Accept") {
            head.accept.add(header.value);
        } else if is("X-Forwarded-For") {
            head.forwarded = true;
        } else if TOKEN_HEADERS.iter().any(|name| is(name)) {
            head.token.get_or_insert_with(|| trimmed(header.value));
        } else if let Some(&name) = TTL_HEADERS.iter().find(|name| is(name)) {
            head.ttl.get_or_insert_with(|| (name, trimmed(header.value)));
        }
    }
    head.body.content_length = lengths.unwrap_or(0);
    Ok((hosts, host))
}

fn content_length(value: &[u8]) -> Result<u64, BadRequest> {
    let length = http::content_length(value).filter(|length| *length < u64::MAX);
    length.ok_or(BadRequest::Syntax("Content-Length isn't a number"))
}

fn trimmed(value: &[u8]) -> Vec<u8> {
    value.trim_ascii().to_vec()
}

#[cfg(test)]
mod tests;
