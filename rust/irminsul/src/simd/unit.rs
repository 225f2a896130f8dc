//! Tokens -> the hashes of eight stretches and their candidates, 64 steps at a time; AVX2, in assembly.
//!
//! Knows nothing of blocks or markers. What the intrinsics of `gear_avx2.rs` compute, in an order that
//! compilers do not keep: between the vector instructions of a step stand those of a look for a cut in
//! the block before ([`super::looks`]). Neither waits for the other, and the general registers' ports
//! would have been idle; in one piece behind the steps, a look takes fourteen cycles more.
//!
//! Registers: 7, 8 and 9 the states, 1 the least upper half, 0 ties with the threshold, 12 and 13 the
//! factors, 14 the largest upper half below the threshold; 2, 3, 10, 11 tokens; 4, 5, 6, 15 scratch.

use std::arch::asm;
use std::arch::x86_64::__m256i;

use super::block::LANES;
use super::looks::Looks;

/// Steps of a group: a word of 64 bits for each stretch.
pub(super) const GROUP: usize = 64;

/// What the assembly finds in memory; the offsets in it are those of the fields.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Desk {
    /// For each step of this group and the one before, a bit for each lane below the threshold.
    pub(super) rows: [[u8; GROUP]; 2],
    /// 128: the secret.
    secret: [u32; LANES],
    /// 160: the upper half of the threshold.
    tie: [u32; LANES],
    /// 192: the bits of the block before, and what [`Looks`] says of them.
    bits: *const u64,
    from: usize,
    longest: usize,
    known: usize,
    /// 224: the shortest chunk less one.
    short: usize,
    max: usize,
    /// 240: where the next cut goes.
    cut: *mut u32,
    /// 248: the rows of the group before, which are turned into words for each lane.
    turned: *mut [u8; GROUP],
    /// 256: where the next of these words goes, and how far that of the lane before it is away.
    word: *mut u8,
    apart: usize,
    /// 272: units of eight steps left.
    left: usize,
}

/// The registers that change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    pub(super) a: __m256i,
    pub(super) b: __m256i,
    pub(super) upper: __m256i,
    pub(super) least: __m256i,
    pub(super) ties: __m256i,
}

/// The registers that do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factors {
    pub(super) first: __m256i,
    pub(super) second: __m256i,
    pub(super) below: __m256i,
}

impl Desk {
    pub(super) fn new(secret: u32, threshold: u64, looks: &mut Looks<'_>) -> Self {
        Self {
            rows: [[0; GROUP]; 2],
            secret: [secret; LANES],
            tie: [(threshold >> 32) as u32; LANES],
            bits: looks.bits.as_ptr(),
            from: looks.from,
            longest: looks.longest,
            known: looks.known,
            short: looks.min - 1,
            max: looks.max,
            cut: looks.cuts[looks.count..].as_mut_ptr(),
            turned: std::ptr::null_mut(),
            word: std::ptr::null_mut(),
            apart: 0,
            left: 0,
        }
    }

    /// What the looks found.
    pub(super) fn settle(&self, looks: &mut Looks<'_>) {
        let begin = looks.cuts.as_ptr().addr();
        looks.count = (self.cut.addr() - begin) / size_of::<u32>();
        (looks.from, looks.longest) = (self.from, self.longest);
    }
}

/// Lines of assembly.
macro_rules! lines { ($($line:expr),* $(,)?) => { concat!($($line, "\n"),*) } }

/// Loads four tokens of each lane: the first two into 2 and 3, the others into 10 and 11.
macro_rules! quad {
    ($at:literal, $keyed:literal) => {
        lines!(
            concat!("vbroadcastf128 ymm15, [{q} + {s} + ", $at, "]"),
            concat!("vmovdqu xmm2, [{p} + ", $at, "]"),
            "vpblendd ymm2, ymm2, ymm15, 0xf0",
            concat!("vbroadcastf128 ymm15, [{q} + 2*{s} + ", $at, "]"),
            concat!("vmovdqu xmm3, [{p} + {s} + ", $at, "]"),
            "vpblendd ymm3, ymm3, ymm15, 0xf0",
            concat!("vbroadcastf128 ymm15, [{p} + 2*{s3} + ", $at, "]"),
            concat!("vmovdqu xmm4, [{p} + 2*{s} + ", $at, "]"),
            "vpblendd ymm4, ymm4, ymm15, 0xf0",
            concat!("vbroadcastf128 ymm15, [{q} + 4*{s} + ", $at, "]"),
            concat!("vmovdqu xmm5, [{q} + ", $at, "]"),
            "vpblendd ymm5, ymm5, ymm15, 0xf0",
            concat!($keyed, "vpxor ymm2, ymm2, [{desk} + 128]"),
            concat!($keyed, "vpxor ymm3, ymm3, [{desk} + 128]"),
            concat!($keyed, "vpxor ymm4, ymm4, [{desk} + 128]"),
            concat!($keyed, "vpxor ymm5, ymm5, [{desk} + 128]"),
            "vpunpckhqdq ymm10, ymm2, ymm3",
            "vpunpcklqdq ymm2, ymm2, ymm3",
            "vpunpckhqdq ymm11, ymm4, ymm5",
            "vpunpcklqdq ymm3, ymm4, ymm5",
        )
    };
}

