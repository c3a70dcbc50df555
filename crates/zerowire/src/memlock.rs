//! The limit of locked memory.

/// RLIMIT_MEMLOCK in bytes, for people.
pub(crate) fn locked_limit() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.map_or("unlimited".to_owned(), |n| n.to_string())
}
