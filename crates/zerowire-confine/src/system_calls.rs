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
        list.entry(call.number).or_default().extend(rules(call.only)?);
    }
    // A call without rules is allowed whatever its arguments are.
    for call in calls().filter(|call| matches!(call.only, Only::Any | Only::Absent)) {
        list.insert(call.number, Vec::new());
    }
    let absent = calls().filter(|call| call.only == Only::Absent);
    let absent = absent.map(|call| (call.number, Vec::new())).collect();
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
fn rules(only: Only) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |index, len, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(index, len, operator, value)?])
    };
    match only {
        Only::Any | Only::Absent => Ok(Vec::new()),
        Only::Values { index, values } => values
            .iter()
            .map(|v| rule(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(*v)))
            .collect(),
        Only::Bits { index, mask, set } => {
            Ok(vec![rule(index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), set)?])
        }
    }
}
