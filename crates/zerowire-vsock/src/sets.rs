//! VMs that are served together, by one thread or one process: which of these sets a VM joins.
//!
//! Sets that run can't become one. A VM whose groups connect two of them is refused.

use crate::config::{VsockConfig, group_sets};
use crate::error::VsockServerError;

/// A VM that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMember {
    /// Its name.
    pub vm: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// The same number for all that are served together.
    pub set: usize,
}

/// The set that a VM in these groups joins. None: it shares groups with no other one.
///
/// # Errors
/// [`VsockServerError::Apart`].
pub fn joined_set(
    vm: &str,
    groups: &[String],
    members: &[SetMember],
) -> Result<Option<usize>, VsockServerError> {
    let shares = |m: &&SetMember| m.groups.iter().any(|g| groups.contains(g));
    let sets = distinct(members.iter().filter(shares));
    match sets.len() {
        0 | 1 => Ok(sets.first().copied()),
        _ => Err(apart(vm, members, &sets)),
    }
}

/// Whether VMs that come can be beside those that stay.
///
/// # Errors
/// [`VsockServerError::Apart`].
pub(crate) fn check_apart(
    members: &[SetMember],
    staying: &[&VsockConfig],
    coming: &[&VsockConfig],
) -> Result<(), VsockServerError> {
    let all: Vec<_> = staying.iter().chain(coming).copied().collect();
    for connected in group_sets(all.iter().copied()) {
        let (stay, come): (Vec<_>, Vec<_>) = connected.into_iter().partition(|i| *i < staying.len());
        let sets = distinct(members.iter().filter(|m| stay.iter().any(|i| all[*i].name == m.vm)));
        if let Some(first) = come.first().filter(|_| sets.len() > 1) {
            return Err(apart(&all[*first].name, members, &sets));
        }
    }
    Ok(())
}

/// The sets of these VMs, each once, in order.
fn distinct<'a>(members: impl Iterator<Item = &'a SetMember>) -> Vec<usize> {
    let mut sets = Vec::new();
    for m in members {
        if !sets.contains(&m.set) {
            sets.push(m.set);
        }
    }
    sets
}

/// The VM would connect these sets.
fn apart(vm: &str, members: &[SetMember], sets: &[usize]) -> VsockServerError {
    let (first, rest) = sets.split_at(1);
    let names = |sets: &[usize]| {
        let of = members.iter().filter(|m| sets.contains(&m.set));
        of.map(|m| m.vm.as_str()).collect::<Vec<_>>().join(", ")
    };
    VsockServerError::Apart { vm: vm.to_owned(), stay: names(first), go: names(rest) }
}
