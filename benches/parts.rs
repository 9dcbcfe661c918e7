//! The parts of the hot path one by one: decoding a batch, handling it, building a status and rendering it, at 8, 64 and
//! 1,024 ranks; and rendering compared with the `prometheus` crate's encoder on the same families, in the same run.
#![expect(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{
    BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};
use stepmem::output::prometheus::{Format, render};
use stepmem_engine::status::{ExporterStatus, Status};
use stepmem_engine::wire::{Layout, decode_steps};
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_types::step::StepSample;
use stepmem_types::units::Uptime;

const N_RANKS: [u32; 3] = [8, 64, 1024];
const STEPS_FILLED: u64 = 1_000;
const STARTED: f64 = 1_764_897_183.0;

/// One step of every rank, as a JSON array.
fn batch(n_ranks: u32, step: u64) -> String {
    let records: Vec<String> = (0..n_ranks)
        .map(|rank| {
            let noise = (u64::from(rank) * 7_919 + step * 104_729) % 1_048_576;
            let allocated = 30_000_000_000 + noise;
            format!(
                r#"{{"run":"bench","rank":{rank},"world_size":{n_ranks},"device":"GPU-{rank}","pid":{pid},"step":{step},"time":{time}.5,"allocated_bytes":{allocated},"peak_allocated_bytes":{peak},"reserved_bytes":{reserved},"peak_reserved_bytes":{reserved},"total_bytes":85520809984}}"#,
                pid = 1000 + rank,
                time = 1_764_897_183 + step,
                peak = allocated + 12_000_000_000,
                reserved = allocated + 12_500_000_000,
            )
        })
        .collect();
    format!("[{}]", records.join(","))
}

fn samples(n_ranks: u32, step: u64) -> Vec<StepSample> {
    decode_steps(batch(n_ranks, step).as_bytes(), Layout::Json).unwrap()
}

fn at(step: u64) -> Uptime {
    Uptime(Duration::from_secs(step))
}

fn filled(n_ranks: u32) -> Engine {
    let mut engine = Engine::new(EngineConfig::default(), STARTED);
    for step in 0..STEPS_FILLED {
        engine.handle(&Event::Steps(samples(n_ranks, step)), at(step)).unwrap();
    }
    engine
}

fn status(n_ranks: u32) -> Status {
    filled(n_ranks).status(at(STEPS_FILLED), ExporterStatus::default())
}

fn bench_decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for n_ranks in N_RANKS {
        let body = batch(n_ranks, 1);
        group.throughput(Throughput::Elements(n_ranks.into()));
        group.bench_with_input(BenchmarkId::from_parameter(n_ranks), &body, |bencher, body| {
            bencher.iter(|| decode_steps(black_box(body.as_bytes()), Layout::Json).unwrap());
        });
    }
}

fn bench_handle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    for n_ranks in N_RANKS {
        let mut engine = filled(n_ranks);
        let mut step = STEPS_FILLED;
        group.throughput(Throughput::Elements(n_ranks.into()));
        group.bench_function(BenchmarkId::from_parameter(n_ranks), |bencher| {
            bencher.iter_batched(
                || {
                    step += 1;
                    (step, samples(n_ranks, step))
                },
                |(step, samples)| {
                    black_box(engine.handle(&Event::Steps(samples), at(step)).unwrap());
                },
                BatchSize::SmallInput,
            );
        });
    }
}

fn bench_status(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("status");
    for n_ranks in N_RANKS {
        let engine = filled(n_ranks);
        group.throughput(Throughput::Elements(n_ranks.into()));
        group.bench_function(BenchmarkId::from_parameter(n_ranks), |bencher| {
            bencher.iter(|| engine.status(at(STEPS_FILLED), ExporterStatus::default()));
        });
    }
}

fn bench_render(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("render");
    for n_ranks in N_RANKS {
        let status = status(n_ranks);
        let text = render(&status, Format::Text);
        let n_series = text.lines().filter(|line| !line.starts_with('#')).count();
        group.throughput(Throughput::Elements(n_series.try_into().unwrap()));
        group.bench_function(BenchmarkId::new("stepmem", n_ranks), |bencher| {
            bencher.iter(|| render(black_box(&status), Format::Text));
        });
        let registry = peer(&text);
        group.bench_function(BenchmarkId::new("prometheus crate", n_ranks), |bencher| {
            bencher.iter(|| {
                let mut bytes = Vec::new();
                TextEncoder::new().encode(&registry.gather(), &mut bytes).unwrap();
                bytes
            });
        });
    }
}

/// A registry of the `prometheus` crate with as many families, series and labels as the text.
fn peer(text: &str) -> Registry {
    let registry = Registry::new();
    let mut families: Vec<(String, GaugeVec)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let pairs: Vec<(&str, &str)> = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(label, value)| (label, value.trim_matches('"')))
            .collect();
        if families.last().is_none_or(|(last, _)| last != name) {
            let names: Vec<&str> = pairs.iter().map(|pair| pair.0).collect();
            let family = GaugeVec::new(Opts::new(name, "help"), &names).unwrap();
            registry.register(Box::new(family.clone())).unwrap();
            families.push((name.to_owned(), family));
        }
        let values: Vec<&str> = pairs.iter().map(|pair| pair.1).collect();
        let (_, family) = families.last().unwrap();
        family.with_label_values(&values).set(value.parse().unwrap());
    }
    registry
}

criterion_group! {
    name = parts;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = bench_decode, bench_handle, bench_status, bench_render
}
criterion_main!(parts);
