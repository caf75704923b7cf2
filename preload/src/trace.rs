//! One line for each post and completion.

use crate::clock;
use crate::output::Output;
use crate::request::{FLAGS, Request};
use rdma_sys::{ibv_sge, ibv_wc};
use rdma_verbs_contract::errno::Errno;
use rdma_verbs_options::{Format, Op, errno_name, status_name};
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// What a line says beside its first words.
enum Value {
    Number(u64),
    Hex(u64),
    Microseconds(f64),
    Word(Cow<'static, str>),
    Flags(u32),
    Entries(Vec<ibv_sge>),
}

/// Where a request or completion belongs.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Qp(u32),
    Srq(usize),
}

impl Place {
    fn field(self) -> (&'static str, Value) {
        match self {
            Place::Qp(number) => ("qp", Value::Hex(number.into())),
            Place::Srq(address) => ("srq", Value::Hex(address as u64)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Qp(number) => write!(f, "qp {number:#x}"),
            Place::Srq(address) => write!(f, "srq {address:#x}"),
        }
    }
}

/// What became of a request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// 0, or a positive errno.
    pub(crate) errno: i32,
    /// The rule by which it was refused before the provider saw it.
    pub(crate) refused: Option<&'static str>,
    pub(crate) injected: bool,
}

impl Outcome {
    pub(crate) const ACCEPTED: Outcome = Outcome { errno: 0, refused: None, injected: false };

    pub(crate) fn failed(errno: Errno) -> Outcome {
        Outcome { errno: errno.get(), refused: None, injected: false }
    }

    /// `errno` is positive.
    pub(crate) fn injected(errno: i32) -> Outcome {
        Outcome { errno, refused: None, injected: true }
    }
}

pub(crate) struct Trace {
    pub(crate) output: Output,
    pub(crate) format: Format,
}

impl Trace {
    pub(crate) fn post(&self, device: &str, place: Place, request: &Request, outcome: Outcome) {
        self.line(device, "post", request.op, post_fields(place, request, outcome));
    }

    pub(crate) fn completion(
        &self,
        device: &str,
        op: Op,
        bytes: u64,
        wc: &ibv_wc,
        latency: Option<u64>,
        injected: bool,
    ) {
        let mut fields = vec![
            Place::Qp(wc.qp_num).field(),
            ("wr_id", Value::Hex(wc.wr_id)),
            ("status", Value::Word(status_name(wc.status))),
            ("bytes", Value::Number(bytes)),
        ];
        const WITH_IMM: u32 = rdma_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
        if wc.status == 0 && wc.wc_flags & WITH_IMM != 0 {
            // SAFETY: both members of the union are 32-bit integers.
            let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
            fields.push(("imm", Value::Hex(u32::from_be(imm).into())));
        }
        if wc.status != 0 && wc.vendor_err != 0 {
            fields.push(("vendor_err", Value::Hex(wc.vendor_err.into())));
        }
        if let Some(latency) = latency {
            fields.push(("latency_us", Value::Microseconds(latency as f64 / 1000.0)));
        }
        if injected {
            fields.push(("injected", Value::Word(Cow::Borrowed("yes"))));
        }
        self.line(device, "wc", op, fields);
    }

