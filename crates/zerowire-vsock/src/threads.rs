//! Which thread serves a VM: VMs that share groups, also by way of others, have one together.
//!
//! A VM whose groups no other one has gets a thread of its own. One that shares groups with VMs of
//! one thread joins that thread, which it is handed to by an order. Threads that run can't become
//! one: a VM that would connect two of them is refused. A thread ends with its last VM.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zerowire_vhost::host::wait_for;
use zerowire_vhost::serve::StartError;

use crate::config::{VsockConfig, group_sets};
use crate::error::VsockServerError;
use crate::group::{Group, GroupCommand, GroupRings, GroupVm};

/// How long a thread may need until it comes to an order.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that did not come to the order before.
const LATE_PATIENCE: Duration = Duration::from_millis(200);

/// A VM on a thread.
#[derive(Debug)]
struct Member {
    vm: String,
    groups: Vec<String>,
    group: Arc<Group>,
    /// Its place among the VMs of the thread.
    place: usize,
}

/// All VMs that have threads.
#[derive(Debug, Default)]
pub(super) struct GroupThreads(Mutex<Vec<Member>>);

impl GroupThreads {
    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread serve a VM in these groups.
    pub fn join(
        self: &Arc<Self>,
        vm: GroupVm,
        name: &str,
        groups: &[String],
    ) -> Result<GroupPlace, VsockServerError> {
        let resources = |cause| StartError::Resources { vm: name.to_owned(), cause };
        let (reply, answer) = sync_channel(1);
        let place = {
            let mut members = self.lock();
            let group = match sharing(&members, groups).as_slice() {
                [] => Arc::new(Group::spawn(format!("vsock-{name}")).map_err(resources)?),
                [one] => one.clone(),
                several => return Err(apart(name, &members, several)),
            };
            let taken: HashSet<_> =
                members.iter().filter(|m| Arc::ptr_eq(&m.group, &group)).map(|m| m.place).collect();
            let place = (0..).find(|place| !taken.contains(place)).unwrap_or_default();
            // Who asks for the place next gives its order behind this one.
            group.give(GroupCommand::Join { place, vm: Box::new(vm), reply });
            let (vm, groups) = (name.to_owned(), groups.to_vec());
            members.push(Member { vm, groups, group: group.clone(), place });
            GroupPlace { rings: group.rings(place), threads: self.clone(), group, place }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the thread of its groups does not answer");
        wait_for(&answer, PATIENCE).unwrap_or_else(|| Err(late())).map_err(resources)?;
        Ok(place)
    }

    /// Whether VMs that come can be beside those that stay.
    ///
    /// # Errors
    /// They would connect two threads that run.
    pub fn check(&self, staying: &[&VsockConfig], coming: &[&VsockConfig]) -> Result<(), VsockServerError> {
        let members = self.lock();
        let all: Vec<_> = staying.iter().chain(coming).copied().collect();
        for set in group_sets(all.iter().copied()) {
            let (stay, come): (Vec<_>, Vec<_>) = set.into_iter().partition(|i| *i < staying.len());
            let mut threads: Vec<Arc<Group>> = Vec::new();
            for m in members.iter().filter(|m| stay.iter().any(|i| all[*i].name == m.vm)) {
                if !threads.iter().any(|t| Arc::ptr_eq(t, &m.group)) {
                    threads.push(m.group.clone());
                }
            }
            if let Some(first) = come.first().filter(|_| threads.len() > 1) {
                return Err(apart(&all[*first].name, &members, &threads));
            }
        }
        Ok(())
    }

    /// Whether all threads still serve.
    pub fn are_alive(&self) -> bool {
        self.lock().iter().all(|m| m.group.is_alive())
    }
}

/// The threads with VMs in one of these groups.
fn sharing(members: &[Member], groups: &[String]) -> Vec<Arc<Group>> {
    let mut threads: Vec<Arc<Group>> = Vec::new();
    for m in members.iter().filter(|m| m.groups.iter().any(|g| groups.contains(g))) {
        if !threads.iter().any(|t| Arc::ptr_eq(t, &m.group)) {
            threads.push(m.group.clone());
        }
    }
    threads
}

/// The VM would connect these threads.
fn apart(vm: &str, members: &[Member], threads: &[Arc<Group>]) -> VsockServerError {
    let (first, rest) = threads.split_at(1);
    let names = |threads: &[Arc<Group>]| {
        let of = |m: &&Member| threads.iter().any(|t| Arc::ptr_eq(t, &m.group));
        members.iter().filter(of).map(|m| m.vm.as_str()).collect::<Vec<_>>().join(", ")
    };
    VsockServerError::Apart { vm: vm.to_owned(), stay: names(first), go: names(rest) }
}

/// A VM's place on its thread. Dropping it drops the VM with its connections and the sockets of
/// its host end.
#[derive(Debug)]
pub(super) struct GroupPlace {
    /// The VM's rings.
    pub rings: GroupRings,
    threads: Arc<GroupThreads>,
    group: Arc<Group>,
    place: usize,
}

impl GroupPlace {
    /// The VM's place among those of its thread.
    pub fn place(&self) -> usize {
        self.place
    }
}

impl Drop for GroupPlace {
    fn drop(&mut self) {
        let (reply, answer) = sync_channel(1);
        self.group.give(GroupCommand::Leave { place: self.place, reply });
        let patience = self.group.patience(PATIENCE, LATE_PATIENCE);
        let answers = wait_for(&answer, patience).is_some();
        if !answers && self.group.is_alive() {
            tracing::error!("the thread of a group did not let a VM go within {patience:?}");
        }
        self.group.answers(answers);
        let is_other = |m: &Member| m.place != self.place || !Arc::ptr_eq(&m.group, &self.group);
        self.threads.lock().retain(is_other);
    }
}
