//! Counts and latencies, for each queue and operation, and the table of them.

use crate::device::Device;
use crate::record::Posted;
use crate::request::Request;
use crate::trace::Place;
use hdrhistogram::Histogram;
use rdma_verbs_options::{Format, Op, errno_name, status_name};
use serde_json::{Map, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// At its post: a positive errno.
    Errno(i32),
    /// At its completion: an `ibv_wc_status`.
    Status(u32),
}

impl Failure {
    fn name(self) -> Cow<'static, str> {
        match self {
            Failure::Errno(errno) => errno_name(errno),
            Failure::Status(status) => status_name(status),
        }
    }
}

/// What one operation on one queue came to.
#[derive(Clone, Default)]
pub(crate) struct OpStats {
    /// Requests that the provider took.
    posts: u64,
    /// Completions of any status.
    completions: u64,
    /// Of what was sent, at the post; of what was received, at the completion.
    bytes: u64,
    failures: BTreeMap<Failure, u64>,
    latency: Latency,
}

/// Nanoseconds from post to completion.
#[derive(Clone, Default)]
enum Latency {
    #[default]
    None,
    Growing(Histogram<u64>),
    /// What a histogram that is not added to has in it, values with their numbers: it would take tens of kilobytes for each
    /// queue pair that there ever was.
    Compact(Vec<(u64, u64)>),
}

impl Latency {
    fn histogram(&self) -> Option<Cow<'_, Histogram<u64>>> {
        match self {
            Latency::None => None,
            Latency::Growing(histogram) => Some(Cow::Borrowed(histogram)),
            Latency::Compact(values) => {
                let mut histogram = empty();
                for (value, count) in values {
                    histogram.record_n(*value, *count).expect(RESIZES);
                }
                Some(Cow::Owned(histogram))
            }
        }
    }

    /// The histogram, to be added to.
    fn growing(&mut self) -> &mut Histogram<u64> {
        if !matches!(self, Latency::Growing(_)) {
            *self = Latency::Growing(self.histogram().map_or_else(empty, Cow::into_owned));
        }
        match self {
            Latency::Growing(histogram) => histogram,
            Latency::None | Latency::Compact(_) => unreachable!("made just now"),
        }
    }

    fn compact(&mut self) {
        if let Latency::Growing(histogram) = self {
            let values = histogram.iter_recorded();
            *self = Latency::Compact(values.map(|at| (at.value_iterated_to(), at.count_at_value())).collect());
        }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new(2).expect("two digits are in range")
}

const RESIZES: &str = "it resizes itself for every value";

impl OpStats {
    pub(crate) fn posted(&mut self, request: &Request) {
        self.posts += 1;
        if request.op != Op::Recv {
            self.bytes += request.bytes();
        }
    }

    /// What was counted as posted was not accepted.
    pub(crate) fn withdrawn(&mut self, posted: &Posted) {
        self.posts -= 1;
        if posted.op != Op::Recv {
            self.bytes -= posted.bytes;
        }
    }

    /// A completion; `received` is the length of a message that came, or 0.
    pub(crate) fn completed(&mut self, status: u32, received: u64) {
        self.completions += 1;
        self.bytes += received;
        if status != 0 {
            self.failed(Failure::Status(status));
        }
    }

    pub(crate) fn failed(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    pub(crate) fn took(&mut self, nanoseconds: u64) {
        self.latency.growing().record(nanoseconds).expect(RESIZES);
    }

    /// Nothing is to come for some time, or for ever.
    pub(crate) fn compact(&mut self) {
        self.latency.compact();
    }

    fn errors(&self) -> u64 {
        self.failures.values().sum()
    }

    fn add(&mut self, other: &OpStats) {
        self.posts += other.posts;
        self.completions += other.completions;
        self.bytes += other.bytes;
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        if let Some(other) = other.latency.histogram() {
            self.latency.growing().add(&*other).expect(RESIZES);
        }
    }

    /// Microseconds at 50, 90, 99 percent, and the longest.
    fn percentiles(&self) -> Option<[f64; 4]> {
        let latency = self.latency.histogram()?;
        let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
        Some([at(0.5), at(0.9), at(0.99), latency.max() as f64 / 1000.0])
    }
}

/// A line of the table.
struct Row {
    device: String,
    /// As in the trace: a number, or the address of a shared receive queue.
    queue: String,
    op: Op,
    stats: OpStats,
}

/// All that was counted so far, in the order of devices, numbers and operations.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut devices: Vec<_> = Device::all().collect();
    devices.sort_by_key(|device| device.name());
    for device in devices {
        for record in device.records.all() {
            let queue = match record.place() {
                Place::Qp(number) => format!("{number:#x}"),
                Place::Srq(address) => format!("srq:{address:#x}"),
            };
            // While the program runs nobody keeps it for long.
            let Some(mut stats) = record.lock_at_exit().map(|state| state.stats.clone()) else { continue };
            stats.sort_by_key(|(op, _)| *op);
            rows.extend(stats.into_iter().map(|(op, stats)| Row {
                device: device.name().to_owned(),
                queue: queue.clone(),
                op,
                stats,
            }));
        }
    }
    rows
}

