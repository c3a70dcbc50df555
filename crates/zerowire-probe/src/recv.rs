//! Receive through io_uring: buffer rings, and zero-copy receive
//! (Documentation/networking/iou-zcrx.rst).
//!
//! A NIC's queue is never registered here: that would restart the queue under traffic. The line on
//! NICs says by the driver's name what a NIC can do.

use super::errno;
use super::uring::{Ring, UNTRIED};
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::trial::register_zcrx;
use zerowire_sys::uring::zcrx::{Abilities, ZcrxSource, abilities};

/// A queue of an interface that can't exist: the answer ENODEV shows that the kernel came as far as
/// looking for it.
pub(super) const NO_INTERFACE: ZcrxSource = ZcrxSource::Queue { interface: i32::MAX as u32, queue: 0 };

pub(super) fn check(todo: &mut Todo, ring: &Ring) {
    let subject = |id, path, title| Subject { id, group: Group::Recv, jobs: &[Job::Recv], path, title };
    todo.add(subject("recv.buffer_ring", "recv: provided buffers", "buffer rings"), || {
        translate_buffers(ring.as_ref().ok().map(|a| a.buffer_ring))
    });
    todo.add(subject("recv.zcrx", "recv: io_uring zcrx", "zero-copy receive"), || match ring {
        Err(_) => Finding::missing(UNTRIED, COPIES).remedy("See io_uring above."),
        Ok(a) if !a.recv_zc => translate_zcrx(None),
        Ok(_) => {
            let attempt = |source| register_zcrx(source).map_err(errno::number);
            translate_zcrx(Some((attempt(ZcrxSource::NoDevice), attempt(NO_INTERFACE))))
        }
    });
    todo.add(subject("recv.areas", "recv: io_uring zcrx", "more areas"), || {
        let has_zcrx = ring.as_ref().is_ok_and(|a| a.recv_zc);
        translate_areas(has_zcrx.then(has_more_areas))
    });
}

/// Whether the kernel says that areas can be added to a registration. It tells every user.
pub(super) fn has_more_areas() -> bool {
    abilities().is_some_and(Abilities::has_more_areas)
}

const COPIES: &str = "Received bytes are copied once, by the kernel, into provided buffers.";

fn translate_buffers(made: Option<Result<(), i32>>) -> Finding {
    let lost = "Each receive names its buffer: one system call a message.";
    match made {
        None => Finding::missing(UNTRIED, lost).remedy("See io_uring above."),
        Some(Ok(())) => Finding::ok(
            "a buffer ring was registered",
            "One multishot receive fills many buffers; one copy (kernel).",
        ),
        Some(Err(e)) => Finding::missing(errno::said("refused", e), lost).remedy("Boot Linux 5.19 or newer."),
    }
}

/// `None`: the kernel has no RECV_ZC. Else what came of registering without a device, and for a
/// device that isn't.
fn translate_zcrx(tried: Option<(Result<(), i32>, Result<(), i32>)>) -> Finding {
    let Some((nodev, device)) = tried else {
        return Finding::missing("not in this kernel", COPIES)
            .remedy("Boot Linux 6.15 or newer with CONFIG_IO_URING_ZCRX.");
    };
    let (Err(e), Err(d)) = (nodev, device) else {
        return Finding::ok(
            "registered without a device (ZCRX_REG_NODEV)",
            "Zero-copy receive runs everywhere: no copy with a NIC that splits headers (see NICs), else one (kernel).",
        );
    };
    match (e, d) {
        (libc::EPERM, _) => Finding::missing(errno::said("refused", e), COPIES)
            .remedy("Run with CAP_NET_ADMIN of the machine's own user namespace (root outside of containers)."),
        (libc::EINVAL | libc::EOPNOTSUPP, libc::ENODEV) => Finding::degraded(
            "for NIC queues only; ZCRX_REG_NODEV is not in this kernel",
            "Without a copy with a NIC that can (see NICs); on other interfaces bytes are copied once, by the kernel.",
        )
        .remedy("Boot Linux 7.1 or newer to use it on any interface."),
        (libc::ENOMEM, _) => Finding::degraded(errno::said("no memory to register", e), COPIES)
            .remedy("Raise the memlock limit: see registered memory."),
        _ => Finding::missing(
            format!("refused ({}; for a device: {})", errno::words(e), errno::words(d)),
            COPIES,
        )
        .remedy("Boot Linux 6.15 or newer with CONFIG_IO_URING_ZCRX."),
    }
}

/// `None`: zero-copy receive is missing. Else whether areas can be added.
fn translate_areas(more: Option<bool>) -> Finding {
    let lost = "A receiver keeps the buffers that it was made with.";
    match more {
        None => Finding::missing("no zero-copy receive", lost).remedy("See zero-copy receive above."),
        Some(true) => Finding::ok(
            "can be added to a receiver (ZCRX_CTRL_ADD_AREA)",
            "A receiver is given more buffers while it works, where its memory is known only then.",
        ),
        Some(false) => Finding::degraded("none but the first; ZCRX_CTRL_ADD_AREA is not in this kernel", lost).remedy(
            "Boot Linux 7.3 or newer; here, give a receiver all its buffers when it is made, or make several receivers.",
        ),
    }
}

#[cfg(test)]
mod tests;
