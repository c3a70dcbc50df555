//! The tests, and on which machines each runs.

mod balloon;
mod change;
mod front_ends;
mod harness;
mod ledger;
mod link;
mod migration;
mod net;
mod package;
mod quickstart;
mod reconnect;
mod send;
mod setup;
mod stores;
mod tls;
mod traffic;
mod two_guests;
mod vsock;
mod xdp;
mod zcrx;
mod zcrx_stores;
mod zcrx_tool;

use zerowire_vmtest::assets::{Kernel, Qemu};
use zerowire_vmtest::machine::Machine;
use zerowire_vmtest::runner::{Body, Test};

/// Both kernels on the current QEMU, then on the old one, and their CPUs. Some have a single CPU,
/// as small guests have. It takes a quarter less CPU time, half less where devices come and go.
const MACHINES: [(Kernel, Qemu, u32); 5] = [
    (Kernel::New, Qemu::V10, 2),
    (Kernel::New, Qemu::V10, 1),
    (Kernel::Stable, Qemu::V10, 1),
    (Kernel::New, Qemu::V7_2, 2),
    (Kernel::Stable, Qemu::V7_2, 2),
];

/// Where a test runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// On each kernel under each QEMU: what boots, and moves frames and packets at all.
    All,
    /// On both kernels under QEMU 10, with one CPU: QEMU 7.2 has no part in what is tested.
    Qemu10,
    /// On Linux 7 under QEMU 10, and on the old kernel under the old QEMU: each kernel and each
    /// QEMU once.
    Ends,
    /// On the old kernel under the old QEMU: what Debian 12 has.
    Debian12,
    /// On Linux 7 under QEMU 10, with one CPU: the old kernel lacks what is tested, or has no part
    /// in it.
    Linux7,
    /// The same with two CPUs: queues of several pairs, and what several CPUs do at once.
    TwoCpus,
}

impl On {
    fn has(self, kernel: Kernel, qemu: Qemu, cpus: u32) -> bool {
        let newest = qemu == Qemu::V10 && kernel == Kernel::New;
        match self {
            Self::All => !newest || cpus == 2,
            Self::Qemu10 => qemu == Qemu::V10 && cpus == 1,
            Self::Ends => (qemu == Qemu::V10) == (kernel == Kernel::New) && cpus == 2,
            Self::Debian12 => qemu == Qemu::V7_2 && kernel == Kernel::Stable,
            Self::Linux7 => newest && cpus == 1,
            Self::TwoCpus => newest && cpus == 2,
        }
    }
}

/// What waits most of the time. One of these runs beside the others.
const WAITING: &[(&str, On, Body)] = &[
    ("silence", On::Ends, harness::silence),
    ("metadata", On::Qemu10, net::metadata),
    ("link-state", On::Ends, link::state),
    ("xdp-mtu", On::Linux7, xdp::modes::mtu),
    ("xdp-send", On::Linux7, xdp::send::in_place),
    ("reconnect", On::Ends, reconnect::ports),
    ("quickstart", On::Ends, quickstart::lines),
    ("private-memory", On::Ends, front_ends::private_memory),
    ("too-many-queues", On::Ends, front_ends::too_many_queues),
];

/// The longest ones of all machines come first, so that the last test to end is a short one.
const LONG: &[(&str, On, Body)] = &[
    ("package", On::Debian12, package::installed),
    // Packet ports take Linux 6.3.
    ("package-more", On::Linux7, package::ports_and_libvirt),
    ("cycles", On::Linux7, change::cycles),
    ("xdp-cycles", On::Linux7, xdp::alone::cycles),
    ("vsock-unread", On::Qemu10, vsock::unread::small_packets),
    ("vsock-reboot", On::Ends, vsock::change::reboot),
];

