//! Changes of VMs whose front ends stay.
//!
//! It sends the changes to all children, then waits for their answers until one deadline: children
//! that do not answer cost the time of one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire_net::{MetadataSource, NetChange, ServerError};

use super::metadata::KeptMetadata;
use super::vm::NetVm;
use crate::sandbox::keeper::Keeper;
use crate::sandbox::link::{ANSWER_PATIENCE, settled};

/// How much longer all children may take for each one of them: they parse at the same time.
const A_VM: Duration = Duration::from_millis(20);

/// Changes these VMs. Returns what failed.
pub(super) fn change(all: Vec<(Arc<Keeper<NetVm>>, NetChange)>) -> Vec<ServerError> {
    let metadata_failed = |vm: &NetVm, text| ServerError::Metadata { vm: vm.name(), text };
    // Files may lie on something slow: all are read before a child gets its change.
    let read = |(keeper, change): (Arc<Keeper<NetVm>>, NetChange)| {
        let metadata = change.metadata.map(|source| read(&keeper.charge, source));
        (keeper, metadata, change.limits, change.guard)
    };
    let read: Vec<_> = all.into_iter().map(read).collect();
    let patience = ANSWER_PATIENCE + A_VM * u32::try_from(read.len()).unwrap_or(u32::MAX);
    let deadline = Instant::now() + patience;
    let mut told = Vec::new();
    for (keeper, metadata, limits, guard) in read {
        let vm = &keeper.charge;
        let give = |metadata| vm.ask_metadata(metadata, deadline).map_err(|text| metadata_failed(vm, text));
        let metadata = metadata.map(|read| read.and_then(give));
        let orders = [limits.map(|limits| vm.set_limits(limits)), guard.map(|guard| vm.set_guard(guard))];
        let ordered = orders.into_iter().flatten().reduce(Result::and);
        let asked = ordered.map(|ordered| ordered.and_then(|()| vm.ask_settled()));
        told.push((keeper, metadata, asked));
    }
    let deadline = Instant::now() + patience;
    let end =
        |(keeper, metadata, asked): (Arc<Keeper<NetVm>>, Option<Result<_, _>>, Option<Result<_, _>>)| {
            let vm = &keeper.charge;
            let keep = |asked| vm.keep_metadata(asked, deadline).map_err(|text| metadata_failed(vm, text));
            let kept = metadata.map(|asked| asked.and_then(keep));
            let settled = asked.map(|asked| asked.and_then(|asked| settled(asked, deadline)));
            let settled =
                settled.map(|done| done.map_err(|text| ServerError::Process { vm: vm.name(), text }));
            [kept, settled].into_iter().flatten().filter_map(Result::err)
        };
    told.into_iter().flat_map(end).collect()
}

/// Reads the metadata that a VM gets.
fn read(vm: &NetVm, source: MetadataSource) -> Result<KeptMetadata, ServerError> {
    if vm.config().metadata.is_none_or(|now| now.tokens != source.tokens) {
        return Err(ServerError::Settled(vm.name()));
    }
    KeptMetadata::read(source).map_err(|text| ServerError::Metadata { vm: vm.name(), text })
}
