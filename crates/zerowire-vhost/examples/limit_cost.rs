//! What a limit of the rate costs a frame, by the length of a batch: a turn's question, the count
//! of each frame, and the answer. Single-threaded, everything in cache.
//!
//! `cargo run --release -p zerowire-vhost --example limit_cost`

use std::hint::black_box;
use std::time::Instant;

use zerowire_vhost::limit::{Limit, LimitPace, Limiter, Meter};

const FRAMES: usize = 4_000_000;
const RUNS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // So high that nothing ever waits.
    let limit: Limit = "1T/s,burst=1000T,ops=1T/s,ops-burst=1000T".parse()?;
    println!("frames a turn       off        on  (ns a frame; median of {RUNS} runs)");
    for batch in [1, 8, 64] {
        let mut medians = [None, Some(limit)].map(|limit| {
            let mut runs: Vec<_> = (0..RUNS).map(|_| run(&Limiter::new(limit), batch)).collect();
            runs.sort_by(f64::total_cmp);
            runs[RUNS / 2]
        });
        // The count alone is there either way.
        medians.iter_mut().for_each(|ns| *ns /= FRAMES as f64);
        println!("{batch:13}  {:8.2}  {:8.2}", medians[0], medians[1]);
    }
    Ok(())
}

/// Nanoseconds of all frames.
fn run(limiter: &Limiter, batch: usize) -> f64 {
    let (mut pace, mut meter) = (LimitPace::default(), Meter::default());
    let start = Instant::now();
    for _ in 0..FRAMES / batch {
        if let Some(allowed) = pace.begin(limiter, Instant::now) {
            meter = Meter::new(allowed);
        }
        for _ in 0..batch {
            if !meter.has_room() {
                break;
            }
            meter.pass(black_box(64));
        }
        if pace.is_on() {
            pace.passed(limiter, meter.passed(), Instant::now);
        }
    }
    black_box(&meter);
    start.elapsed().as_secs_f64() * 1e9
}