/// A step with the tokens in the lower halves of `$a` and `$b`, whose upper halves are brought down for
/// the next unless `$shift` comments it out; `$l0` to `$l6` are done in between.
macro_rules! step {
    ($a:literal, $b:literal, $shift:literal, $ties:literal, $row:literal,
     $l0:literal, $l1:literal, $l2:literal, $l3:literal, $l4:literal, $l5:literal, $l6:literal) => {
        lines!(
            concat!("vpmuludq ymm4, ymm12, ", $a),
            concat!("vpmuludq ymm5, ymm12, ", $b),
            $l0,
            concat!($shift, "vpsrlq ", $a, ", ", $a, ", 32"),
            concat!($shift, "vpsrlq ", $b, ", ", $b, ", 32"),
            "vpaddd ymm9, ymm9, ymm9",
            $l1,
            "vpaddq ymm7, ymm7, ymm7",
            "vpaddq ymm8, ymm8, ymm8",
            "vpsrlq ymm6, ymm4, 13",
            $l2,
            "vpmuludq ymm6, ymm13, ymm6",
            "vpsrlq ymm15, ymm5, 13",
            "vpmuludq ymm15, ymm13, ymm15",
            $l3,
            "vshufps ymm4, ymm4, ymm5, 0x88",
            "vpaddq ymm7, ymm7, ymm6",
            "vpaddq ymm8, ymm8, ymm15",
            $l4,
            "vpaddd ymm9, ymm9, ymm4",
            "vshufps ymm5, ymm7, ymm8, 0xdd",
            "vpaddd ymm5, ymm9, ymm5",
            $l5,
            "vpminud ymm1, ymm1, ymm5",
            concat!($ties, "vpcmpeqd ymm4, ymm5, [{desk} + 160]"),
            concat!($ties, "vpor ymm0, ymm0, ymm4"),
            "vpminud ymm4, ymm5, ymm14",
            "vpcmpeqd ymm4, ymm4, ymm5",
            $l6,
            "vmovmskps {m:e}, ymm4",
            concat!("mov [{row} + ", $row, "], {m:l}"),
        )
    };
}

