//! HTTP/1.1: what its servers here have in common. The crate httparse parses heads.

/// The length that a Content-Length header gives, at most `u64::MAX`; None if it is not a number.
pub fn content_length(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
    // `parse` alone would take a plus sign.
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Whether further requests may come, by a Connection header; `before` says so without one.
pub fn keeps_alive(value: &[u8], before: bool) -> bool {
    let options = || value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let has = |word: &[u8]| options().any(|option| option.eq_ignore_ascii_case(word));
    !has(b"close") && (before || has(b"keep-alive"))
}

/// A part of a path without its percent signs; None if one lacks its two hexadecimal digits.
pub fn percent_decoded(part: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// What a status is called (RFC 9110 section 15).
pub const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}
