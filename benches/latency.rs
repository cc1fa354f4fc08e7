//! How long a caller waits: inline and through `admission`, by batch size, and at several rates of
//! arrival; and how much goes through when there is always more to do.
//!
//! Arrivals are open-loop: each has its time, whether or not the ones before are done, and its
//! latency counts from that time. So a stall shows in all requests that it held up.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{Shape, peer_requests, print_handover};
use dynamo_kv_router::protocols::{compute_block_hash_for_seq, compute_seq_hash_for_block};
use hdrhistogram::Histogram;
use kvhash::admission::{Admission, Options, Ticket};
use kvhash::{Engine, Lineages, OwnedRequest, PositionalLineageHash, Request};

/// Tokens of a request.
const TOKENS: usize = 2048;
const BATCHES: [usize; 7] = [1, 2, 4, 8, 30, 1000, 10_000];
/// Requests a second.
const RATES: [f64; 4] = [1e3, 1e4, 5e4, 2e5];

fn main() {
    // As criterion does it: `cargo bench -- --test` runs everything once.
    let quick = std::env::args().any(|argument| argument == "--test");
    keep_freed_memory();
    print_handover(quick);
    by_batch(quick);
    by_rate(quick);
    print_handover(quick);
    // On a thread of its own, since it pins that.
    thread::scope(|scope| scope.spawn(|| at_saturation(quick)).join()).expect("no panic");
    print_handover(quick);
}

/// Has memory that is freed kept for the next request, as in a process that has long been busy. Each
/// batch here is freed before the next is made: most of what would be measured were pages that the
/// system takes back and hands out.
#[allow(unsafe_code, reason = "a setting of the allocator")]
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for setting in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: there is one thread, and nothing depends on the settings.
        assert_eq!(unsafe { libc::mallopt(setting, i32::MAX) }, 1);
    }
}

fn shape(prompts: usize) -> Shape {
    Shape::text("latency", prompts, TOKENS, 16)
}

fn engine() -> Engine {
    Engine::builder().build().unwrap()
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap()
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(time.as_nanos() as u64);
}

fn print(columns: &[&dyn std::fmt::Display], histogram: &Histogram<u64>) {
    let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    for column in columns {
        print!("| {column} ");
    }
    let (p50, p99, p999) = (us(0.5), us(0.99), us(0.999));
    println!("| {p50:.1} | {p99:.1} | {p999:.1} |");
}

/// Batches one after the other: called for directly, and submitted and waited for.
fn by_batch(quick: bool) {
    let prompts = shape(BATCHES[BATCHES.len() - 1]).make_prompts();
    let engine = engine();
    let mut lineages = Lineages::new();
    let admission = Admission::start(self::engine(), options(prompts.len())).unwrap();
    let router = |prompt: &Vec<u32>| {
        compute_seq_hash_for_block(&compute_block_hash_for_seq(prompt, 16, Default::default()))
    };
    check(&prompts[..3], &engine, &admission);

    println!("\n| requests of {TOKENS} tokens | way | p50 us | p99 us | p99.9 us |");
    println!("|---|---|---|---|---|");
    for batch in BATCHES {
        let prompts = &prompts[..batch];
        let requests: Vec<Request<'_>> =
            prompts.iter().map(|prompt| Request::new(prompt)).collect();
        let peers = peer_requests(&shape(batch), prompts);
        let repetitions = if quick { 1 } else { (100_000 / batch).clamp(20, 5000) };
        let measure = |way: &str, run: &mut dyn FnMut() -> Duration| {
            let mut histogram = histogram();
            (0..repetitions).for_each(|_| record(&mut histogram, run()));
            print(&[&batch, &way], &histogram);
        };
        measure("dynamo-kv-hashing", &mut || {
            let start = Instant::now();
            for peer in &peers {
                black_box(peer.positional_lineage_hashes(16).unwrap());
            }
            start.elapsed()
        });
        measure("dynamo-kv-router", &mut || {
            let start = Instant::now();
            for prompt in prompts {
                black_box(router(prompt));
            }
            start.elapsed()
        });
        measure("inline", &mut || {
            let start = Instant::now();
            engine.hash(black_box(&requests), black_box(&mut lineages));
            start.elapsed()
        });
        measure("admission", &mut || {
            let owned: Vec<OwnedRequest> =
                prompts.iter().map(|prompt| OwnedRequest::new(prompt.as_slice())).collect();
            let start = Instant::now();
            let tickets: Vec<Ticket> =
                owned.into_iter().map(|request| admission.submit(request).unwrap()).collect();
            let last = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).last();
            let time = start.elapsed();
            black_box(last);
            // So that the queue sleeps when the next one comes.
            thread::sleep(Duration::from_micros(500));
            time
        });
    }
}

