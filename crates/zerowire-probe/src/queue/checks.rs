//! The checks of one queue: from facts to findings. Pure functions.
//!
//! *Missing* is what makes the registration fail (`__net_mp_open_rxq`, net/core/netdev_rx_queue.c,
//! and `io_register_zcrx_ifq`, io_uring/zcrx.c); *degraded* is what lets it succeed and then brings
//! no data, or copies.

use super::super::{Finding, errno, nic};
use super::facts::{Facts, Kernel, Ntuple};
use zerowire_sys::netlink::{DataSplit, LinkInfo};

/// The interface and queue that were asked about, for the texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub interface: &'a str,
    pub queue: Option<u32>,
}

impl Asked<'_> {
    fn queue_word(&self) -> String {
        self.queue.map_or_else(|| "a queue".to_owned(), |q| format!("queue {q}"))
    }
}

const REFUSED: &str = "The registration fails: received bytes are copied once, by the kernel.";

pub(super) fn interface(asked: &Asked<'_>, link: Result<&LinkInfo, i32>) -> Finding {
    match link {
        Ok(link) => {
            let kind = link.kind.as_deref().map(|k| format!(", a {k}")).unwrap_or_default();
            let parent = link.parent.as_deref().map_or(", no device behind it".to_owned(), |p| format!(", {p}"));
            let mtu = link.mtu.map(|m| format!(", MTU {m}")).unwrap_or_default();
            Finding::ok(format!("number {}{kind}{parent}{mtu}", link.index), "It is here.")
        }
        Err(libc::ENODEV) => Finding::missing(
            format!("no interface {} in this network namespace", asked.interface),
            "Nothing can be registered.",
        )
        .remedy(
            "'ip link' lists those of this namespace; 'ip netns exec NAME zerowire doctor …' asks in another one, as does \
             a run inside the container.",
        ),
        Err(e) => Finding::missing(
            format!("{} can't be looked up ({})", asked.interface, errno::words(e)),
            "Nothing is known of it.",
        )
        .remedy("'strace -e network zerowire doctor' shows the call; a seccomp filter must let AF_NETLINK through."),
    }
}

pub(super) fn up(link: &LinkInfo) -> Finding {
    let set = format!("'ip link set dev {} up'.", link.name);
    match (link.is_up, link.is_running) {
        (true, true) => Finding::ok("up, and frames can pass", "Data can arrive."),
        (true, false) => Finding::degraded("up, but without carrier", "No data arrives.")
            .remedy("Plug the cable in, or set the other end up."),
        (false, _) => Finding::degraded(
            "down",
            "No data arrives, the queues can't be looked at, and some drivers refuse the registration.",
        )
        .remedy(format!("Set it up: {set}")),
    }
}

pub(super) fn driver(facts: &Facts) -> Finding {
    let name = facts.driver.as_deref().unwrap_or("no driver name");
    let list = nic::SPLITTING.join(", ");
    let remedy = format!(
        "A NIC with one of the drivers {list}. Without one: Linux 7.1 or newer receives on any interface at one copy \
         (ZCRX_REG_NODEV), every version into provided buffers."
    );
    if facts.has_known_driver() {
        return Finding::ok(
            format!("{name}, known to have queue management operations"),
            "The kernel can hand a queue of it to io_uring, if the NIC's generation and firmware allow it.",
        );
    }
    if facts.link.parent.is_none() && facts.link.kind.is_some() || facts.link.name == "lo" {
        return Finding::missing(format!("{name}: a virtual interface, without queues of a NIC"), REFUSED)
            .remedy(remedy);
    }
    if facts.data_split().is_some() {
        return Finding::degraded(
            format!(
                "{name}, not among those known to have queue management operations, but it splits headers"
            ),
            "Whether the registration works is only known when it is tried.",
        )
        .remedy(remedy);
    }
    Finding::missing(format!("{name}: no queue management operations known"), REFUSED).remedy(remedy)
}

