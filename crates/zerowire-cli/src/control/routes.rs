//! Which path and method does what.

use super::http::Method;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The version of zerowire.
    Version,
    /// All VMs.
    List,
    /// One VM.
    Show,
    /// A new VM.
    Add,
    /// Another setting of a VM.
    Change,
    /// A VM less.
    Remove,
    /// A VM less when its front end has left.
    Drain,
    /// The capture.
    ShowCapture,
    /// A capture begins.
    BeginCapture,
    /// The capture ends.
    EndCapture,
    /// Statistics, once or every second.
    Stats,
    /// Statistics for Prometheus.
    Metrics,
}

/// A path, one of its methods, and what that does.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, with `{name}` for the name of a VM.
    pub path: &'static str,
    /// What it does.
    pub action: Action,
}

const fn route(method: Method, path: &'static str, action: Action) -> Route {
    Route { method, path, action }
}

/// All routes. dist/zerowire-api.yaml describes them; a test compares.
pub const ROUTES: [Route; 12] = [
    route(Method::Get, "/version", Action::Version),
    route(Method::Get, "/vms", Action::List),
    route(Method::Get, "/vms/{name}", Action::Show),
    route(Method::Put, "/vms/{name}", Action::Add),
    route(Method::Patch, "/vms/{name}", Action::Change),
    route(Method::Delete, "/vms/{name}", Action::Remove),
    route(Method::Post, "/vms/{name}/drain", Action::Drain),
    route(Method::Get, "/capture", Action::ShowCapture),
    route(Method::Put, "/capture", Action::BeginCapture),
    route(Method::Delete, "/capture", Action::EndCapture),
    route(Method::Get, "/stats", Action::Stats),
    route(Method::Get, "/metrics", Action::Metrics),
];

/// What a request is answered by.
#[derive(Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// This, with the name of the VM; empty where the path has none.
    Action(Action, &'a str),
    /// The path has other methods.
    Methods(Vec<&'static str>),
    /// No route has this path.
    Nothing,
}

/// Finds what `method` on `path` does: HEAD what GET does.
pub fn find(method: Method, path: &[String]) -> Routed<'_> {
    let asked = if method == Method::Head { Method::Get } else { method };
    let mut methods = Vec::new();
    for route in &ROUTES {
        let Some(name) = matches(route.path, path) else { continue };
        if route.method == asked {
            return Routed::Action(route.action, name);
        }
        methods.push(route.method.name());
        if route.method == Method::Get {
            methods.push(Method::Head.name());
        }
    }
    if methods.is_empty() { Routed::Nothing } else { Routed::Methods(methods) }
}

/// Whether a query asks for what this action can do besides: `stream` of statistics, `reconnect` of
/// a change, alone or as a boolean. None: it is another query.
pub fn asks(action: Action, query: &str) -> Option<bool> {
    let word = match action {
        Action::Stats => "stream",
        Action::Change => "reconnect",
        _ => return query.is_empty().then_some(false),
    };
    match query.strip_prefix(word) {
        _ if query.is_empty() => Some(false),
        Some("" | "=" | "=true") => Some(true),
        Some("=false") => Some(false),
        _ => None,
    }
}

/// The VM that `path` names where it is one of this pattern.
fn matches<'a>(pattern: &str, path: &'a [String]) -> Option<&'a str> {
    let parts = pattern.split('/').skip(1);
    if parts.clone().count() != path.len() {
        return None;
    }
    let mut name = "";
    for (part, given) in parts.zip(path) {
        match part {
            "{name}" if given.is_empty() => return None,
            "{name}" => name = given,
            part if part == given => {}
            _ => return None,
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_what_they_name() {
        let path = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(find(Method::Get, &path("vms")), Routed::Action(Action::List, ""));
        assert_eq!(find(Method::Delete, &path("vms/a b")), Routed::Action(Action::Remove, "a b"));
        assert_eq!(find(Method::Post, &path("vms/a/drain")), Routed::Action(Action::Drain, "a"));
        assert_eq!(find(Method::Delete, &path("vms")), Routed::Methods(vec!["GET", "HEAD"]));
        assert_eq!(find(Method::Head, &path("vms")), Routed::Action(Action::List, ""));
        assert_eq!(find(Method::Head, &path("vms/a/drain")), Routed::Methods(vec!["POST"]));
        assert_eq!(
            find(Method::Post, &path("vms/a")),
            Routed::Methods(vec!["GET", "HEAD", "PUT", "PATCH", "DELETE"])
        );
        for nothing in ["", "vms/", "vm", "vms/a/drain/b", "vms//drain", "metrics/"] {
            assert_eq!(find(Method::Get, &path(nothing)), Routed::Nothing, "{nothing}");
        }
        // A name may have a slash, which comes encoded.
        let slash = ["vms".to_owned(), "a/b".to_owned()];
        assert_eq!(find(Method::Get, &slash), Routed::Action(Action::Show, "a/b"));
    }

    #[test]
    fn an_action_has_its_query_and_no_other() {
        for (action, word) in [(Action::Stats, "stream"), (Action::Change, "reconnect")] {
            let asked = |more: &str| asks(action, &format!("{word}{more}"));
            assert_eq!(["", "=", "=true"].map(asked), [Some(true); 3]);
            assert_eq!((asked("=false"), asks(action, "")), (Some(false), Some(false)));
            for more in ["s", "=1", "=true&x", "&reconnect"] {
                assert_eq!(asked(more), None, "{word}{more}");
            }
        }
        assert_eq!((asks(Action::Stats, "reconnect"), asks(Action::Change, "stream")), (None, None));
        assert_eq!((asks(Action::List, ""), asks(Action::List, "reconnect")), (Some(false), None));
    }
}