fn options(capacity: usize) -> Options {
    Options::default().capacity(capacity)
}

/// Both ways give what the peer gives.
fn check(prompts: &[Vec<u32>], engine: &Engine, admission: &Admission) {
    let mut lineages = Lineages::new();
    for (prompt, peer) in prompts.iter().zip(peer_requests(&shape(prompts.len()), prompts)) {
        let expected = peer.positional_lineage_hashes(16).unwrap();
        let expected = || expected.iter().map(|plh| plh.as_u128());
        engine.hash(&[Request::new(prompt)], &mut lineages);
        let inline = lineages.get(0).unwrap();
        assert!(inline.plhs().iter().map(PositionalLineageHash::as_u128).eq(expected()));
        let request = OwnedRequest::new(prompt.as_slice());
        let submitted = admission.submit(request).unwrap().wait().unwrap();
        assert!(submitted.plhs().iter().map(PositionalLineageHash::as_u128).eq(expected()));
    }
}

/// Notes when an answer is there, on the worker's thread: that of the caller may have other things
/// to do.
struct Stamp {
    due: Instant,
    histogram: Arc<Mutex<Histogram<u64>>>,
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        record(&mut self.histogram.lock().unwrap(), self.due.elapsed());
    }
}

/// Requests that come at a rate, evenly: how late each one's answer is.
fn by_rate(quick: bool) {
    // Shared, since to write them may take longer than there is from one request to the next: each goes to
    // memory that the other core read a moment ago.
    let prompts: Vec<Arc<[u32]>> = shape(64).make_prompts().into_iter().map(Arc::from).collect();
    println!("\n| requests a second | way | p50 us | p99 us | p99.9 us |");
    println!("|---|---|---|---|---|");
    for rate in RATES {
        let count = if quick { 20 } else { (rate * 2.0) as usize };
        let due = |start: Instant, i: usize| start + Duration::from_secs_f64(i as f64 / rate);
        let wait_for = |due: Instant| {
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                // The last stretch awake: sleeping is not that exact.
                if left > Duration::from_micros(200) {
                    thread::sleep(left - Duration::from_micros(200));
                }
                std::hint::spin_loop();
            }
        };

        let engine = engine();
        let mut lineages = Lineages::new();
        let mut inline = histogram();
        let start = Instant::now();
        for i in 0..count {
            let due = due(start, i);
            wait_for(due);
            engine.hash(&[Request::new(&prompts[i % prompts.len()])], &mut lineages);
            record(&mut inline, due.elapsed());
        }
        print(&[&rate, &"inline"], &inline);

        let admission = Admission::start(self::engine(), options(1 << 16)).unwrap();
        let submitted = Arc::new(Mutex::new(histogram()));
        let start = Instant::now();
        let mut tickets = VecDeque::new();
        for i in 0..count {
            let due = due(start, i);
            let request = OwnedRequest::shared(Arc::clone(&prompts[i % prompts.len()]));
            wait_for(due);
            let Ok(mut ticket) = admission.submit(request) else { continue };
            let stamp = Arc::new(Stamp { due, histogram: Arc::clone(&submitted) });
            let waker = Waker::from(Arc::clone(&stamp));
            if pin!(&mut ticket).poll(&mut Context::from_waker(&waker)).is_ready() {
                stamp.wake();
            } else {
                tickets.push_back(ticket);
            }
            // Answers are taken as they come: nobody keeps them all.
            while tickets.front_mut().is_some_and(|ticket| ticket.try_take().is_some()) {
                tickets.pop_front();
            }
        }
        admission.shutdown();
        drop(tickets);
        let submitted = submitted.lock().unwrap();
        print(&[&rate, &"admission"], &submitted);
        let full = count as u64 - submitted.len();
        if full > 0 {
            println!("| {rate} | admission | {full} of {count} did not fit the queue | | |");
        }
    }
}

