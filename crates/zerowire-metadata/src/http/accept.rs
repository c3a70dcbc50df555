//! The Accept header (RFC 9110 section 12.5.1), reduced to one question.

/// The weights that a request gave to the two types the service has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accept {
    json: f32,
    text: f32,
}

impl Accept {
    /// Takes one Accept header into account.
    pub(crate) fn add(&mut self, header: &[u8]) {
        let Ok(header) = std::str::from_utf8(header) else {
            return;
        };
        for range in header.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = parts
                .filter_map(|part| part.split_once('='))
                .find(|(key, _)| key.trim().eq_ignore_ascii_case("q"))
                .map_or(1.0, |(_, value)| {
                    let weight = value.trim().parse::<f32>().unwrap_or(0.0);
                    if weight.is_finite() { weight } else { 0.0 }
                });
            if name.eq_ignore_ascii_case("application/json") {
                self.json = self.json.max(weight);
            } else if name.eq_ignore_ascii_case("text/plain") {
                self.text = self.text.max(weight);
            }
        }
    }

    /// Whether JSON was asked for by name and not less than plain text.
    /// Wildcards and other types get text: tools send them unasked.
    pub(crate) fn prefers_json(self) -> bool {
        self.json > 0.0 && self.json >= self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_only_when_asked_for_by_name() {
        for (header, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/html, application/json;q=0.9", true),
            ("application/json;q=0.5, text/plain", false),
            ("application/json, text/plain", true),
            ("application/json;q=0", false),
            ("application/json;q=x", false),
            ("*/*", false),
            ("text/plain", false),
            ("image/png", false),
            (",;,=;q", false),
            ("", false),
        ] {
            let mut accept = Accept::default();
            accept.add(header.as_bytes());
            assert_eq!(accept.prefers_json(), json, "{header}");
        }
    }
}
