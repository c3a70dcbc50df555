//! The kernel's version. It decides nothing (the other checks try the thing itself); it tells a
//! reader what an upgrade would bring.

use super::{Finding, Group, Job, MachineFacts, Subject, Todo};

/// What came with which version, oldest first.
const STEPS: [((u32, u32), &str); 4] = [
    ((6, 1), "io_uring without cross-CPU wake-ups (DEFER_TASKRUN)"),
    ((6, 2), "UDP segmentation on taps (USO)"),
    ((6, 15), "sends of scatter lists from registered memory, and zero-copy receive (zcrx)"),
    ((7, 1), "zero-copy receive without a special NIC, at one copy (ZCRX_REG_NODEV)"),
];

/// The newest version that a built job gains from: nothing is degraded from there on.
const BEST: (u32, u32) = (6, 15);

pub(super) fn check(todo: &mut Todo, machine: &MachineFacts) {
    let names = ["kernel.version", "all: kernel", "kernel"];
    todo.add(Subject::new(Group::Shared, &Job::ALL, names), || translate(&machine.kernel));
}

fn translate(release: &str) -> Finding {
    let found = format!("Linux {release}");
    let Some(version) = parse(release) else {
        return Finding::degraded(found, "The version can't be read from that; the other checks count.");
    };
    let newer: Vec<_> =
        STEPS.iter().filter(|(v, _)| *v > version).map(|((a, b), what)| format!("{a}.{b}: {what}")).collect();
    if newer.is_empty() {
        return Finding::ok(found, "All that zerowire knows to use is in this version.");
    }
    let list = format!("Newer versions add {}.", newer.join("; "));
    if version >= BEST {
        Finding::ok(found, list)
    } else {
        Finding::degraded(found, list)
            .remedy("Boot Linux 6.15 or newer. Debian: the kernel of backports; Ubuntu: the HWE kernel.")
    }
}

/// Major and minor number of a release such as `6.18.4-cloud-amd64`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(parse("6.18.4-cloud-amd64"), Some((6, 18)));
        assert_eq!(parse("7.3-rc1"), Some((7, 3)));
        assert_eq!(parse("custom"), None);
    }

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        let f = translate("6.1.0-40-amd64");
        assert_eq!(f.outcome, CheckOutcome::Degraded);
        assert!(f.consequence.contains("6.2:") && f.consequence.contains("zcrx"));
        assert!(!f.consequence.contains("6.1:"));
        assert!(f.remedy.is_some());
        assert_eq!(translate("6.15.0").outcome, CheckOutcome::Ok);
        assert_eq!(translate("7.3.1").outcome, CheckOutcome::Ok);
        assert_eq!(translate("custom").outcome, CheckOutcome::Degraded);
    }
}