/// One thread submits requests as fast as it can, some batches under way at any time, and takes their
/// answers: beside batches of the same size, which are hashed on the CPU that the worker has otherwise. (A
/// virtual CPU whose core has something else to do, too, takes half as long again, for seconds: two of
/// them are not compared.) In % of the shortest times, and the median of those of one repetition each.
fn at_saturation(quick: bool) {
    /// Tokens of all prompts together: what the last-level cache holds.
    const TOGETHER: usize = 1 << 20;
    /// Tokens of a batch: its tokens and rows leave each other room in a core's own cache.
    const BATCH: usize = 1 << 17;
    /// Batches under way: while one is hashed, those that are done go and others come.
    const UNDER_WAY: [usize; 2] = [2, 4];

    let cpus = Cpus::new();
    println!(
        "\n| tokens a request | batches under way | way | ns a request | inline, % of it | median |"
    );
    println!("|---|---|---|---|---|---|");
    let text = |name, tokens| Shape::text(name, TOGETHER / tokens, tokens, 16);
    let shapes = [
        Shape::ragged("Azure code", 512, 16),
        text("128", 128),
        text("512", 512),
        text("1024", 1024),
        text("2048", 2048),
        text("4096", 4096),
        text("8192", 8192),
        text("16384", 16_384),
        text("32768", 32_768),
    ];
    for (shape, batches) in
        shapes.iter().flat_map(|shape| UNDER_WAY.map(|batches| (shape, batches)))
    {
        let prompts = shape.make_prompts();
        let shared: Vec<Arc<[u32]>> =
            prompts.iter().map(|prompt| Arc::from(prompt.as_slice())).collect();
        let requests: Vec<Request<'_>> = shared.iter().map(|prompt| Request::new(prompt)).collect();
        let batch = prompts.len() * BATCH / TOGETHER;
        let most = batches * batch;
        let engine = engine();
        cpus.stay(Part::Hashes);
        let admission =
            Admission::start(self::engine(), options(most).largest_batch(batch)).unwrap();
        check(&prompts[..3], &engine, &admission);
        let lineages = RefCell::new(Lineages::new());
        let (rounds, repetitions) = if quick { (1, 1) } else { (25, 60) };
        let count = rounds * requests.len();

        let read = |rows: &[PositionalLineageHash]| {
            black_box(rows.iter().fold(0, |all, row| all ^ row.as_u128()));
        };
        let hash = |batch: &[Request<'_>], reads: bool| {
            engine.hash(black_box(batch), black_box(&mut lineages.borrow_mut()));
            if reads {
                lineages.borrow().iter().for_each(|lineage| read(lineage.unwrap().plhs()));
            }
        };
        let inline = |reads| {
            (0..rounds).for_each(|_| requests.chunks(batch).for_each(|batch| hash(batch, reads)));
        };
        let submit = |requests: &mut dyn Iterator<Item = OwnedRequest>, reads, hands_on| {
            let take = |ticket: Ticket| {
                let lineage = black_box(ticket.wait().unwrap());
                if reads {
                    read(lineage.plhs());
                }
                lineage
            };
            let mut under_way: VecDeque<Ticket> = VecDeque::new();
            for request in requests {
                let oldest = (under_way.len() == most).then(|| under_way.pop_front().unwrap());
                let ticket = match oldest.map(take) {
                    Some(lineage) if hands_on => admission.submit_into(request, lineage),
                    _ => admission.submit(request),
                };
                under_way.push_back(ticket.unwrap());
            }
            under_way.drain(..).for_each(|ticket| drop(take(ticket)));
        };
        let ready: RefCell<Vec<OwnedRequest>> = RefCell::default();
        let admitted = |reads, hands_on| submit(&mut ready.take().into_iter(), reads, hands_on);
        // Written, not copied, since tokens come from elsewhere, and C libraries copy at many speeds.
        let write = |prompt: &Arc<[u32]>| -> Vec<u32> {
            let nothing = black_box(0);
            prompt.iter().map(|token| token ^ nothing).collect()
        };
        let mut inline_written = || {
            for prompts in (0..rounds).flat_map(|_| shared.chunks(batch)) {
                let prompts: Vec<Vec<u32>> = prompts.iter().map(write).collect();
                let requests: Vec<Request<'_>> =
                    prompts.iter().map(|prompt| Request::new(prompt)).collect();
                hash(&requests, true);
            }
        };
        let mut admitted_written = || {
            let written = shared.iter().cycle().take(count).map(write);
            submit(&mut written.map(OwnedRequest::new), true, true);
        };
        let mut ways: [(&str, &mut dyn FnMut()); 8] = [
            ("inline", &mut || inline(true)),
            ("admission", &mut || admitted(true, false)),
            ("admission, lineages handed on", &mut || admitted(true, true)),
            ("hashes left unread: inline", &mut || inline(false)),
            ("hashes left unread: admission", &mut || admitted(false, false)),
            ("hashes left unread: admission, lineages handed on", &mut || admitted(false, true)),
            ("prompts written first: inline", &mut inline_written),
            ("prompts written first: admission, lineages handed on", &mut admitted_written),
        ];
        // Of each repetition, the time of each way.
        let times: Vec<[f64; 8]> = (0..repetitions)
            .map(|_| {
                ways.each_mut().map(|(way, run)| {
                    cpus.stay(if way.ends_with("inline") { Part::Hashes } else { Part::Submits });
                    let share = |prompt| OwnedRequest::shared(Arc::clone(prompt));
                    *ready.borrow_mut() = shared.iter().cycle().take(count).map(share).collect();
                    let start = Instant::now();
                    run();
                    start.elapsed().as_nanos() as f64 / count as f64
                })
            })
            .collect();
        print_beside_inline(shape.name, batches, ways.map(|(way, _)| way), &times);
    }
}

