//! The list of system calls, as two filters (Documentation/userspace-api/seccomp_filter.rst).
//!
//! The first one has some calls fail with ENOSYS. The second one kills the process at each call
//! that is not on the list. The kernel asks both, and the stricter answer counts.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use zerowire_sys::allowed::{AllowedCall, Only};

/// Allows this thread, and those that it starts, these calls and no other.
pub(crate) fn restrict(lists: &[&[AllowedCall]]) -> Result<(), String> {
    let calls = || lists.iter().copied().flatten();
    let (absent, list) = programs(calls).map_err(|e| e.to_string())?;
    // Once the list is there no filter can be added.
    for program in [absent, list] {
        apply_filter(&program).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The filter of calls that are absent, and the list.
fn programs<'a, I: Iterator<Item = &'a AllowedCall>>(
    calls: impl Fn() -> I,
) -> Result<(BpfProgram, BpfProgram), BackendError> {
    let mut list: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in calls() {
        list.entry(call.number).or_default().extend(rules(call)?);
    }
    // A call without rules is allowed whatever its arguments are.
    let unconditional =
        |call: &&AllowedCall| matches!(call.only, Only::Any | Only::Absent) && call.below.is_none();
    for call in calls().filter(unconditional) {
        list.insert(call.number, Vec::new());
    }
    // One by one: `collect` sorts first, by more code.
    let mut absent = BTreeMap::new();
    absent.extend(calls().filter(|call| call.only == Only::Absent).map(|call| (call.number, Vec::new())));
    let enosys = SeccompAction::Errno(libc::ENOSYS as u32);
    let program = |rules, otherwise, then| -> Result<BpfProgram, BackendError> {
        SeccompFilter::new(rules, otherwise, then, TargetArch::x86_64)?.try_into()
    };
    Ok((
        program(absent, SeccompAction::Allow, enosys)?,
        program(list, SeccompAction::KillProcess, SeccompAction::Allow)?,
    ))
}

/// One of them has to match.
fn rules(call: &AllowedCall) -> Result<Vec<SeccompRule>, BackendError> {
    let condition = SeccompCondition::new;
    let only = match call.only {
        Only::Any | Only::Absent => vec![Vec::new()],
        Only::Values { index, values } => values
            .iter()
            .map(|v| Ok(vec![condition(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(*v))?]))
            .collect::<Result<_, BackendError>>()?,
        Only::Bits { index, mask, set } => {
            vec![vec![condition(index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), set)?]]
        }
    };
    let below = |number| condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Lt, u64::from(number));
    let below = call.below.map(below).transpose()?;
    let all = only.into_iter().map(|conditions| conditions.into_iter().chain(below.clone()).collect());
    // One without conditions would be none.
    all.filter(|conditions: &Vec<_>| !conditions.is_empty()).map(SeccompRule::new).collect()
}
