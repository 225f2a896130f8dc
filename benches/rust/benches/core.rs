//! The core's operations at four prompt lengths -> criterion's statistics, for work on the code.
//!
//! Figures to publish come from the side-by-side program, which measures peers in the same minutes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use irminsul::{ChunkParams, Namespace, chunk, chunk_bounds};
use irminsul_benches::{registry, text, uniform};

const LENGTHS: [usize; 4] = [1 << 10, 1 << 13, 1 << 17, 1 << 24];

fn chunking(criterion: &mut Criterion) {
    let params = ChunkParams::default();
    let mut group = criterion.benchmark_group("chunking");
    for length in LENGTHS {
        group.throughput(Throughput::Elements(length as u64));
        for (name, tokens) in [("text", text(1, length)), ("uniform", uniform(1, length))] {
            group.bench_function(
                BenchmarkId::new(format!("bounds, {name}"), length),
                |bencher| {
                    bencher.iter(|| chunk_bounds(black_box(&tokens), &params));
                },
            );
            group.bench_function(
                BenchmarkId::new(format!("chunks, {name}"), length),
                |bencher| {
                    bencher.iter(|| chunk(black_box(&tokens), &params));
                },
            );
        }
    }
    group.finish();
}

fn lookups(criterion: &mut Criterion) {
    let namespace = Namespace::default();
    let mut group = criterion.benchmark_group("lookup");
    for length in [1 << 10, 1 << 13, 1 << 17] {
        group.throughput(Throughput::Elements(length as u64));
        let prompt = text(1, length);
        for windows in [false, true] {
            for (name, document) in [("all known", &prompt[..]), ("nothing known", &[])] {
                let registry = registry(document, windows);
                let name = format!("{name}, windows {windows}");
                group.bench_function(BenchmarkId::new(name, length), |bencher| {
                    bencher.iter(|| registry.lookup(black_box(&prompt), &namespace, 0));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, chunking, lookups);
criterion_main!(benches);