/// What a thread does on a CPU of its own.
#[derive(Clone, Copy)]
enum Part {
    Submits,
    Hashes,
}

/// The CPUs that threads are kept on, if there are two.
struct Cpus(Vec<core_affinity::CoreId>);

impl Cpus {
    fn new() -> Self {
        Self(core_affinity::get_core_ids().unwrap_or_default())
    }

    /// Keeps the calling thread, and those that it starts, where its part is done.
    fn stay(&self, part: Part) {
        if let [.., submits, hashes] = self.0[..] {
            let cpu = match part {
                Part::Submits => submits,
                Part::Hashes => hashes,
            };
            assert!(core_affinity::set_for_current(cpu));
        }
    }
}

/// Prints each way's shortest time, and in % of it that of the last one before that is inline: of the
/// shortest times, and the median of all repetitions. `times` has one of each way for every repetition.
fn print_beside_inline<const N: usize>(
    shape: &str,
    batches: usize,
    ways: [&str; N],
    times: &[[f64; N]],
) {
    let sorted = |number: &dyn Fn(&[f64; N]) -> f64| {
        let mut numbers: Vec<f64> = times.iter().map(number).collect();
        numbers.sort_unstable_by(f64::total_cmp);
        numbers
    };
    let shortest = |way: usize| sorted(&|times| times[way])[0];
    let mut inline = 0;
    for (i, way) in ways.into_iter().enumerate() {
        if way.ends_with("inline") {
            inline = i;
        }
        let time = shortest(i);
        let percent = 100.0 * shortest(inline) / time;
        let median = sorted(&|times| 100.0 * times[inline] / times[i])[times.len() / 2];
        println!("| {shape} | {batches} | {way} | {time:.0} | {percent:.0} | {median:.0} |");
    }
}
