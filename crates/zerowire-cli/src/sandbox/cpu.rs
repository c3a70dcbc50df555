//! The CPU time of children, which counts on when they have ended.

use std::sync::{Arc, Mutex};

use super::lock;

/// What all children of a supervisor have told, those that have ended included, seconds. It never
/// falls. Clones are the same sum.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuSum(Arc<Mutex<f64>>);

impl CpuSum {
    pub(crate) fn seconds(&self) -> f64 {
        *lock(&self.0)
    }

    /// Without a child yet.
    pub(crate) fn share(&self) -> CpuShare {
        CpuShare { sum: self.clone(), told: 0.0 }
    }
}

/// The part of one child after the other.
#[derive(Debug, Default)]
pub(crate) struct CpuShare {
    sum: CpuSum,
    /// What the child that runs has told, seconds.
    told: f64,
}

impl CpuShare {
    /// The child that runs has told this, seconds. Less than before is a late answer, or a lie.
    pub(crate) fn tell(&mut self, seconds: f64) {
        let more = (seconds - self.told).max(0.0);
        self.told += more;
        *lock(&self.sum.0) += more;
    }

    /// The child has ended. The next one begins at 0.
    pub(crate) fn restart(&mut self) {
        self.told = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_outlives_children_and_never_falls() {
        let sum = CpuSum::default();
        let (mut one, mut other) = (sum.share(), sum.share());
        one.tell(2.0);
        other.tell(8.0);
        one.tell(1.0);
        assert_eq!(sum.seconds(), 10.0, "a late answer");
        one.restart();
        one.tell(0.5);
        one.tell(4.0);
        drop(other);
        assert_eq!(sum.seconds(), 14.0);
        drop(one);
        assert_eq!(sum.seconds(), 14.0);
    }
}