/// The others.
const TESTS: &[(&str, On, Body)] = &[
    ("restart", On::Ends, change::restart),
    ("restart-xdp", On::Linux7, change::restart_xdp),
    ("migration", On::Qemu10, migration::over_a_tap),
    ("migration-postcopy", On::Ends, migration::postcopy),
    ("migration-xdp", On::Qemu10, migration::over_xdp),
    ("memory-plug", On::Ends, change::memory_plug),
    ("mtu-xdp", On::Linux7, change::mtu_xdp),
    ("renewal-xdp", On::Linux7, change::renewal_xdp),
    ("memory-plug-xdp", On::Linux7, change::memory_plug_xdp),
    ("reboot", On::Qemu10, change::reboot),
    ("reboot-xdp", On::Linux7, change::reboot_xdp),
    ("balloon-xdp", On::Linux7, balloon::discards),
    ("balloon", On::Qemu10, balloon::tap),
    ("balloon-packet", On::Linux7, balloon::packet),
    ("balloon-vsock", On::Linux7, balloon::vsock),
    ("net", On::All, net::full),
    ("net-xdp", On::Ends, net::xdp),
    ("net-xdp-plain", On::Linux7, net::xdp_plain),
    ("net-packet", On::Qemu10, net::packet),
    ("net-packet-ring", On::TwoCpus, net::packet_ring),
    ("net-packet-no-offloads", On::Linux7, net::packet_no_offloads),
    ("net-no-offloads", On::Qemu10, net::no_offloads),
    ("net-no-mergeable", On::Qemu10, net::no_mergeable),
    ("net-plain", On::Ends, net::plain),
    ("two-queues", On::Ends, net::two_queues),
    ("two-queues-xdp", On::TwoCpus, net::two_queues_xdp),
    ("jumbo", On::Qemu10, net::jumbo),
    ("jumbo-no-offloads", On::Qemu10, net::jumbo_no_offloads),
    ("access-platform", On::Qemu10, net::access_platform),
    ("in-order", On::Qemu10, net::in_order),
    ("in-order-packet", On::Linux7, net::in_order_packet),
    ("vsock-in-order", On::Qemu10, vsock::transfer::in_order),
    ("config-space", On::Ends, net::config_space),
    ("large-datagrams", On::Qemu10, net::large_datagrams),
    ("two-guests", On::Qemu10, two_guests::one_is_killed),
    ("idle", On::Qemu10, net::idle),
    ("libvirt", On::Debian12, front_ends::by_libvirt),
    ("memory-file", On::Ends, front_ends::memory_file),
    ("ordinary-user", On::Debian12, front_ends::ordinary_user),
    ("net-send", On::Qemu10, send::net),
    ("net-stores", On::Qemu10, stores::net),
    ("vsock-many", On::Ends, vsock::many::many),
    ("vsock-siblings", On::Ends, vsock::siblings::siblings),
    ("vsock", On::All, vsock::transfer::base),
    ("vsock-restart", On::Ends, vsock::change::restart),
    ("vsock-groups", On::Ends, vsock::groups::change),
    ("vsock-sandbox", On::Ends, vsock::change::sandbox),
    ("vsock-ends", On::Qemu10, vsock::ends::ends),
    ("vsock-pci", On::Qemu10, vsock::pci::second_device),
    ("vsock-rx", On::Qemu10, vsock::rx::bench),
    ("vsock-send", On::Qemu10, vsock::send::vsock),
    ("vsock-credit", On::Qemu10, vsock::credit::one_way),
    ("vsock-stalled", On::Qemu10, vsock::stalled::stalled),
    ("vsock-memory-plug", On::Qemu10, vsock::change::memory_plug),
    ("xdp", On::TwoCpus, xdp::modes::zero_copy),
    ("xdp-program", On::Linux7, xdp::program::frames),
    ("xdp-memlock", On::Linux7, xdp::memlock::ordinary_user),
    ("xdp-address", On::Linux7, xdp::program::address),
    ("xdp-vlan", On::Linux7, xdp::program::vlan),
    ("xdp-two-queues", On::TwoCpus, xdp::queues::two),
    ("xdp-two-vms", On::TwoCpus, xdp::queues::two_vms),
    ("xdp-posts", On::Linux7, xdp::alone::posts),
    ("xdp-dirty-log", On::Linux7, xdp::alone::dirty),
    ("zcrx", On::Linux7, zcrx::no_device),
    ("zcrx-stores", On::Linux7, zcrx_stores::count),
    ("zcrx-tool", On::Linux7, zcrx_tool::tool),
    ("tls", On::Qemu10, tls::refuses_loans),
    ("vsock-zerocopy", On::Linux7, vsock::transfer::zerocopy),
    ("boot", On::All, harness::boot),
    ("vsock-loopback", On::Qemu10, harness::vsock_loopback),
];

/// The waiting and the long tests of all machines, then the others machine by machine.
pub fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    let groups = [(WAITING, true), (LONG, false), (TESTS, false)]
        .into_iter()
        .flat_map(|group| MACHINES.map(|machine| (machine, group)));
    for ((kernel, qemu, cpus), (group, waits)) in groups {
        for &(name, on, body) in group {
            if on.has(kernel, qemu, cpus) {
                let machine = Machine { cpus, ..Machine::new(kernel, qemu) };
                tests.push(Test { name, machine, body, waits });
            }
        }
    }
    tests
}