pub(super) fn queue_number(asked: &Asked<'_>, facts: &Facts) -> Finding {
    let Some(count) = facts.receive_queues() else {
        return Finding::degraded(
            "neither kernel nor driver tell how many queues there are",
            "Whether the number is right is only known when it is tried.",
        );
    };
    let most = facts.channels.as_ref().map_or(count, |c| c.receive_queues_max()).max(count);
    let there = match count {
        0 => "no receive queue in use".to_owned(),
        1 => "1 receive queue in use: 0".to_owned(),
        n => format!("{n} receive queues in use: 0 to {}", n - 1),
    };
    let Some(queue) = asked.queue else {
        return match count {
            0 => Finding::missing(there, REFUSED),
            1 => Finding::degraded(
                there,
                "It takes all that the interface receives, other programs' data too.",
            )
            .remedy(more_queues(facts, 2, most)),
            _ => Finding::ok(
                there,
                "One of them can be given to a program; the last one is the simplest to leave out of RSS.",
            ),
        };
    };
    if queue < count {
        return Finding::ok(there, "The queue is there.");
    }
    let fewer = if count > 0 { format!("Take -q {}. ", count - 1) } else { String::new() };
    Finding::missing(format!("no queue {queue}: {there}"), "The registration fails (ERANGE).")
        .remedy(format!("{fewer}{}", more_queues(facts, queue.saturating_add(1), most)))
}

fn more_queues(facts: &Facts, want: u32, most: u32) -> String {
    if want <= most {
        format!("For more: '{}' (the most is {most}).", facts.queues_command(want))
    } else {
        format!("The interface can have {most} at the most.")
    }
}

pub(super) fn header_split(asked: &Asked<'_>, facts: &Facts) -> Finding {
    let set = format!("'ethtool -G {} tcp-data-split on'", asked.interface);
    match (&facts.rings, facts.data_split()) {
        (_, Some(DataSplit::On)) => {
            Finding::ok("on (tcp-data-split)", "Payload lies alone in its buffers: no copy is needed.")
        }
        (_, Some(DataSplit::Off)) => {
            Finding::missing("off (tcp-data-split)", "The registration fails (EINVAL).")
                .remedy(format!("{set}."))
        }
        (Ok(_), None) => {
            Finding::missing("the driver doesn't tell of header split", REFUSED).remedy(format!(
                "{set} tells whether it can; else a NIC with one of the drivers {}.",
                nic::SPLITTING.join(", ")
            ))
        }
        (Err(e), None) => Finding::missing(errno::said("the driver tells nothing of its rings", *e), REFUSED)
            .remedy(format!("A NIC with one of the drivers {}.", nic::SPLITTING.join(", "))),
    }
}

pub(super) fn split_threshold(asked: &Asked<'_>, facts: &Facts) -> Finding {
    match facts.rings.as_ref().ok().and_then(|r| r.hds_thresh) {
        Some(0) => Finding::ok(
            "0 (hds-thresh): frames of all lengths are split",
            "Short frames arrive without a copy too.",
        ),
        None => {
            Finding::ok("none told (hds-thresh)", "The driver splits all frames, or none: see header split.")
        }
        Some(bytes) => Finding::missing(
            format!("{bytes} bytes (hds-thresh): shorter frames are not split"),
            "The registration fails (EINVAL).",
        )
        .remedy(format!("'ethtool -G {} hds-thresh 0'.", asked.interface)),
    }
}

pub(super) fn xdp(link: &LinkInfo) -> Finding {
    let Some((place, program)) = link.xdp else {
        return Finding::ok("no XDP program attached", "Nothing is in the way of the registration.");
    };
    let which = program.map_or_else(|| "an XDP program".to_owned(), |id| format!("XDP program {id}"));
    let show = program.map_or("bpftool net show".to_owned(), |id| format!("bpftool prog show id {id}"));
    Finding::missing(format!("{which} is attached ({})", place.keyword()), "The registration fails (EEXIST).").remedy(
        format!(
            "End its owner ('{show}', 'bpftool link show'), or where it was attached by hand: 'ip link set dev {} {} off'.",
            link.name,
            place.keyword()
        ),
    )
}

