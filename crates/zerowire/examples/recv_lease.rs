//! Nanoseconds that a received lease costs the receiver and the program: taking its completion,
//! lending it, dropping it, collecting it, and writing its buffer to the ring that hands it to the
//! kernel; and of that the book's part alone. No kernel and no copy. CPU time of the thread, in
//! which other programs' turns don't count: `cargo run --release -p zerowire --example recv_lease`.

use std::time::Instant;
use zerowire::recv::testing::{Cycle, Refill};
use zerowire::recv::{RecvBackend, RecvOptions};

const ROUNDS: usize = 20_000;
const BATCH: usize = 32;

fn main() -> Result<(), zerowire::recv::RecvError> {
    let options = RecvOptions::default().buffer_bytes(4096).buffers(256).share(Some(256));
    let nodev = options.clone().backend(RecvBackend::NoDevice);
    whole("multishot, posted to the ring of buffers", Refill::multishot(&options));
    whole("zcrx, written to the refill ring", Refill::zcrx(&nodev));
    let mut cycle = Cycle::new(&options)?;
    let mut out = Vec::with_capacity(BATCH);
    let mut samples = Vec::new();
    for _ in 0..21 {
        let begin = cpu_nanoseconds();
        for _ in 0..ROUNDS {
            cycle.lend(BATCH, &mut out);
            out.clear();
            cycle.collect();
        }
        samples.push((cpu_nanoseconds() - begin) / (ROUNDS * BATCH) as f64);
    }
    samples.sort_by(f64::total_cmp);
    println!("of that, the book alone: {:.1} ns a lease (median of {})", samples[10], samples.len());
    // Dropped on another thread, which shares the words with this one.
    let mut samples = Vec::new();
    for _ in 0..11 {
        let (send, work) = std::sync::mpsc::sync_channel::<Vec<_>>(4);
        let worker = std::thread::spawn(move || work.into_iter().for_each(drop));
        let (begin, mut lent) = (Instant::now(), 0);
        while lent < ROUNDS * BATCH {
            let mut batch = Vec::with_capacity(BATCH);
            lent += cycle.lend(BATCH, &mut batch);
            if send.send(batch).is_err() {
                break;
            }
            cycle.collect();
        }
        samples.push(begin.elapsed().as_nanos() as f64 / lent as f64);
        drop(send);
        drop(worker.join());
        cycle.collect();
    }
    samples.sort_by(f64::total_cmp);
    println!("the book, two threads: {:.1} ns of time a lease, the channel included", samples[5]);
    Ok(())
}

/// A lease and its refill, all of it, on one thread.
fn whole(name: &str, refill: Result<Refill, zerowire::recv::RecvError>) {
    let mut refill = match refill {
        Ok(refill) => refill,
        Err(e) => return println!("{name}: {e}"),
    };
    let mut out = Vec::with_capacity(BATCH);
    let mut samples = Vec::new();
    for _ in 0..21 {
        let (begin, mut lent) = (cpu_nanoseconds(), 0);
        for _ in 0..ROUNDS {
            refill.refill();
            refill.lend(BATCH, &mut out);
            lent += out.len();
            out.clear();
        }
        samples.push((cpu_nanoseconds() - begin) / lent.max(1) as f64);
    }
    samples.sort_by(f64::total_cmp);
    println!("{name}: {:.1} ns a lease with its refill (median of {})", samples[10], samples.len());
}

/// CPU time of this thread.
fn cpu_nanoseconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
