//! Threads of an engine's own.

use std::io;
use std::thread::{self, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// A thread pool that is gone, with all its threads, when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnPool {
    /// `None` only while it is dropped.
    pool: Option<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
}

impl OwnPool {
    /// Starts `threads` threads; with `pin`, each stays on one of the CPUs that the process may
    /// use. `None` where they are not to be had.
    pub(crate) fn start(threads: usize, pin: bool) -> Option<Self> {
        // What the process may use: CPUs outside of its affinity mask are not in the list.
        let cpus = if pin { core_affinity::get_core_ids().unwrap_or_default() } else { Vec::new() };
        let mut handles = Vec::with_capacity(threads);
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("kvhash-{i}"))
            .start_handler(move |i| {
                // From the last one down, since the calling thread is more often on the first.
                if let Some(&cpu) = cpus.iter().rev().cycle().nth(i) {
                    core_affinity::set_for_current(cpu);
                }
            })
            .spawn_handler(|thread| -> io::Result<()> {
                let mut builder = thread::Builder::new();
                if let Some(name) = thread.name() {
                    builder = builder.name(name.into());
                }
                handles.push(builder.spawn(|| thread.run())?);
                Ok(())
            })
            .build();
        // Without a pool the threads that did start end by themselves.
        Some(Self { pool: Some(pool.ok()?), threads: handles })
    }

    pub(crate) fn get(&self) -> Option<&ThreadPool> {
        self.pool.as_ref()
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        // Tells the threads to end, but does not wait for it.
        self.pool = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}
