//! A response on its way: a head that it owns and a body that may be shared.

use std::fmt::Write;

use zerowire_wire::http::reason;

use crate::tree::TreeSlice;

/// Where a body's bytes are.
#[derive(Debug)]
pub(crate) enum Body {
    Static(&'static str),
    Owned(String),
    Tree(TreeSlice),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Static(text) => text.as_bytes(),
            Self::Owned(text) => text.as_bytes(),
            Self::Tree(slice) => slice.bytes(),
        }
    }
}

/// The parts of a response before it is written.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) json: bool,
    /// Header lines beyond the usual ones, each with its line end.
    pub(crate) extra: String,
    pub(crate) body: Body,
}

impl Reply {
    /// A plain-text reply.
    pub(crate) fn text(status: u16, body: Body) -> Self {
        Self { status, json: false, extra: String::new(), body }
    }

    /// A plain-text reply that never changes.
    pub(crate) fn fixed(status: u16, text: &'static str) -> Self {
        Self::text(status, Body::Static(text))
    }
}

/// A response being sent; [`Response::rest`] and [`Response::advance`] stream
/// it through a buffer of any size.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Whether the connection ends after it.
    pub(crate) close: bool,
    head: String,
    body: Body,
    /// False for HEAD: the body is described, not sent.
    sends_body: bool,
    sent: usize,
}

/// How a response is framed; comes from the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) close: bool,
    pub(crate) sends_body: bool,
    /// HTTP/1.0 clients must be told that the connection stays.
    pub(crate) old_client: bool,
}

impl Response {
    /// Writes the head of `reply`.
    pub(crate) fn new(reply: Reply, framing: Framing) -> Self {
        let content_type = if reply.json { "application/json" } else { "text/plain; charset=utf-8" };
        let connection = match (framing.close, framing.old_client) {
            (true, _) => "Connection: close\r\n",
            (false, true) => "Connection: keep-alive\r\n",
            (false, false) => "",
        };
        let mut head = String::new();
        // Writing to a String can't fail.
        let _ = write!(
            head,
            "HTTP/1.1 {} {}\r\nServer: zerowire\r\nContent-Type: {content_type}\r\n\
             Content-Length: {}\r\nCache-Control: no-store\r\n{}{connection}\r\n",
            reply.status,
            reason(reply.status),
            reply.body.bytes().len(),
            reply.extra,
        );
        Self {
            status: reply.status,
            close: framing.close,
            head,
            body: reply.body,
            sends_body: framing.sends_body,
            sent: 0,
        }
    }

    /// The next bytes to send; empty when all are sent.
    pub(crate) fn rest(&self) -> &[u8] {
        if let Some(rest) = self.head.as_bytes().get(self.sent..)
            && !rest.is_empty()
        {
            return rest;
        }
        if !self.sends_body {
            return &[];
        }
        let body_sent = self.sent - self.head.len();
        self.body.bytes().get(body_sent..).unwrap_or_default()
    }

    /// Notes that `count` bytes of [`Response::rest`] were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.sent += count;
    }

    /// Bytes of memory that it holds alone.
    pub(crate) fn buffered_bytes(&self) -> usize {
        let body = match &self.body {
            Body::Owned(text) => text.capacity(),
            Body::Static(_) | Body::Tree(_) => 0,
        };
        self.head.capacity() + body
    }
}