    fn line(&self, device: &str, event: &str, op: Op, fields: Vec<(&'static str, Value)>) {
        let now = clock::wall_us();
        // SAFETY: has no preconditions.
        let tid = unsafe { libc::gettid() };
        let line = match self.format {
            Format::Text => text(now, tid, device, event, op, &fields),
            Format::Json => json_line(now, tid, device, event, op, &fields),
        };
        self.output.write(&line);
    }
}

/// What a line says of a request that was posted.
fn post_fields(place: Place, request: &Request, outcome: Outcome) -> Vec<(&'static str, Value)> {
    let mut fields = vec![
        place.field(),
        ("wr_id", Value::Hex(request.wr_id)),
        ("sge", Value::Number(request.sges.len() as u64)),
        ("bytes", Value::Number(request.bytes())),
    ];
    if request.op != Op::Recv {
        fields.push(("flags", Value::Flags(request.flags)));
    }
    if let Some(imm) = request.imm {
        fields.push(("imm", Value::Hex(u32::from_be(imm).into())));
    }
    if let Some(remote) = request.remote {
        fields.push(("remote", Value::Hex(remote.addr)));
        fields.push(("rkey", Value::Hex(remote.rkey.into())));
    }
    if let Some(datagram) = request.datagram {
        fields.push(("ah", Value::Hex(datagram.ah as u64)));
        fields.push(("remote_qpn", Value::Hex(datagram.remote_qpn.into())));
    }
    if !request.sges.is_empty() {
        fields.push(("list", Value::Entries(request.sges.to_vec())));
    }
    let result = if outcome.errno == 0 { Cow::Borrowed("0") } else { errno_name(outcome.errno) };
    fields.push(("result", Value::Word(result)));
    if let Some(rule) = outcome.refused {
        fields.push(("refused", Value::Word(Cow::Borrowed(rule))));
    }
    if outcome.injected {
        fields.push(("injected", Value::Word(Cow::Borrowed("yes"))));
    }
    fields
}

fn text(now: u64, tid: i32, device: &str, event: &str, op: Op, fields: &[(&'static str, Value)]) -> String {
    let mut line = String::with_capacity(256);
    let mut put = |part: fmt::Arguments| line.write_fmt(part).expect("a String takes every write");
    put(format_args!("{}.{:06} {tid} {device} {event} {op}", now / 1_000_000, now % 1_000_000));
    for (key, value) in fields {
        put(format_args!(" {key}="));
        match value {
            Value::Number(number) => put(format_args!("{number}")),
            Value::Hex(number) => put(format_args!("{number:#x}")),
            Value::Microseconds(number) => put(format_args!("{number:.3}")),
            Value::Word(word) => put(format_args!("{word}")),
            Value::Flags(flags) => put(format_args!("{}", flag_names(*flags, "|"))),
            Value::Entries(entries) => {
                for (index, sge) in entries.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    put(format_args!("{comma}{:#x}+{}/{:#x}", sge.addr, sge.length, sge.lkey));
                }
            }
        }
    }
    line.push('\n');
    line
}

/// The names of the flags that are set, or 0; flags without a name as a number.
fn flag_names(flags: u32, separator: &str) -> String {
    let mut names: Vec<Cow<str>> = Vec::new();
    let mut rest = flags;
    for (flag, name) in FLAGS {
        if flags & flag != 0 {
            names.push(Cow::Borrowed(name));
            rest &= !flag;
        }
    }
    if rest != 0 {
        names.push(Cow::Owned(format!("{rest:#x}")));
    }
    if names.is_empty() { "0".to_owned() } else { names.join(separator) }
}

fn json_line(now: u64, tid: i32, device: &str, event: &str, op: Op, fields: &[(&'static str, Value)]) -> String {
    let mut object = Map::new();
    object.insert("time".into(), json!(now as f64 / 1e6));
    object.insert("pid".into(), json!(std::process::id()));
    object.insert("tid".into(), json!(tid));
    object.insert("device".into(), json!(device));
    object.insert("event".into(), json!(event));
    object.insert("op".into(), json!(op.name()));
    for (key, value) in fields {
        let value = match value {
            Value::Hex(number) if *key == "qp" => json!(number),
            Value::Number(number) => json!(number),
            // Numbers of 64 bits do not survive in every JSON reader.
            Value::Hex(number) => json!(format!("{number:#x}")),
            Value::Microseconds(number) => json!(number),
            Value::Word(word) if *key == "injected" => json!(word == "yes"),
            Value::Word(word) => json!(word),
            Value::Flags(0) => json!([]),
            Value::Flags(flags) => flag_names(*flags, "|").split('|').map(Json::from).collect(),
            Value::Entries(entries) => entries
                .iter()
                .map(|sge| {
                    json!({
                        "addr": format!("{:#x}", sge.addr), "length": sge.length, "lkey": format!("{:#x}", sge.lkey),
                    })
                })
                .collect(),
        };
        object.insert((*key).into(), value);
    }
    Json::Object(object).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{INLINE, Remote, SIGNALED};

    fn fields() -> Vec<(&'static str, Value)> {
        let list = vec![ibv_sge { addr: 0x1000, length: 16, lkey: 7 }, ibv_sge { addr: 0x2000, length: 4, lkey: 8 }];
        vec![
            Place::Qp(17).field(),
            ("wr_id", Value::Hex(u64::MAX)),
            ("sge", Value::Number(2)),
            ("flags", Value::Flags(SIGNALED | INLINE | 1 << 20)),
            ("list", Value::Entries(list)),
            ("latency_us", Value::Microseconds(1.5)),
            ("injected", Value::Word(Cow::Borrowed("yes"))),
        ]
    }

    #[test]
    fn a_line_of_text() {
        assert_eq!(
            text(1_764_457_200_000_042, 9, "rxe0", "post", Op::Send, &fields()),
            "1764457200.000042 9 rxe0 post send qp=0x11 wr_id=0xffffffffffffffff sge=2 \
             flags=signaled|inline|0x100000 list=0x1000+16/0x7,0x2000+4/0x8 latency_us=1.500 injected=yes\n"
        );
    }

    #[test]
    fn a_line_of_json_says_the_same() {
        let line = json_line(1_764_457_200_000_042, 9, "rxe0", "post", Op::Send, &fields());
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        let read: Json = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["qp"], 17);
        assert_eq!(read["wr_id"], "0xffffffffffffffff");
        assert_eq!(read["flags"], json!(["signaled", "inline", "0x100000"]));
        assert_eq!(read["list"][1], json!({"addr": "0x2000", "length": 4, "lkey": "0x8"}));
        assert_eq!(read["injected"], true);
    }

    #[test]
    fn a_request_names_the_peer() {
        let sges = [];
        let remote = Some(Remote { addr: 1, rkey: 2 });
        let request = Request { wr_id: 0, op: Op::Read, flags: 0, sges: &sges, imm: None, remote, datagram: None };
        assert_eq!(
            text(0, 9, "rxe0", "post", Op::Read, &post_fields(Place::Qp(17), &request, Outcome::ACCEPTED)),
            "0.000000 9 rxe0 post read qp=0x11 wr_id=0x0 sge=0 bytes=0 flags=0 remote=0x1 rkey=0x2 result=0\n"
        );
        assert_eq!(request.bytes(), 0);
    }
}
