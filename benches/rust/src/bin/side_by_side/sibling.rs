//! A short loop of vector instructions -> whether this core is shared with another thread at the moment.
//!
//! Knows nothing of what is measured. Two threads of one core share its ports: beside a busy one, everything
//! that keeps them full takes up to twice as long, in processor time too. The loop does nothing but keep
//! them full, so that its time says which of two machines a sample was taken on.

use std::cell::RefCell;
use std::time::Duration;

use cpu_time::ThreadTime;

/// Turns of the loop: a few microseconds.
const TURNS: u64 = 4000;

/// Longer than the shortest time by more than this is shared.
const SHARED: f64 = 1.08;

/// The shortest times so far that are kept: the clock is wrong by a third once in a while, so the longest of
/// these is believed.
const KEPT: usize = 20;

thread_local! {
    static SHORTEST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The loop's time in nanoseconds.
pub(crate) fn probe() -> u64 {
    let start = ThreadTime::now();
    work();
    let time = start.elapsed().as_nanos() as u64;
    SHORTEST.with_borrow_mut(|shortest| {
        let at = shortest.partition_point(|&other| other <= time);
        if at < KEPT {
            shortest.insert(at, time);
            shortest.truncate(KEPT);
        }
    });
    time
}

/// Whether a core on which the loop took so long was this thread's alone.
pub(crate) fn is_alone(probe: u64) -> bool {
    let shortest = SHORTEST.with_borrow(|shortest| shortest.last().copied().unwrap_or(u64::MAX));
    probe as f64 <= SHARED * shortest as f64
}

/// Finds the shortest time out, over about a second, in which a busy neighbour rests now and then.
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
