//! Nanoseconds that a received lease costs the receiver and the program: lending it, dropping it, and taking its buffer
//! back. No kernel and no copy: `cargo run --release -p zerowire --example recv_lease`.

use std::time::Instant;
use zerowire::recv::Options;
use zerowire::recv::testing::Cycle;

const ROUNDS: usize = 20_000;
const BATCH: usize = 32;

fn main() -> Result<(), zerowire::recv::RecvError> {
    let options = Options { buffer_bytes: 4096, buffers: 256, share: Some(256), ..Options::default() };
    let mut cycle = Cycle::new(&options)?;
    let mut out = Vec::with_capacity(BATCH);
    let mut samples = Vec::new();
    for _ in 0..21 {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            cycle.lend(BATCH, &mut out);
            out.clear();
            cycle.collect();
        }
        samples.push(begin.elapsed().as_nanos() as f64 / (ROUNDS * BATCH) as f64);
    }
    samples.sort_by(f64::total_cmp);
    println!("one thread: {:.1} ns a lease with its refill (median of {})", samples[10], samples.len());
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
    println!("two threads: {:.1} ns of time a lease, the channel included", samples[5]);
    Ok(())
}
