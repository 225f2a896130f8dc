//! A short loop of vector instructions -> whether this core is shared with another thread at the moment.
//!
//! Knows nothing of what is measured. Two threads of one core share its ports: beside a busy one, everything
//! that keeps them full takes up to twice as long, in processor time too. The loop does nothing but keep
//! them full, so that its time says which of two machines a sample was taken on.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use cpu_time::ThreadTime;

/// Turns of the loop: a few microseconds.
const TURNS: u64 = 4000;

/// Longer than the shortest time by more than this is shared.
const SHARED: f64 = 1.08;

/// One in so many of the loops so far was faster than what counts as its time on a core of its own: where a
/// hypervisor takes time away, the clock is wrong by a sixth now and then, so the very fastest are not believed.
const BELIEVED: usize = 100;

thread_local! {
    static TIMES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static ALONE: Cell<u64> = const { Cell::new(0) };
}

/// The loop's time in nanoseconds.
pub(crate) fn probe() -> u64 {
    // The first time finds nothing in the caches.
    ThreadTime::now();
    work();
    let start = ThreadTime::now();
    work();
    let time = start.elapsed().as_nanos() as u64;
    TIMES.with_borrow_mut(|times| times.push(time));
    time
}

/// Whether a core on which the loop took so long was this thread's alone.
pub(crate) fn is_alone(probe: u64) -> bool {
    probe as f64 <= SHARED * ALONE.get() as f64
}

/// Learns from all loops so far.
pub(crate) fn learn() {
    let mut times = TIMES.with_borrow(Clone::clone);
    if !times.is_empty() {
        let at = times.len() / BELIEVED;
        ALONE.set(*times.select_nth_unstable(at).1);
    }
}

/// Finds the time out, over about a second, in which a busy neighbour rests now and then.
pub(crate) fn calibrate() {
    for _ in 0..40 {
        for _ in 0..500 {
            probe();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(target_arch = "x86_64")]
fn work() {
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    let mut turns = TURNS;
    // Safety: AVX2 was detected; registers alone are written.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpmuludq ymm0, ymm8, ymm9",
            "vpaddq ymm1, ymm8, ymm9",
            "vpaddq ymm2, ymm8, ymm9",
            "vpmuludq ymm3, ymm8, ymm9",
            "vpaddq ymm4, ymm8, ymm9",
            "vpaddq ymm5, ymm8, ymm9",
            "vpmuludq ymm6, ymm8, ymm9",
            "vpaddq ymm7, ymm8, ymm9",
            "dec {turns}",
            "jnz 2b",
            turns = inout(reg) turns,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            options(nomem, nostack),
        );
    }
    std::hint::black_box(turns);
}

/// Nothing is known here: every core counts as the thread's own.
#[cfg(not(target_arch = "x86_64"))]
fn work() {}
