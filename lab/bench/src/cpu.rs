//! CPU time and CPU placement.
//!
//! The CPU time of a back end is that of all its threads. The kernel's worker threads for io_uring
//! count too: they belong to the process that made the ring.
//!
//! The clock of a process is exact to the nanosecond for threads that sleep. A thread that runs on
//! another CPU is counted up to its last timer tick or context switch only. The kernel brings only
//! the caller's own group up to date (kernel/time/posix-cpu-timers.c). So a sample begins and ends
//! when the process has gone to sleep: [`ProcessClock::settled`] waits for that.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys;

/// How long a process must show the same CPU time to count as asleep. A running thread switches
/// contexts or ticks within a timer tick, which takes 10 ms on the slowest usual kernel (100 Hz).
/// More than that isn't needed.
pub const QUIET: Duration = Duration::from_millis(5);

/// The clock over all threads of a process, or of several.
#[derive(Debug, Clone)]
pub struct ProcessClock {
    clocks: Vec<libc::clockid_t>,
}

impl ProcessClock {
    /// The clock of process `pid`. Fails with `ESRCH` when that process does not exist.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::of_all(&[pid])
    }

    /// The clock that shows the sum of these processes' CPU time.
    pub fn of_all(pids: &[u32]) -> io::Result<Self> {
        let clocks = pids.iter().map(|pid| sys::process_clock(*pid as libc::pid_t));
        Ok(Self { clocks: clocks.collect::<io::Result<_>>()? })
    }

    /// The clock of this process.
    pub fn own() -> Self {
        Self { clocks: vec![libc::CLOCK_PROCESS_CPUTIME_ID] }
    }

    /// CPU time used so far, user and system. Fails when a process has been reaped.
    pub fn now(&self) -> io::Result<Duration> {
        self.clocks.iter().map(|clock| sys::read_clock(*clock)).sum()
    }

    /// Waits until the process sleeps, then returns its CPU time.
    ///
    /// Gives up waiting after `limit`: then the process polls, and the second value is false. The
    /// error of the figure is up to one timer tick in that case.
    pub fn settled(&self, limit: Duration) -> io::Result<(Duration, bool)> {
        let start = Instant::now();
        let mut last = self.now()?;
        loop {
            std::thread::sleep(QUIET);
            let now = self.now()?;
            if now == last {
                return Ok((now, true));
            }
            if start.elapsed() >= limit {
                return Ok((now, false));
            }
            last = now;
        }
    }
}

/// The clock of one thread of this process, readable by its other threads; exact while the thread
/// sleeps.
#[derive(Debug, Clone, Copy)]
pub struct ThreadClock {
    clock: libc::clockid_t,
}

impl ThreadClock {
    /// The clock of the calling thread.
    pub fn own() -> Self {
        // MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED and CPUCLOCK_PERTHREAD_MASK
        // (include/linux/posix-timers_types.h).
        Self { clock: (!rustix::thread::gettid().as_raw_nonzero().get() << 3) | 2 | 4 }
    }

    /// CPU time used so far, user and system. Fails when the thread has ended.
    pub fn now(self) -> io::Result<Duration> {
        sys::read_clock(self.clock)
    }
}

/// How often the threads of process `pid` have gone to sleep so far (proc_pid_status(5),
/// voluntary_ctxt_switches).
pub fn sleeps_of(pid: u32) -> io::Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that has ended meanwhile slept no more.
        let text = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        total += voluntary_switches(&text);
    }
    Ok(total)
}

/// How often the calling thread has gone to sleep so far.
pub fn own_sleeps() -> u64 {
    voluntary_switches(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default())
}

fn voluntary_switches(status: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// CPU time of the calling thread, exact.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPUs that this thread may use, and which side of the benchmark gets which.
///
/// With two CPUs or more the driver (generator, guest) has one to itself. The side that is measured
/// has the others, so neither takes the other's time.
#[derive(Debug, Clone)]
pub struct Placement {
    all: CpuSet,
    driver: usize,
    worker: Option<usize>,
}

impl Placement {
    /// Looks at the affinity of the calling thread. The first CPU becomes the driver's, the second
    /// the worker's.
    pub fn detect() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
        let driver = allowed.next().unwrap_or(0);
        let worker = allowed.next();
        Ok(Self { all, driver, worker })
    }

    /// Puts the calling thread on the driver's CPU. Threads and children started later inherit it.
    pub fn pin_driver(&self) -> io::Result<()> {
        self.pin(self.driver)
    }

    /// Puts the calling thread on the worker's CPU; does nothing on a machine with a single CPU.
    pub fn pin_worker(&self) -> io::Result<()> {
        match self.worker {
            Some(cpu) => self.pin(cpu),
            None => Ok(()),
        }
    }

    /// Puts another thread or process, a kernel thread included, on the worker's CPU; does nothing
    /// with a single CPU.
    pub fn pin_task_to_worker(&self, task: u32) -> io::Result<()> {
        let (Some(cpu), Some(task)) = (self.worker, rustix::process::Pid::from_raw(task as i32)) else {
            return Ok(());
        };
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(sched_setaffinity(Some(task), &set)?)
    }

    /// Gives the calling thread every CPU but the driver's; does nothing with a single CPU. A child
    /// started now inherits it.
    pub fn avoid_driver(&self) -> io::Result<()> {
        if self.worker.is_none() {
            return Ok(());
        }
        let mut set = self.all;
        set.unset(self.driver);
        Ok(sched_setaffinity(None, &set)?)
    }

    /// Gives the calling thread all CPUs back.
    pub fn unpin(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.all)?)
    }

    /// The number of the worker's CPU; with a single CPU that of the only one.
    pub fn worker_cpu(&self) -> usize {
        self.worker.unwrap_or(self.driver)
    }

    /// Whether the measured side has a CPU that the driver does not use.
    pub fn separate(&self) -> bool {
        self.worker.is_some()
    }

    fn pin(&self, cpu: usize) -> io::Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(sched_setaffinity(None, &set)?)
    }
}

/// Runs `work` on a thread of its own, on the worker's CPU; its CPU and wall time.
///
/// # Errors
/// As `work`, or the thread can't be moved there.
pub fn on_worker(
    placement: &Placement,
    work: impl FnOnce() -> Result<()> + Send,
) -> Result<(Duration, Duration)> {
    std::thread::scope(|scope| {
        let run = || {
            placement.pin_worker()?;
            let (wall, cpu) = (Instant::now(), thread_time());
            work()?;
            Ok((thread_time() - cpu, wall.elapsed()))
        };
        scope.spawn(run).join().map_err(|_| anyhow!("a thread that was measured panicked"))?
    })
}

#[cfg(test)]
mod tests;
