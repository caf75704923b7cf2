//! Faults: which posts and completions are made to fail.

use rdma_verbs_options::{Event, Fault, Op, Rule, When};
use std::sync::Mutex;

/// A rule with what it has seen so far.
struct Active {
    rule: Rule,
    progress: Mutex<Progress>,
}

struct Progress {
    seen: u64,
    injected: u64,
    random: fastrand::Rng,
}

#[derive(Default)]
pub(crate) struct Faults(Vec<Active>);

impl Faults {
    pub(crate) fn new(fault: Fault) -> Faults {
        let active = |rule: Rule| {
            let seed = match rule.when {
                When::Rate { seed, .. } => seed,
                When::Nth(_) | When::Every(_) => 0,
            };
            let progress = Progress { seen: 0, injected: 0, random: fastrand::Rng::with_seed(seed) };
            Active { rule, progress: Mutex::new(progress) }
        };
        Faults(fault.rules.into_iter().map(active).collect())
    }

    /// Whether anything was asked for.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The errno with which this post has to fail; `qp` is `None` for a shared receive queue.
    pub(crate) fn post(&self, op: Op, qp: Option<u32>) -> Option<i32> {
        self.first(|rule| rule.is_about_post(op, qp)).and_then(|event| match event {
            Event::Post { errno } => Some(errno),
            Event::Completion { .. } => None,
        })
    }

    /// The status that this completion has to show.
    pub(crate) fn completion(&self, op: Op, qp: u32) -> Option<u32> {
        self.first(|rule| rule.is_about_completion(op, qp)).and_then(|event| match event {
            Event::Completion { status } => Some(status),
            Event::Post { .. } => None,
        })
    }

    /// Of the rules that are about an event, each counts it; the first whose turn it is decides.
    fn first(&self, is_about: impl Fn(&Rule) -> bool) -> Option<Event> {
        let mut decided = None;
        for active in self.0.iter().filter(|active| is_about(&active.rule)) {
            if active.is_due(decided.is_none()) {
                decided = Some(active.rule.event);
            }
        }
        decided
    }
}

impl Active {
    fn is_due(&self, is_free: bool) -> bool {
        let mut progress = self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        progress.seen += 1;
        let due = match self.rule.when {
            When::Nth(n) => progress.seen == n,
            When::Every(n) => progress.seen.is_multiple_of(n),
            When::Rate { probability, .. } => progress.random.f64() < probability,
        };
        let due = due && is_free && self.rule.count.is_none_or(|count| progress.injected < count);
        progress.injected += u64::from(due);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(spec: &str) -> Faults {
        Faults::new(spec.parse().expect("a specification"))
    }

    fn posts(faults: &Faults, op: Op, n: usize) -> Vec<usize> {
        (1..=n).filter(|_| true).filter(|_| faults.post(op, Some(1)).is_some()).collect()
    }

    #[test]
    fn the_nth_of_its_kind() {
        let faults = faults("post.send:nth=3:errno=EAGAIN");
        assert_eq!(faults.post(Op::Write, Some(1)), None);
        assert_eq!(posts(&faults, Op::Send, 10), [3]);
    }

    #[test]
    fn every_nth_up_to_a_count() {
        assert_eq!(posts(&faults("post:every=3:count=2"), Op::Send, 20), [3, 6]);
    }

    #[test]
    fn a_rate_repeats_with_its_seed() {
        let run = |seed: u32| posts(&faults(&format!("post:rate=0.2:seed={seed}")), Op::Send, 1000);
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        assert!((100..300).contains(&run(7).len()));
    }

    #[test]
    fn posts_and_completions_have_rules_of_their_own() {
        let faults = faults("post.recv:errno=EIO,wc.recv:status=loc_prot_err");
        assert_eq!(faults.completion(Op::Recv, 1), Some(4));
        assert_eq!(faults.post(Op::Recv, None), Some(libc::EIO));
        assert_eq!(faults.completion(Op::Recv, 1), None);
    }
}