/// The statistics as text that is ready to be written.
pub(crate) fn render(format: Format, program: &str, seconds: f64) -> String {
    match format {
        Format::Text => table(&rows(), program, seconds),
        Format::Json => json_text(&rows(), program, seconds),
    }
}

fn table(rows: &[Row], program: &str, seconds: f64) -> String {
    let mut text = format!("rdma-verbs statistics: pid {}, {program}, {seconds:.3} s\n", std::process::id());
    if rows.is_empty() {
        text.push_str("nothing was posted\n");
        return text;
    }
    let mut put = |line: std::fmt::Arguments| text.write_fmt(line).expect("a String takes every write");
    put(format_args!(
        "{:<8} {:<18} {:<12} {:>9} {:>11} {:>7} {:>14} {:>9} {:>9} {:>9} {:>9}\n",
        "device", "qp", "op", "posts", "completions", "errors", "bytes", "p50_us", "p90_us", "p99_us", "max_us"
    ));
    let mut total = OpStats::default();
    for row in rows {
        total.add(&row.stats);
    }
    let total = [("total", "", String::new(), &total)];
    let lines = rows.iter().map(|row| (row.device.as_str(), row.queue.as_str(), row.op.to_string(), &row.stats));
    for (device, queue, op, stats) in lines.chain(total) {
        put(format_args!(
            "{device:<8} {queue:<18} {op:<12} {:>9} {:>11} {:>7} {:>14}",
            stats.posts,
            stats.completions,
            stats.errors(),
            stats.bytes
        ));
        match stats.percentiles() {
            Some(percentiles) => percentiles.iter().for_each(|value| put(format_args!(" {value:>9.1}"))),
            None => (0..4).for_each(|_| put(format_args!(" {:>9}", "-"))),
        }
        put(format_args!("\n"));
        if device != "total" && !stats.failures.is_empty() {
            let failures: Vec<_> =
                stats.failures.iter().map(|(why, count)| format!("{} {count}", why.name())).collect();
            put(format_args!("{device:<8} {queue:<18} {op:<12} errors: {}\n", failures.join(", ")));
        }
    }
    text
}

fn json_text(rows: &[Row], program: &str, seconds: f64) -> String {
    let queues: Vec<_> = rows
        .iter()
        .map(|row| {
            let failures: Map<_, _> =
                row.stats.failures.iter().map(|(why, count)| (why.name().into_owned(), json!(count))).collect();
            let latency = row
                .stats
                .percentiles()
                .map(|[p50, p90, p99, max]| json!({"p50": p50, "p90": p90, "p99": p99, "max": max}));
            json!({
                "device": row.device, "qp": row.queue, "op": row.op.name(), "posts": row.stats.posts,
                "completions": row.stats.completions, "errors": failures, "bytes": row.stats.bytes,
                "latency_us": latency,
            })
        })
        .collect();
    let all = json!({"pid": std::process::id(), "program": program, "seconds": seconds, "queues": queues});
    all.to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compact_histogram_says_the_same_and_goes_on() {
        let (mut kept, mut compacted) = (OpStats::default(), OpStats::default());
        assert_eq!(compacted.percentiles(), None);
        for nanoseconds in [0, 1, 999, 43_120, 43_121, 5_000_000_000, u64::MAX] {
            kept.took(nanoseconds);
            compacted.compact();
            compacted.took(nanoseconds);
            compacted.compact();
            assert_eq!(compacted.percentiles(), kept.percentiles());
        }
        let mut total = OpStats::default();
        total.add(&compacted);
        total.add(&kept);
        assert_eq!(total.percentiles().map(|[.., max]| max), kept.percentiles().map(|[.., max]| max));
    }
}
