//! CPU time of receiving, interleaved: `recv` with a buffer of 64 KiB against this library on one
//! connection, and epoll with `read` against it on 256. The sender is a thread of its own, whose
//! time doesn't count: `cargo run --release -p zerowire --example recv_cost`.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerowire::recv::{Receiver, RecvBackend, RecvOptions, What};

const ROUND_BYTES: u64 = 256 << 20;
/// Before the clock starts: pages are taken, sockets and the receiver find their pace.
const WARM_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 9;
const READ: usize = 64 << 10;

fn cpu() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn pairs(count: usize) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut far, mut near) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let a = TcpStream::connect(listener.local_addr()?)?;
        a.set_nonblocking(count > 1)?;
        far.push(a);
        near.push(listener.accept()?.0);
    }
    Ok((far, near))
}

/// Writes to all of them until told to stop.
fn send(mut far: Vec<TcpStream>, stop: &AtomicBool) {
    let data = vec![1u8; READ];
    while !stop.load(Ordering::Relaxed) {
        let mut any = false;
        for a in &mut far {
            any |= a.write(&data).is_ok();
        }
        if !any {
            std::thread::yield_now();
        }
    }
}

/// Counts bytes, and CPU time behind the first ones.
#[derive(Default)]
struct Meter {
    got: u64,
    begin: Option<(f64, u64)>,
}

impl Meter {
    fn add(&mut self, bytes: u64) {
        self.got += bytes;
        if self.begin.is_none() && self.got >= WARM_BYTES {
            self.begin = Some((cpu(), self.got));
        }
    }

    fn done(&self) -> bool {
        self.begin.is_some_and(|(_, from)| self.got >= from + ROUND_BYTES)
    }

    fn seconds_a_gigabyte(&self) -> f64 {
        self.begin.map_or(0.0, |(at, from)| (cpu() - at) / ((self.got - from) as f64 / 1e9))
    }
}

fn plain_recv(near: &mut TcpStream) -> io::Result<f64> {
    let mut buffer = vec![0; READ];
    let mut meter = Meter::default();
    while !meter.done() {
        meter.add(near.read(&mut buffer)? as u64);
    }
    Ok(meter.seconds_a_gigabyte())
}

fn epoll_read(near: &mut [TcpStream]) -> io::Result<f64> {
    use rustix::event::epoll;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, s) in near.iter().enumerate() {
        s.set_nonblocking(true)?;
        epoll::add(&set, s, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
    }
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; READ];
    let mut meter = Meter::default();
    while !meter.done() {
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            if let Some(s) = near.get_mut(event.data.u64() as usize) {
                meter.add(s.read(&mut buffer).unwrap_or(0) as u64);
            }
        }
    }
    let seconds = meter.seconds_a_gigabyte();
    near.iter().try_for_each(|s| s.set_nonblocking(false))?;
    Ok(seconds)
}

fn library(backend: RecvBackend, near: &[TcpStream]) -> Result<(f64, String), Box<dyn std::error::Error>> {
    let depth = std::env::args().nth(1).and_then(|a| a.parse().ok());
    let mut receiver = Receiver::new(RecvOptions::default().backend(backend).depth(depth))?;
    for s in near {
        receiver.add(s.try_clone()?.into())?;
    }
    let (mut batch, mut meter) = (Vec::new(), Meter::default());
    while !meter.done() {
        receiver.recv(&mut batch, Some(Duration::from_secs(10)))?;
        for arrival in batch.drain(..) {
            if let What::Data(lease) = arrival.what {
                meter.add(lease.len() as u64);
            }
        }
    }
    let (seconds, e) = (meter.seconds_a_gigabyte(), receiver.events());
    let calls = (meter.got >> 10) / e.system_calls;
    Ok((seconds, format!("{calls} KiB a system call, {} out of buffers", e.out_of_buffers)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for connections in [1, 16, 256] {
        let (far, mut near) = pairs(connections)?;
        let stop = Arc::new(AtomicBool::new(false));
        let ends: Vec<_> = far.iter().map(|a| a.try_clone()).collect::<Result<_, _>>()?;
        let sender = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || send(far, &stop)
        });
        let mut times: [Vec<f64>; 3] = Default::default();
        let mut notes = [String::new(), String::new(), String::new()];
        for _ in 0..ROUNDS {
            for (k, times) in times.iter_mut().enumerate() {
                let seconds = match k {
                    0 if connections == 1 => plain_recv(&mut near[0])?,
                    0 => epoll_read(&mut near)?,
                    _ => {
                        let backend = if k == 1 { RecvBackend::Multishot } else { RecvBackend::Plain };
                        let (seconds, note) = library(backend, &near)?;
                        notes[k] = note;
                        seconds
                    }
                };
                times.push(seconds);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for end in ends {
            // A sender that waits in a write wakes.
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
        drop(sender.join());
        println!("{connections} connections");
        let names = [if connections == 1 { "recv 64 KiB" } else { "epoll, read" }, "multishot", "plain"];
        for (k, times) in times.iter_mut().enumerate() {
            times.sort_by(f64::total_cmp);
            println!("  {:12} {:.3} s/GB (median of {ROUNDS})  {}", names[k], times[ROUNDS / 2], notes[k]);
        }
    }
    Ok(())
}
