//! What a VM's children have told, summed up.

use super::cpu::CpuShare;
use super::figures::{Figures, add, keep_counters};

/// What the child that runs has told last, and what those before it had told last. What a child
/// moved behind that is not counted.
#[derive(Debug, Default)]
pub(crate) struct Sums<F> {
    before: F,
    /// What the child that runs has told.
    pub(crate) now: F,
    cpu: CpuShare,
    /// Whether a front end is connected, as the child that runs says.
    pub(crate) connected: bool,
    /// Children that died and were replaced.
    pub(crate) restarts: u64,
    /// Why the last child ended.
    pub(crate) death: Option<String>,
}

impl<F: Figures> Sums<F> {
    /// Before the first child.
    pub(crate) fn new(cpu: CpuShare) -> Self {
        Self { cpu, ..Self::default() }
    }

    /// The child that runs has told this.
    pub(crate) fn told(&mut self, mut figures: F) {
        self.cpu.tell(figures.cpu_seconds());
        keep_counters(&mut figures, &mut self.now);
        self.now = figures;
    }

    /// The child has ended, and why if that is an error of this VM's.
    pub(crate) fn died(&mut self, why: Option<&str>) {
        self.cpu.restart();
        add(&mut self.before, std::mem::take(&mut self.now));
        self.connected = false;
        self.death = why.map(|why| format!("its process ended: {why}")).or(self.death.take());
    }

    /// What all children have told, without reasons that never were one.
    pub(crate) fn sum(&self) -> F {
        let mut sum = self.before.clone();
        add(&mut sum, self.now.clone());
        sum.forget_unused();
        sum
    }
}