pub(super) fn user(asked: &Asked<'_>, facts: &Facts) -> Finding {
    let untold = |why: String| {
        Finding::degraded(why, "Whether somebody uses the queue is only known when it is tried.")
    };
    let queues = match &facts.queues {
        Err(e) => {
            return untold(errno::said("the kernel doesn't tell", *e)).remedy("Boot Linux 6.15 or newer.");
        }
        Ok(_) if !facts.link.is_up => {
            return untold("the kernel doesn't tell while the interface is down".to_owned());
        }
        Ok(queues) => queues,
    };
    let Some(id) = asked.queue else {
        let taken: Vec<_> =
            queues.iter().filter_map(|q| Some(format!("{} by {}", q.id, q.user?.name()))).collect();
        return match (taken.len(), queues.len()) {
            (0, _) => Finding::ok("no queue is taken", "Each can be registered."),
            (n, all) if n < all => Finding::ok(
                format!("{n} of {all} taken: {}", taken.join(", ")),
                "The others can be registered.",
            ),
            (n, _) => {
                Finding::missing(format!("all {n} taken: {}", taken.join(", ")), "The registration fails.")
                    .remedy("End a program that uses one.")
            }
        };
    };
    match facts.queue(id) {
        None => untold(format!("the kernel doesn't list queue {id}")),
        Some(q) => match q.user {
            None => Finding::ok("used by the kernel's own stack only", "It can be registered."),
            Some(user) => Finding::missing(
                format!("queue {id} is taken by {}", user.name()),
                "The registration fails (EBUSY or EEXIST).",
            )
            .remedy("End that program ('ss --xdp -p' lists AF_XDP sockets, 'lsof' io_uring rings), or take another queue."),
        },
    }
}

pub(super) fn admin(kernel: &Kernel, is_held: bool) -> Finding {
    if kernel.device != libc::EPERM {
        return if kernel.ring.is_err() && !is_held {
            Finding::missing("not held", "The registration fails (EPERM).").remedy(ADMIN)
        } else {
            Finding::ok("allowed to register", "The kernel asks for CAP_NET_ADMIN at registration only.")
        };
    }
    let found = if is_held { "held, but not in the machine's first user namespace" } else { "not held" };
    Finding::missing(found, "The registration fails (EPERM).").remedy(ADMIN)
}

/// The kernel asks `capable`, not `ns_capable`: io_uring/zcrx.c.
pub(super) const ADMIN: &str = "Run as root, 'sudo setcap cap_net_admin+ep PROGRAM', or AmbientCapabilities=CAP_NET_ADMIN in the \
     systemd unit: it counts in the machine's first user namespace only, so not as root of a rootless container.";

pub(super) fn kernel(kernel: &Kernel, release: &str) -> Finding {
    let boot = "Boot Linux 6.15 or newer with CONFIG_IO_URING_ZCRX (7.1 or newer also receives without a NIC's queue).";
    if let Err(e) = kernel.ring {
        // Without any ring nothing can be said of the operation.
        if !kernel.recv_zc {
            return Finding::missing(
                format!("Linux {release}: not known, since there is no ring ({})", errno::words(e)),
                REFUSED,
            )
            .remedy("See the ring below.");
        }
    }
    if !kernel.recv_zc {
        return Finding::missing(format!("Linux {release} has no zero-copy receive"), REFUSED).remedy(boot);
    }
    match (kernel.device, kernel.nodev) {
        (libc::ENODEV, Ok(())) => Finding::ok(
            format!("Linux {release}: queues of NICs, and without a device (ZCRX_REG_NODEV)"),
            "Where the queue can't be had, the kernel copies once into the same memory.",
        ),
        (libc::ENODEV, Err(_)) => Finding::ok(
            format!("Linux {release}: queues of NICs; without a device (ZCRX_REG_NODEV) from 7.1 on"),
            "Where the queue can't be had, provided buffers take the data, at one copy.",
        ),
        (libc::EPERM, _) => Finding::ok(
            format!("Linux {release} has zero-copy receive"),
            "Whether it registers is seen with CAP_NET_ADMIN only.",
        ),
        (libc::ENOMEM, _) => Finding::degraded(
            format!("Linux {release} has zero-copy receive, but there was no memory to try it (ENOMEM)"),
            "A larger area is refused as well.",
        )
        .remedy("Raise the limit of locked memory ('ulimit -l', LimitMEMLOCK=), or grant CAP_IPC_LOCK."),
        (e, _) => Finding::missing(
            format!("Linux {release}: registering is refused ({})", errno::words(e)),
            REFUSED,
        )
        .remedy(boot),
    }
}

pub(super) fn areas(kernel: &Kernel) -> Finding {
    if kernel.more_areas {
        return Finding::ok(
            "more can be added to a receiver (ZCRX_CTRL_ADD_AREA)",
            "It is given more buffers while it works.",
        );
    }
    Finding::ok(
        "the one that is registered; more from Linux 7.3 on (ZCRX_CTRL_ADD_AREA)",
        "A receiver is given all its buffers when it is made.",
    )
}

