//! What each request gets: the rules of the service.

use std::sync::Arc;
use std::time::Duration;

use super::parse::{BadRequest, Head, MAX_BODY_BYTES, Method};
use super::path::Path;
use super::response::{Body, Framing, Reply, Response};
use crate::config::TokenPolicy;
use crate::stats::Stats;
use crate::token::{MAX_TOKEN_TTL_SECONDS, TokenStore};
use crate::tree::MetadataTree;

/// The path that makes tokens.
const TOKEN_PATH: [&str; 3] = ["latest", "api", "token"];

/// What answering needs, lent for one request.
pub(crate) struct Context<'a> {
    pub(crate) tree: &'a Arc<MetadataTree>,
    pub(crate) tokens: &'a mut TokenStore,
    pub(crate) policy: TokenPolicy,
    pub(crate) stats: &'a mut Stats,
    pub(crate) now: Duration,
}

/// The answer to a request, and how many bytes of its body to skip before the next request.
pub(crate) fn respond(head: &Head, context: &mut Context<'_>) -> (Response, u64) {
    let has_body = head.body.chunked || head.body.content_length > 0;
    let skips_body = has_body
        && head.method == Method::Put
        && !head.body.chunked
        && !head.body.expects_continue
        && head.body.content_length <= MAX_BODY_BYTES;
    let reply = foreign_host(head).or_else(|| body_refusal(head)).unwrap_or_else(|| match head.method {
        Method::Get | Method::Head => get(head, context),
        Method::Put => put(head, context),
        Method::Other => not_allowed("GET, HEAD, PUT"),
    });
    let framing = Framing {
        // A body that isn't skipped would be taken for the next request; one
        // announced with Expect may never come.
        close: !head.keep_alive || (has_body && !skips_body),
        sends_body: head.method != Method::Head,
        old_client: head.old_client,
    };
    let skip = if skips_body { head.body.content_length } else { 0 };
    let response = Response::new(reply, framing);
    count(&response, context.stats);
    (response, skip)
}

impl BadRequest {
    /// The answer, after which the connection ends.
    pub(crate) fn response(self, stats: &mut Stats) -> Response {
        let (status, text) = match self {
            Self::Syntax(text) => (400, text),
            Self::HeadTooLarge => (431, "the request's headers are longer than 8 KiB or more than 64"),
            Self::TargetTooLong => (414, "the path is longer than 2 KiB"),
        };
        last(status, text, stats)
    }
}

/// The answer to a request that didn't come in time.
pub(crate) fn timeout(stats: &mut Stats) -> Response {
    last(408, "the request took too long", stats)
}

fn last(status: u16, text: &'static str, stats: &mut Stats) -> Response {
    let framing = Framing { close: true, sends_body: true, old_client: false };
    let response = Response::new(Reply::fixed(status, text), framing);
    count(&response, stats);
    response
}

fn count(response: &Response, stats: &mut Stats) {
    stats.requests += 1;
    stats.client_errors += u64::from((400..500).contains(&response.status));
    stats.unauthorized += u64::from(response.status == 401);
}

/// A request by another name gets neither data nor a token.
fn foreign_host(head: &Head) -> Option<Reply> {
    let host = head.foreign_host.as_ref()?;
    let text = format!(
        "the host {host} is not this service; ask http://169.254.169.254/ or http://[fd00:ec2::254]/"
    );
    Some(Reply::text(421, Body::Owned(text)))
}

fn body_refusal(head: &Head) -> Option<Reply> {
    if head.method == Method::Other {
        return None;
    }
    if head.body.chunked {
        return Some(Reply::fixed(411, "send a Content-Length instead of chunks"));
    }
    let allowed = match head.method {
        Method::Put => MAX_BODY_BYTES,
        _ => 0,
    };
    (head.body.content_length > allowed)
        .then(|| Reply::fixed(413, "no request needs a body; PUT may have 4 KiB"))
}

fn get(head: &Head, context: &mut Context<'_>) -> Reply {
    if is_token_path(&head.path) {
        return not_allowed("PUT");
    }
    // The token is checked before the tree, so that nobody learns paths without one.
    match &head.token {
        Some(token) if context.tokens.is_valid(context.now, token) => {}
        Some(_) => {
            return Reply::fixed(401, "the token is wrong or expired; PUT /latest/api/token for another");
        }
        None if context.policy == TokenPolicy::Optional => {}
        None => {
            return Reply::fixed(
                401,
                "no token; PUT /latest/api/token with X-metadata-token-ttl-seconds, then send it as X-metadata-token",
            );
        }
    }
    let as_json = head.accept.prefers_json();
    let found = match &head.path {
        Path::Segments(segments) => context.tree.lookup(segments, as_json),
        Path::Nowhere | Path::Malformed => None,
    };
    let Some(slice) = found else {
        return not_found(head);
    };
    Reply { status: 200, json: as_json, extra: String::new(), body: Body::Tree(slice) }
}

fn put(head: &Head, context: &mut Context<'_>) -> Reply {
    // A proxy adds this header: a token asked for through one would leave the
    // guest.
    if head.forwarded {
        return Reply::fixed(403, "a request with X-Forwarded-For gets no token");
    }
    if !is_token_path(&head.path) {
        return not_found(head);
    }
    let Some((name, value)) = &head.ttl else {
        return Reply::fixed(400, "X-metadata-token-ttl-seconds is missing; send 1 to 21600");
    };
    let Some(seconds) = ttl_seconds(value) else {
        return Reply::fixed(400, "X-metadata-token-ttl-seconds must be a number from 1 to 21600");
    };
    match context.tokens.issue(context.now, seconds) {
        Ok(token) => {
            context.stats.tokens_issued += 1;
            Reply { extra: format!("{name}: {seconds}\r\n"), ..Reply::text(200, Body::Owned(token)) }
        }
        Err(error) => {
            tracing::warn!(%error, "getrandom(2) failed, so no metadata token; allow it in the seccomp filter");
            Reply::fixed(503, "no randomness for a token")
        }
    }
}

fn ttl_seconds(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = text.parse().ok()?;
    (1..=MAX_TOKEN_TTL_SECONDS).contains(&seconds).then_some(seconds)
}

fn is_token_path(path: &Path) -> bool {
    matches!(path, Path::Segments(segments) if segments.iter().eq(TOKEN_PATH))
}

fn not_found(head: &Head) -> Reply {
    Reply::text(404, Body::Owned(format!("not found: {}", head.target)))
}

fn not_allowed(methods: &str) -> Reply {
    Reply { extra: format!("Allow: {methods}\r\n"), ..Reply::fixed(405, "method not allowed") }
}
