//! Responses as bytes.

use std::fmt::Write as _;

use serde::Serialize;
use zerowire_wire::http::reason;

/// What comes line by line for as long as the client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Statistics as lines of JSON.
    JsonLines,
    /// Statistics as tables.
    Tables,
}

/// What stands behind the head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// All of it.
    Whole(Vec<u8>),
    /// Its length alone, bytes.
    Length(usize),
    /// In chunks, one after the other.
    Stream(Stream),
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    /// Methods that the path has, for status 405.
    pub allow: Vec<&'static str>,
    /// The body.
    pub body: ResponseBody,
}

/// Media type of plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The body of an error: what is wrong, and where in the request's body.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<&'a str>,
}

impl Response {
    /// No body.
    pub fn empty(status: u16) -> Self {
        Self::whole(status, JSON, Vec::new())
    }

    /// A body of any type.
    pub fn whole(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, content_type, allow: Vec::new(), body: ResponseBody::Whole(body) }
    }

    /// `value` as JSON.
    pub fn json<T: Serialize>(status: u16, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::whole(status, JSON, body)
            }
            Err(e) => Self::error(500, &e.to_string(), None),
        }
    }

    /// What is wrong; `pointer` names a place in the request's body (RFC 6901).
    pub fn error(status: u16, text: &str, pointer: Option<&str>) -> Self {
        let body = serde_json::to_vec(&ErrorBody { error: text, pointer }).unwrap_or_default();
        Self::whole(status, JSON, [body, b"\n".to_vec()].concat())
    }

    /// A response that goes on.
    pub fn stream(stream: Stream) -> Self {
        let content_type = match stream {
            Stream::JsonLines => "application/x-ndjson",
            Stream::Tables => TEXT,
        };
        Self { status: 200, content_type, allow: Vec::new(), body: ResponseBody::Stream(stream) }
    }

    /// What HEAD gets (RFC 9110, section 9.3.2). Of a stream, the head is all that [`Self::bytes`]
    /// has.
    pub fn without_body(mut self) -> Self {
        if let ResponseBody::Whole(body) = &self.body {
            self.body = ResponseBody::Length(body.len());
        }
        self
    }

    /// The bytes of it, as far as they are known.
    pub fn bytes(&self, keeps_alive: bool) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        if !self.allow.is_empty() {
            let _ = write!(head, "Allow: {}\r\n", self.allow.join(", "));
        }
        let length = match &self.body {
            ResponseBody::Whole(body) => Some(body.len()),
            ResponseBody::Length(len) => Some(*len),
            ResponseBody::Stream(_) => None,
        };
        let content_type = self.content_type;
        let _ = match length {
            // A response of this status has neither length nor type (RFC 9110, section 8.6).
            Some(_) if self.status == 204 => Ok(()),
            Some(len) => write!(head, "Content-Type: {content_type}\r\nContent-Length: {len}\r\n"),
            None => write!(head, "Content-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"),
        };
        if !keeps_alive {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if let ResponseBody::Whole(body) = &self.body {
            bytes.extend_from_slice(body);
        }
        bytes
    }
}

/// The end of a response in chunks.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A piece of a response in chunks. It must not be empty: that would be the end.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

#[cfg(test)]
mod tests;