pub(super) fn ring(kernel: &Kernel) -> Finding {
    match kernel.ring {
        Ok(()) => Finding::ok(
            "32-byte completions (CQE32), deferred task work",
            "A ring as the registration wants it can be made.",
        ),
        Err(libc::EINVAL) => Finding::missing("no ring with CQE32 and DEFER_TASKRUN (EINVAL)", REFUSED)
            .remedy("Boot Linux 6.15 or newer."),
        Err(e) => Finding::missing(errno::said("no ring", e), REFUSED)
            .remedy("'zerowire doctor --path recv' says who refuses io_uring, and what to change."),
    }
}

pub(super) fn rss(asked: &Asked<'_>, facts: &Facts) -> Finding {
    let queue_word = asked.queue_word();
    match (&facts.rss, asked.queue) {
        (Ok(rss), Some(queue)) if !rss.table.is_empty() => {
            let (own, all) = rss.share(queue);
            if own == 0 {
                return Finding::ok(
                    format!("leaves queue {queue} out: none of {all} entries"),
                    "Only flows that a rule steers arrive there.",
                );
            }
            let f = Finding::degraded(
                format!("sends other flows to queue {queue} too: {own} of {all} entries"),
                "Data of other programs lands in the area, takes its buffers, and is copied out again for them.",
            );
            let count = facts.receive_queues().unwrap_or(1);
            match super::advice::rss_command(asked.interface, queue, count) {
                Some(command) => f.remedy(format!("Leave the queue out: '{command}'.")),
                None => f.remedy(format!(
                    "There is one queue only: '{}' makes a second one, if it can have it.",
                    facts.queues_command(2)
                )),
            }
        }
        (Ok(rss), None) if !rss.table.is_empty() => {
            let used = rss.table.iter().max().map_or(0, |q| q.saturating_add(1));
            Finding::ok(
                format!("{} entries over queues 0 to {}", rss.table.len(), used.saturating_sub(1)),
                "Name a queue with -q to see whether it is left out.",
            )
        }
        _ => Finding::degraded(
            "the driver tells no indirection table",
            format!("Which flows arrive at {queue_word} is not known."),
        ),
    }
}

pub(super) fn steering(asked: &Asked<'_>, facts: &Facts) -> Finding {
    let i = asked.interface;
    let q = asked.queue.map_or_else(|| "QUEUE".to_owned(), |q| q.to_string());
    let add = format!("'ethtool -N {i} flow-type tcp6 dst-port PORT action {q}' (tcp4 for IPv4)");
    let turn_on = match facts.ntuple {
        Some(Ntuple::Off) => format!("'ethtool -K {i} ntuple on', then "),
        _ => String::new(),
    };
    let rules = match &facts.rules {
        Err(e) => {
            return Finding::degraded(
                errno::said("the driver takes no flow steering rules", *e),
                "RSS alone decides which flows arrive: with one queue all, with several a part of them.",
            )
            .remedy("A NIC with flow steering, or one queue ('ethtool -L').");
        }
        Ok(rules) => rules,
    };
    let Some(queue) = asked.queue else {
        let there = if rules.is_empty() { "no rule".to_owned() } else { format!("{} rules", rules.len()) };
        return if matches!(facts.ntuple, Some(Ntuple::Off)) {
            Finding::degraded(
                format!("{there}; rules are off (ntuple)"),
                "No flow can be steered to a queue.",
            )
            .remedy(format!("'ethtool -K {i} ntuple on'."))
        } else {
            Finding::ok(there, format!("One more steers a port: {add}."))
        };
    };
    let own: Vec<_> = facts
        .rules_for(queue)
        .map(|r| {
            let port = r.port.map(|p| format!(" port {p}")).unwrap_or_default();
            format!("{} ({}{port})", r.location, r.flow)
        })
        .collect();
    if own.is_empty() {
        Finding::degraded(
            format!("no rule sends a flow to queue {queue}"),
            "No data arrives there but by RSS.",
        )
        .remedy(format!("Steer the program's port: {turn_on}{add}."))
    } else {
        Finding::ok(format!("rules to queue {queue}: {}", own.join(", ")), "Their flows arrive there.")
    }
}

pub(super) fn buffer_len(facts: &Facts) -> Finding {
    match facts.rings.as_ref().ok().and_then(|r| r.rx_buf_len) {
        Some(bytes) => Finding::ok(
            format!("{} (rx-buf-len)", errno::size(bytes.into())),
            "Larger buffers make fewer completions, where the driver can be asked for them at registration.",
        ),
        None => Finding::ok("not told (rx-buf-len)", "The area is cut into pages."),
    }
}
