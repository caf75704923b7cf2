//! The names of operations.

use crate::Error;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// One line an operation: its name, the `IBV_WR_` opcode with which it is posted as a send-side request, and the
/// `IBV_WC_` opcode that a successful completion shows.
macro_rules! operations {
    ($($op:ident $name:literal $(wr $wr:literal)? $(wc $wc:literal)?;)*) => {
        /// What a work request asks for, or what completed.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Op {
            $($op,)*
            /// An opcode without a name here: the work request's where it was posted, else the completion's.
            Other(u32),
        }

        impl Op {
            /// All that have a name.
            pub const NAMED: &[Op] = &[$(Op::$op),*];

            /// The operation of a send-side request, from its `ibv_wr_opcode`. A receive has none: it is [`Op::Recv`].
            pub fn posted(opcode: u32) -> Op {
                match opcode {
                    $($($wr => Op::$op,)?)*
                    _ => Op::Other(opcode),
                }
            }

            /// The operation of a successful completion, from its `ibv_wc_opcode`.
            pub fn completed(opcode: u32) -> Op {
                match opcode {
                    $($($wc => Op::$op,)?)*
                    _ => Op::Other(opcode),
                }
            }

            /// The `ibv_wr_opcode` of a send-side request; `None` for a receive, and for what is only seen in completions.
            pub fn opcode(self) -> Option<u32> {
                match self {
                    $(Op::$op => [$(Some($wr),)? None][0],)*
                    Op::Other(opcode) => Some(opcode),
                }
            }

            pub fn name(self) -> Cow<'static, str> {
                match self {
                    $(Op::$op => Cow::Borrowed($name),)*
                    Op::Other(opcode) => Cow::Owned(format!("op{opcode}")),
                }
            }
        }
    };
}

operations! {
    Send "send" wr 2 wc 0;
    SendImm "send_imm" wr 3;
    SendInv "send_inv" wr 9;
    Write "write" wr 0 wc 1;
    WriteImm "write_imm" wr 1;
    Read "read" wr 4 wc 2;
    CmpSwap "cmp_swap" wr 5 wc 3;
    FetchAdd "fetch_add" wr 6 wc 4;
    BindMw "bind_mw" wr 8 wc 5;
    LocalInv "local_inv" wr 7 wc 6;
    Tso "tso" wr 10 wc 7;
    Flush "flush" wr 14 wc 8;
    AtomicWrite "atomic_write" wr 15 wc 9;
    Driver "driver" wr 11;
    Recv "recv" wc 128;
    RecvWriteImm "recv_write_imm" wc 129;
    TmAdd "tm_add" wc 130;
    TmDel "tm_del" wc 131;
    TmSync "tm_sync" wc 132;
    TmRecv "tm_recv" wc 133;
    TmNoTag "tm_no_tag" wc 134;
    Driver1 "driver1" wc 135;
    Driver2 "driver2" wc 136;
    Driver3 "driver3" wc 137;
}

impl Op {
    /// What a completion shows of this request, which is nothing of immediate data and invalidations.
    pub fn completion(self) -> Op {
        match self {
            Op::SendImm | Op::SendInv => Op::Send,
            Op::WriteImm => Op::Write,
            op => op,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for Op {
    type Err = Error;

    /// From what [`Op::name`] gives.
    fn from_str(name: &str) -> Result<Op, Error> {
        let numbered = || name.strip_prefix("op")?.parse().ok().map(Op::Other);
        let named = Op::NAMED.iter().copied().find(|op| op.name() == name);
        named.or_else(numbered).ok_or_else(|| {
            let names: Vec<_> = Op::NAMED.iter().map(|op| op.name()).collect();
            Error::new(format!("no operation is called {name:?}, only {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Op> {
        Op::NAMED.iter().copied().chain([1000, u32::MAX].map(Op::Other))
    }

    #[test]
    fn names_are_read_back() {
        for op in all() {
            assert_eq!(op.name().parse(), Ok(op));
        }
        for name in ["", "SEND", "send ", "op", "op-1", "op99999999999"] {
            assert!(name.parse::<Op>().is_err(), "{name}");
        }
    }

    #[test]
    fn an_opcode_is_one_operation() {
        for opcode in (0..1000).chain([u32::MAX]) {
            assert_eq!(Op::posted(opcode).opcode(), Some(opcode));
        }
        assert_eq!(Op::Recv.opcode(), None);
    }

    #[test]
    fn what_completes_is_something_that_completions_show() {
        for op in Op::NAMED.iter().copied().filter(|op| *op != Op::Driver) {
            assert!((0..=255).any(|opcode| Op::completed(opcode) == op.completion()), "{op}");
        }
    }

    #[test]
    fn columns_can_be_made_of_them() {
        assert_eq!(format!("{:<6}|{:<6}|", Op::Recv, Op::Other(12)), "recv  |op12  |");
    }
}
