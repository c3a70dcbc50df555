//! Latency of small messages beside bulk data, and the CPU time of receiving both:
//! `cargo run --release -p zerowire --example recv_beside`.
//!
//! One thread sends a burst of 192 KiB on one connection every 2 ms and, up to 0.6 ms later, a
//! message of 16 bytes on another. The receiver has default options, or never waits for more
//! (`gather` zero). The ways take turns.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use zerowire::recv::{Receiver, RecvBackend, RecvOptions, What};

const BURST: usize = 192 << 10;
const PERIOD: Duration = Duration::from_millis(2);
const MESSAGES: u32 = 250;
const ROUNDS: usize = 5;

fn cpu() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let a = TcpStream::connect(listener.local_addr()?)?;
    a.set_nodelay(true)?;
    Ok((a, listener.accept()?.0))
}

fn send(mut bulk: TcpStream, mut messages: TcpStream, start: Instant) -> io::Result<()> {
    let burst = vec![1u8; BURST];
    for i in 0..MESSAGES {
        bulk.write_all(&burst)?;
        let then = Instant::now() + Duration::from_micros(100) * (i % 7);
        while Instant::now() < then {
            std::hint::spin_loop();
        }
        messages.write_all(&(start.elapsed().as_nanos()).to_ne_bytes())?;
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

/// Nanoseconds from each message's sending to its arrival, and CPU seconds a GB.
fn round(backend: &RecvBackend, gather: Duration) -> Result<(Vec<u64>, f64), Box<dyn std::error::Error>> {
    let mut receiver = Receiver::new(RecvOptions::default().backend(backend.clone()).gather(gather))?;
    let ((bulk, a), (messages, b)) = (pair()?, pair()?);
    receiver.add(a.into())?;
    let id = receiver.add(b.into())?;
    let start = Instant::now();
    let sender = std::thread::spawn(move || send(bulk, messages, start));
    let (mut batch, mut latencies, mut bytes, mut open) = (Vec::new(), Vec::new(), 0, 2);
    let before = cpu();
    while open > 0 {
        receiver.recv(&mut batch, None)?;
        let now = start.elapsed().as_nanos();
        for arrival in batch.drain(..) {
            match arrival.what {
                What::Data(lease) => {
                    bytes += lease.len();
                    if arrival.connection == id {
                        let sent = lease.chunks_exact(16).filter_map(|c| c.try_into().ok());
                        latencies.extend(sent.map(|c| (now - u128::from_ne_bytes(c)) as u64));
                    }
                }
                _ => open -= 1,
            }
        }
    }
    let seconds = cpu() - before;
    sender.join().map_err(|_| "the sender panicked")??;
    Ok((latencies, seconds / (bytes as f64 / 1e9)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = [("multishot", RecvBackend::Multishot), ("plain", RecvBackend::Plain)];
    let gathers = [("default", RecvOptions::default().gather), ("zero", Duration::ZERO)];
    let mut all = [[(); 2]; 2].map(|b| b.map(|()| (Vec::new(), Vec::new())));
    for _ in 0..ROUNDS {
        for (b, (_, backend)) in backends.iter().enumerate() {
            for (g, (_, gather)) in gathers.iter().enumerate() {
                let (latencies, seconds) = round(backend, *gather)?;
                all[b][g].0.extend(latencies);
                all[b][g].1.push(seconds);
            }
        }
    }
    println!("back end   gather    p50 µs  p90 µs  p99 µs  CPU s/GB, median of {ROUNDS} (least to most)");
    for (b, (name, _)) in backends.iter().enumerate() {
        for (g, (gather, _)) in gathers.iter().enumerate() {
            let (latencies, seconds) = &mut all[b][g];
            latencies.sort_unstable();
            seconds.sort_unstable_by(f64::total_cmp);
            let at = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize] as f64 / 1e3;
            println!(
                "{name:<10} {gather:<8} {:>7.0} {:>7.0} {:>7.0}  {:.3} ({:.3} to {:.3})",
                at(0.5),
                at(0.9),
                at(0.99),
                seconds[ROUNDS / 2],
                seconds[0],
                seconds[ROUNDS - 1]
            );
        }
    }
    Ok(())
}