/// A group: eight times eight steps, with one look, and a word of the group before turned.
macro_rules! group {
    ($keyed:literal, $ties:literal, $lanes:ident, $factors:ident, $desk:ident, $row:ident, $at:ident) => {
        asm!(
            ".p2align 6",
            "2:",
                quad!("0", $keyed),
                step!("ymm2", "ymm3", "", $ties, "0",
                    "mov rcx, [{desk} + 200]", "mov {d}, rcx", "shr {d}, 6", "shl {d}, 3",
                    "add {d}, [{desk} + 192]", "mov {a}, [{d}]", "mov {b}, [{d} + 8]"),
                step!("ymm2", "ymm3", "#", $ties, "1",
                    "mov {c}, [{d} + 16]", "mov {d}, [{d} + 24]", "shr {a}, cl", "shl {a}, cl",
                    "and ecx, -64", "tzcnt {d}, {d}", "add {d}, 64"),
                step!("ymm10", "ymm11", "", $ties, "2",
                    "tzcnt {c}, {c}", "cmovc {c}, {d}", "lea {c}, [{c} + 64]", "tzcnt {b}, {b}",
                    "cmovc {b}, {c}", "lea {b}, [{b} + 64]", "tzcnt {a}, {a}"),
                step!("ymm10", "ymm11", "#", $ties, "3",
                    "cmovc {a}, {b}", "add ecx, {a:e}", "lea {b}, [rcx + 1]",
                    "mov {c}, [{desk} + 208]", "mov {d}, {c}", "cmp {a:e}, 256", "cmovb {d}, {b}"),
                quad!("16", $keyed),
                step!("ymm2", "ymm3", "", $ties, "4",
                    "cmp {d}, {c}", "cmova {d}, {c}", "mov {a}, [{desk} + 240]",
                    "mov [{a}], {d:e}", "mov {e}, [{desk} + 216]", "cmp {b}, {e}",
                    "cmova {b}, {e}"),
                step!("ymm2", "ymm3", "#", $ties, "5",
                    "cmp {b}, {d}", "mov {b}, [{desk} + 232]", "lea {b}, [{b} + {d}]",
                    "cmovb {b}, {c}", "mov {c}, [{desk} + 224]", "lea {d}, [{d} + {c}]",
                    "cmovb {d}, rcx"),
                step!("ymm10", "ymm11", "", $ties, "6",
                    "lea rcx, [{a} + 4]", "cmovb rcx, {a}", "mov [{desk} + 240], rcx",
                    "mov [{desk} + 208], {b}", "cmp {d}, {e}", "cmova {d}, {e}",
                    "mov [{desk} + 200], {d}"),
                step!("ymm10", "ymm11", "#", $ties, "7", "mov {a}, [{desk} + 248]; mov {b}, [{desk} + 256]", "vmovdqa ymm2, [{a}]; vmovdqa ymm3, [{a} + 32]", "vpmovmskb {c:e}, ymm2; vpmovmskb {d:e}, ymm3", "mov [{b}], {c:e}; mov [{b} + 4], {d:e}", "vpaddb ymm2, ymm2, ymm2; vpaddb ymm3, ymm3, ymm3", "vmovdqa [{a}], ymm2; vmovdqa [{a} + 32], ymm3", "sub {b}, [{desk} + 264]; mov [{desk} + 256], {b}"),
            "add {p}, 32",
            "add {q}, 32",
            "add {row}, 8",
            "dec qword ptr [{desk} + 272]",
            "jnz 2b",
            desk = in(reg) $desk,
            row = inout(reg) $row => _,
            p = inout(reg) $at.0 => _,
            q = inout(reg) $at.0.wrapping_add(3 * $at.1) => _,
            s = in(reg) 4 * $at.1,
            s3 = in(reg) 12 * $at.1,
            m = out(reg) _, a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, out("rcx") _,
            inout("ymm7") $lanes.a, inout("ymm8") $lanes.b, inout("ymm9") $lanes.upper,
            inout("ymm1") $lanes.least, inout("ymm0") $lanes.ties,
            in("ymm12") $factors.first, in("ymm13") $factors.second, in("ymm14") $factors.below,
            out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _,
            out("ymm10") _, out("ymm11") _, out("ymm15") _,
            options(nostack),
        )
    };
}

/// Advances all stretches by a group of steps, the `index`th, whose tokens begin at `at.0` and at
/// distances of `at.1` tokens. Words of the group before go to `to.0` for the last lane, and `to.1`
/// bytes before it for each other.
///
/// # Safety
/// AVX2 and BMI1; the tokens can be read; the words can be written; the desk was made from looks that
/// live.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn group<const KEYED: bool, const TIES: bool>(
    lanes: &mut Lanes,
    factors: &Factors,
    desk: &mut Desk,
    index: usize,
    at: (*const u32, usize),
    to: (*mut u8, usize),
) {
    desk.left = GROUP / 8;
    (desk.word, desk.apart) = to;
    let [even, odd] = desk.rows.each_mut().map(|rows| &raw mut *rows);
    let (rows, before) = if index.is_multiple_of(2) {
        (even, odd)
    } else {
        (odd, even)
    };
    desk.turned = before;
    let (desk, row) = (&raw mut *desk, rows.cast::<u8>());
    // Safety: as promised. A look reads four words from that of `from` on, which is at most `known`, and
    // writes one entry; `Looks` made sure of the room for both.
    unsafe {
        match (KEYED, TIES) {
            (false, false) => group!("#", "#", lanes, factors, desk, row, at),
            (false, true) => group!("#", "", lanes, factors, desk, row, at),
            (true, false) => group!("", "#", lanes, factors, desk, row, at),
            (true, true) => group!("", "", lanes, factors, desk, row, at),
        }
    }
}
