//! Which thread serves a VM: VMs that share groups, also by way of others, have one together.
//!
//! A VM whose groups no other one has gets a thread of its own. One that shares groups with VMs of
//! one thread joins that thread, which it is handed to by an order. Threads that run can't become
//! one: a VM that would connect two of them is refused ([`joined_set`]). A thread ends with its
//! last VM.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zerowire_sys::lock;
use zerowire_vhost::answer::one_answer;
use zerowire_vhost::host::wait_for;
use zerowire_vhost::serve::StartError;

use crate::error::VsockServerError;
use crate::group::{Group, GroupCommand, GroupRings, GroupVm};
use crate::sets::{SetMember, joined_set};

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

impl Member {
    fn of_set(&self) -> SetMember {
        let (vm, groups) = (self.vm.clone(), self.groups.clone());
        SetMember { vm, groups, set: Arc::as_ptr(&self.group) as usize }
    }
}

/// All VMs that have threads.
#[derive(Debug, Default)]
pub(super) struct GroupThreads {
    members: Mutex<Vec<Member>>,
    /// True: all VMs have one thread, whatever their groups are.
    is_one: bool,
}

impl GroupThreads {
    /// One thread for all VMs. Who has chosen them has put those together that may reach each
    /// other, and others that were connected by a VM which has left.
    pub fn one() -> Self {
        Self { is_one: true, ..Self::default() }
    }

    /// The VMs, and which of them share a thread.
    pub fn members(&self) -> Vec<SetMember> {
        lock(&self.members).iter().map(Member::of_set).collect()
    }

    /// The thread that a VM joins, if there is one.
    fn joined(
        &self,
        name: &str,
        groups: &[String],
        members: &[Member],
    ) -> Result<Option<Arc<Group>>, VsockServerError> {
        let joined = match self.is_one {
            true => members.first(),
            false => {
                let all: Vec<_> = members.iter().map(Member::of_set).collect();
                let set = joined_set(name, groups, &all)?;
                members.iter().find(|m| Some(Arc::as_ptr(&m.group) as usize) == set)
            }
        };
        Ok(joined.map(|m| m.group.clone()))
    }

    /// Has a thread serve a VM in these groups.
    pub fn join(
        self: &Arc<Self>,
        vm: GroupVm,
        name: &str,
        groups: &[String],
    ) -> Result<GroupPlace, VsockServerError> {
        let resources = |cause| StartError::Resources { vm: name.to_owned(), cause };
        let (reply, answer) = one_answer();
        let place = {
            let mut members = lock(&self.members);
            let group = match self.joined(name, groups, &members)? {
                Some(group) => group,
                None => Arc::new(Group::spawn(format!("vsock-{name}")).map_err(resources)?),
            };
            let taken: HashSet<_> =
                members.iter().filter(|m| Arc::ptr_eq(&m.group, &group)).map(|m| m.place).collect();
            let place = (0..).find(|place| !taken.contains(place)).unwrap_or_default();
            // Who asks for the place next gives its order behind this one.
            group.give(GroupCommand::Join { place, vm: Box::new(vm), reply });
            let (vm, groups) = (name.to_owned(), groups.to_vec());
            members.push(Member { vm, groups, group: group.clone(), place });
            let (rings, left) = (group.rings(place), AtomicBool::new(false));
            GroupPlace { rings, threads: self.clone(), group, place, left }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the thread of its groups does not answer");
        wait_for(&answer, PATIENCE).unwrap_or_else(|| Err(late())).map_err(resources)?;
        Ok(place)
    }

    /// Whether all threads still serve.
    pub fn are_alive(&self) -> bool {
        lock(&self.members).iter().all(|m| m.group.is_alive())
    }
}

/// A VM's place on its thread. Dropping it drops the VM with its connections and the sockets of
/// its host end.
#[derive(Debug)]
pub(super) struct GroupPlace {
    /// The VM's rings.
    pub rings: GroupRings,
    threads: Arc<GroupThreads>,
    group: Arc<Group>,
    /// The VM's place among those of its thread.
    pub place: usize,
    /// True: the thread was told to let go of it.
    left: AtomicBool,
}

impl GroupPlace {
    /// Has the thread drop the VM, and waits until it has. Another VM of the thread can hold that
    /// up.
    pub fn leave(&self) {
        self.let_go(Duration::MAX);
    }

    /// The same; but it waits no longer than `patience`. False: the thread has not let go.
    fn let_go(&self, patience: Duration) -> bool {
        if self.left.swap(true, Ordering::AcqRel) {
            return true;
        }
        let (reply, answer) = one_answer();
        self.group.give(GroupCommand::Leave { place: self.place, reply });
        wait_for(&answer, patience).is_some() || !self.group.is_alive()
    }
}

impl Drop for GroupPlace {
    fn drop(&mut self) {
        let patience = self.group.patience(PATIENCE, LATE_PATIENCE);
        let answers = self.let_go(patience);
        if !answers {
            tracing::error!("the thread of a group did not let a VM go within {patience:?}");
        }
        self.group.answers(answers);
        let is_other = |m: &Member| m.place != self.place || !Arc::ptr_eq(&m.group, &self.group);
        lock(&self.threads.members).retain(is_other);
    }
}
