//! `RDMA_VERBS_FAULT`: which posts and completions are made to fail, and how.
//!
//! ```text
//! SPEC  = RULE[,RULE...]
//! RULE  = WHERE[:KEY=VALUE...]
//! WHERE = post | post.OP | wc | wc.OP
//! KEY   = errno (post) | status (wc) | nth | every | rate | seed (with rate) | count | qp
//! ```

use crate::{Error, Op, errno_from_name, errno_name, status_from_name, status_name};
use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

/// The rules, in the order in which they were given. There is at least one.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    pub rules: Vec<Rule>,
}

/// What is made to fail, how and how often.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    pub event: Event,
    /// Only this operation.
    pub op: Option<Op>,
    /// Only on the queue pair of this number.
    pub qp: Option<u32>,
    pub when: When,
    /// At most so many times.
    pub count: Option<u64>,
}

/// What is made to fail, and what the program is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A work request that is posted; the errno is positive.
    Post { errno: i32 },
    /// A work completion that is polled; the status is not success.
    Completion { status: u32 },
}

/// Which of the events that a rule is about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum When {
    /// This one, counted from 1.
    Nth(u64),
    /// Each one whose number, counted from 1, is a multiple of this.
    Every(u64),
    /// Each with this probability, from 0 to 1, by a generator that starts from the seed.
    Rate { probability: f64, seed: u64 },
}

impl Rule {
    /// Whether the rule is about the post of such a request; `qp` is `None` for a shared receive queue.
    pub fn is_about_post(&self, op: Op, qp: Option<u32>) -> bool {
        matches!(self.event, Event::Post { .. }) && self.selects(op, qp)
    }

    /// Whether the rule is about such a completion.
    pub fn is_about_completion(&self, op: Op, qp: u32) -> bool {
        matches!(self.event, Event::Completion { .. }) && self.selects(op, Some(qp))
    }

    fn selects(&self, op: Op, qp: Option<u32>) -> bool {
        self.op.is_none_or(|only| only == op) && (self.qp.is_none() || self.qp == qp)
    }
}

