//! Counts and latencies, for each queue and operation, and the table of them.

use crate::device::Device;
use crate::record::Posted;
use crate::request::Request;
use crate::trace::Place;
use hdrhistogram::Histogram;
use rdma_verbs_options::{Format, Op, errno_name, status_name};
use serde_json::{Map, json};
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
    fn name(self) -> std::borrow::Cow<'static, str> {
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
    /// Nanoseconds from post to completion.
    latency: Option<Histogram<u64>>,
}

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
        let new = || Histogram::new(2).expect("two digits are in range");
        let latency = self.latency.get_or_insert_with(new);
        latency.record(nanoseconds).expect("it resizes itself for every value");
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
        match (&mut self.latency, &other.latency) {
            (Some(sum), Some(other)) => sum.add(other).expect("both resize themselves"),
            (None, Some(other)) => self.latency = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// Microseconds at 50, 90, 99 percent, and the longest.
    fn percentiles(&self) -> Option<[f64; 4]> {
        let latency = self.latency.as_ref()?;
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
            let mut stats = record.lock().stats.clone();
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