impl Fault {
    pub fn parse(value: &OsStr) -> Result<Fault, Error> {
        value.to_str().ok_or_else(|| Error::new("expected a fault specification, not binary data"))?.parse()
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(spec: &str) -> Result<Fault, Error> {
        let rules = spec.split(',').map(Rule::from_str).collect::<Result<_, _>>()?;
        Ok(Fault { rules })
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(rule: &str) -> Result<Rule, Error> {
        let mut parts = rule.split(':');
        let place = Place::parse(parts.next().unwrap_or_default())?;
        let mut keys = Keys::default();
        for part in parts {
            keys.take(part)?;
        }
        Ok(Rule { event: keys.event(place.kind)?, op: place.op, qp: keys.qp, when: keys.when()?, count: keys.count })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Post,
    Completion,
}

/// What stands before the first colon.
struct Place {
    kind: Kind,
    op: Option<Op>,
}

impl Place {
    fn parse(text: &str) -> Result<Place, Error> {
        let (kind, op) = match text.split_once('.') {
            None => (text, None),
            Some((kind, op)) => (kind, Some(op.parse()?)),
        };
        match kind {
            "post" => Ok(Place { kind: Kind::Post, op: op.map(posted).transpose()? }),
            "wc" => Ok(Place { kind: Kind::Completion, op: op.map(completed) }),
            "" => Err(Error::new("a rule is empty; expected post or wc, as in post.send:nth=3")),
            _ => Err(Error::new(format!("{kind:?}: expected post or wc, as in post.send:nth=3"))),
        }
    }
}

/// An operation in a rule on posts.
fn posted(op: Op) -> Result<Op, Error> {
    match op {
        Op::Other(opcode) => Ok(Op::posted(opcode)),
        _ if op == Op::Recv || op.opcode().is_some() => Ok(op),
        _ => Err(Error::new(format!("no request is posted as {op}; only completions show it"))),
    }
}

/// An operation in a rule on completions: that of the request where its post was seen, else the completion's.
fn completed(op: Op) -> Op {
    match op {
        Op::Other(opcode) => Op::completed(opcode),
        _ => op,
    }
}

/// What stands behind the first colon.
#[derive(Default)]
struct Keys {
    errno: Option<i32>,
    status: Option<u32>,
    nth: Option<u64>,
    every: Option<u64>,
    rate: Option<f64>,
    seed: Option<u64>,
    count: Option<u64>,
    qp: Option<u32>,
}

impl Keys {
    fn take(&mut self, part: &str) -> Result<(), Error> {
        let (key, text) = part.split_once('=').ok_or_else(|| wrong(part, "KEY=VALUE"))?;
        match key {
            "errno" => once(&mut self.errno, part, errno_from_name(text), "the name of an errno, as in errno=ENOMEM"),
            "status" => once(&mut self.status, part, error_status(text), STATUS),
            "nth" => once(&mut self.nth, part, positive(text), "a number from 1"),
            "every" => once(&mut self.every, part, positive(text), "a number from 1"),
            "rate" => once(&mut self.rate, part, probability(text), "a probability from 0 to 1, as in rate=0.05"),
            "seed" => once(&mut self.seed, part, number(text), "a number"),
            "count" => once(&mut self.count, part, positive(text), "a number from 1"),
            "qp" => once(&mut self.qp, part, qp_number(text), "the number of a queue pair, as in qp=0x11"),
            _ => Err(wrong(part, "errno, status, nth, every, rate, seed, count or qp")),
        }
    }

    fn event(&self, kind: Kind) -> Result<Event, Error> {
        match (kind, self.errno, self.status) {
            (Kind::Post, errno, None) => Ok(Event::Post { errno: errno.unwrap_or(libc::ENOMEM) }),
            (Kind::Post, _, Some(_)) => Err(Error::new("a post has no status; expected errno")),
            (Kind::Completion, None, status) => Ok(Event::Completion { status: status.unwrap_or(GENERAL_ERR) }),
            (Kind::Completion, Some(_), _) => Err(Error::new("a completion has no errno; expected status")),
        }
    }

    fn when(&self) -> Result<When, Error> {
        match (self.nth, self.every, self.rate, self.seed) {
            (None, None, Some(probability), seed) => Ok(When::Rate { probability, seed: seed.unwrap_or(1) }),
            (_, _, None, Some(_)) => Err(Error::new("a seed is of use with rate only")),
            (None, Some(every), None, None) => Ok(When::Every(every)),
            (nth, None, None, None) => Ok(When::Nth(nth.unwrap_or(1))),
            _ => Err(Error::new("expected one of nth, every and rate, not several")),
        }
    }
}

/// `IBV_WC_GENERAL_ERR`.
const GENERAL_ERR: u32 = 21;

const STATUS: &str = "the status of a failed completion, as in status=rnr_retry_exc_err";

fn wrong(part: &str, expected: &str) -> Error {
    Error::new(format!("{part:?}: expected {expected}"))
}

/// Stores the value of a key that may be there only once.
fn once<T>(place: &mut Option<T>, part: &str, value: Option<T>, expected: &str) -> Result<(), Error> {
    let value = value.ok_or_else(|| wrong(part, expected))?;
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(format!("{part:?}: the rule has this key twice"))),
    }
}

/// Decimal, or hexadecimal after `0x`. The parsers of integers would take a sign, too.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    digits.chars().all(|digit| digit.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok())?
}

fn positive(text: &str) -> Option<u64> {
    number(text).filter(|number| *number > 0)
}

fn qp_number(text: &str) -> Option<u32> {
    number(text)?.try_into().ok()
}

fn probability(text: &str) -> Option<f64> {
    text.parse().ok().filter(|probability| (0.0..=1.0).contains(probability))
}

fn error_status(text: &str) -> Option<u32> {
    status_from_name(text).filter(|status| *status != 0)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, rule) in self.rules.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.event {
            Event::Post { .. } => "post",
            Event::Completion { .. } => "wc",
        })?;
        if let Some(op) = self.op {
            write!(f, ".{op}")?;
        }
        match self.event {
            Event::Post { errno } => write!(f, ":errno={}", errno_name(errno))?,
            Event::Completion { status } => write!(f, ":status={}", status_name(status))?,
        }
        match self.when {
            When::Nth(nth) => write!(f, ":nth={nth}")?,
            When::Every(every) => write!(f, ":every={every}")?,
            When::Rate { probability, seed } => write!(f, ":rate={probability}:seed={seed}")?,
        }
        if let Some(count) = self.count {
            write!(f, ":count={count}")?;
        }
        if let Some(qp) = self.qp {
            write!(f, ":qp={qp:#x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::option;
    use proptest::prelude::*;

    fn only(rule: &str) -> Rule {
        let fault: Fault = rule.parse().unwrap_or_else(|error| panic!("{rule}: {error}"));
        assert_eq!(fault.rules.len(), 1);
        fault.rules[0].clone()
    }

    fn refusal(spec: &str) -> String {
        spec.parse::<Fault>().expect_err(spec).to_string()
    }

    #[test]
    fn a_bare_place_fails_its_first_event() {
        let post =
            Rule { event: Event::Post { errno: libc::ENOMEM }, op: None, qp: None, when: When::Nth(1), count: None };
        assert_eq!(only("post"), post);
        assert_eq!(only("wc"), Rule { event: Event::Completion { status: 21 }, ..post });
    }

    #[test]
    fn every_key_is_read() {
        assert_eq!(
            only("wc.send:status=rnr_retry_exc_err:rate=0.01:seed=7:count=4:qp=0x11"),
            Rule {
                event: Event::Completion { status: 13 },
                op: Some(Op::Send),
                qp: Some(17),
                when: When::Rate { probability: 0.01, seed: 7 },
                count: Some(4),
            }
        );
        assert_eq!(only("post.recv:every=10:errno=EAGAIN").when, When::Every(10));
        assert_eq!(only("post:rate=1").when, When::Rate { probability: 1.0, seed: 1 });
        assert_eq!(only("post:qp=17"), only("post:qp=0x11"));
    }

    #[test]
    fn rules_keep_their_order() {
        let fault: Fault = "post:errno=EINVAL,wc.recv:nth=2:status=loc_prot_err".parse().expect("two rules");
        assert_eq!(fault.to_string(), "post:errno=EINVAL:nth=1,wc.recv:status=loc_prot_err:nth=2");
    }

    #[test]
    fn an_operation_by_number_is_the_one_that_has_a_name() {
        assert_eq!(only("post.op2").op, Some(Op::Send));
        assert_eq!(only("wc.op0").op, Some(Op::Send));
        assert_eq!(only("wc.op77").op, Some(Op::Other(77)));
    }

    #[test]
    fn each_mistake_is_named() {
        for (spec, why) in [
            ("", "a rule is empty; expected post or wc, as in post.send:nth=3"),
            ("post,", "a rule is empty; expected post or wc, as in post.send:nth=3"),
            ("pst", "\"pst\": expected post or wc, as in post.send:nth=3"),
            ("post\n", "\"post\\n\": expected post or wc, as in post.send:nth=3"),
            ("post.tm_add", "no request is posted as tm_add; only completions show it"),
            ("post.recv_write_imm", "no request is posted as recv_write_imm; only completions show it"),
            ("post:", "\"\": expected KEY=VALUE"),
            ("post:nth", "\"nth\": expected KEY=VALUE"),
            ("post:n=1", "\"n=1\": expected errno, status, nth, every, rate, seed, count or qp"),
            ("post:nth=0", "\"nth=0\": expected a number from 1"),
            ("post:nth=", "\"nth=\": expected a number from 1"),
            ("post:nth=+1", "\"nth=+1\": expected a number from 1"),
            ("post:every=0", "\"every=0\": expected a number from 1"),
            ("post:count=0", "\"count=0\": expected a number from 1"),
            ("post:nth=1:nth=1", "\"nth=1\": the rule has this key twice"),
            ("post:nth=1:every=2", "expected one of nth, every and rate, not several"),
            ("post:nth=1:rate=0.1:seed=2", "expected one of nth, every and rate, not several"),
            ("post:every=1:seed=2", "a seed is of use with rate only"),
            ("post:rate=1.5", "\"rate=1.5\": expected a probability from 0 to 1, as in rate=0.05"),
            ("post:rate=NaN", "\"rate=NaN\": expected a probability from 0 to 1, as in rate=0.05"),
            ("post:rate=-0.1", "\"rate=-0.1\": expected a probability from 0 to 1, as in rate=0.05"),
            ("post:errno=enomem", "\"errno=enomem\": expected the name of an errno, as in errno=ENOMEM"),
            ("post:status=fatal_err", "a post has no status; expected errno"),
            ("wc:errno=ENOMEM", "a completion has no errno; expected status"),
            ("wc:qp=0x100000000", "\"qp=0x100000000\": expected the number of a queue pair, as in qp=0x11"),
            ("wc:qp=0x", "\"qp=0x\": expected the number of a queue pair, as in qp=0x11"),
        ] {
            assert_eq!(refusal(spec), why, "{spec}");
        }
        assert_eq!(refusal("wc:status=success"), format!("\"status=success\": expected {STATUS}"));
        assert!(refusal("post.sned").starts_with("no operation is called \"sned\", only send, send_imm, "));
    }

    #[test]
    fn a_rule_is_about_its_own_events() {
        let post = only("post.send_imm:qp=0x11");
        assert!(post.is_about_post(Op::SendImm, Some(17)));
        assert!(!post.is_about_post(Op::Send, Some(17)));
        assert!(!post.is_about_post(Op::SendImm, Some(18)));
        assert!(!post.is_about_post(Op::SendImm, None));
        assert!(!post.is_about_completion(Op::SendImm, 17));

        let completion = only("wc.send");
        assert!(completion.is_about_completion(Op::Send, 17));
        assert!(completion.is_about_completion(Op::Send, 18));
        assert!(!completion.is_about_completion(Op::SendImm, 17));
        assert!(!completion.is_about_post(Op::Send, Some(17)));

        assert!(only("post").is_about_post(Op::Recv, None));
    }

    fn op(from: fn(u32) -> Op) -> impl Strategy<Value = Option<Op>> {
        option::of((0..200u32).prop_map(from))
    }

    fn event_and_op() -> impl Strategy<Value = (Event, Option<Op>)> {
        let post = (1..4096, prop_oneof![op(Op::posted), Just(Some(Op::Recv))])
            .prop_map(|(errno, op)| (Event::Post { errno }, op));
        let completion = (1..40u32, op(Op::completed)).prop_map(|(status, op)| (Event::Completion { status }, op));
        prop_oneof![post, completion]
    }

    fn when() -> impl Strategy<Value = When> {
        prop_oneof![
            (1..=u64::MAX).prop_map(When::Nth),
            (1..=u64::MAX).prop_map(When::Every),
            (0.0..=1.0, any::<u64>()).prop_map(|(probability, seed)| When::Rate { probability, seed }),
        ]
    }

    fn rule() -> impl Strategy<Value = Rule> {
        (event_and_op(), option::of(any::<u32>()), when(), option::of(1..=u64::MAX))
            .prop_map(|((event, op), qp, when, count)| Rule { event, op, qp, when, count })
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(rules in prop::collection::vec(rule(), 1..5)) {
            let fault = Fault { rules };
            prop_assert_eq!(fault.to_string().parse(), Ok(fault));
        }

        #[test]
        fn what_is_read_is_printed_so_that_it_is_read_as_the_same(
            spec in "(post|wc)(\\.(send|recv|write|op[0-9]{1,3}))?(:(nth|every|rate|seed|count|qp)=(0x)?[0-9.]{1,4}){0,4}",
        ) {
            if let Ok(fault) = spec.parse::<Fault>() {
                prop_assert_eq!(fault.to_string().parse(), Ok(fault));
            }
        }

        #[test]
        fn no_text_makes_it_panic_or_say_more_than_a_line(spec in "(post|wc|[.:=,]|\\PC|\n){0,20}") {
            if let Err(error) = spec.parse::<Fault>() {
                prop_assert!(!error.to_string().contains(char::is_control), "{}", error);
            }
        }
    }
}
