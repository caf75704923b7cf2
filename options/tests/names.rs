//! The names belong to the numbers of the installed `<infiniband/verbs.h>`.

use rdma_verbs_options::{Op, status_name};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Each operation with the enumerator of its work request, or "", and that of its completion, or "". Not `flush`:
/// older headers do not have it.
const OPERATIONS: [(Op, &str, &str); 23] = [
    (Op::Send, "IBV_WR_SEND", "IBV_WC_SEND"),
    (Op::SendImm, "IBV_WR_SEND_WITH_IMM", ""),
    (Op::SendInv, "IBV_WR_SEND_WITH_INV", ""),
    (Op::Write, "IBV_WR_RDMA_WRITE", "IBV_WC_RDMA_WRITE"),
    (Op::WriteImm, "IBV_WR_RDMA_WRITE_WITH_IMM", ""),
    (Op::Read, "IBV_WR_RDMA_READ", "IBV_WC_RDMA_READ"),
    (Op::CmpSwap, "IBV_WR_ATOMIC_CMP_AND_SWP", "IBV_WC_COMP_SWAP"),
    (Op::FetchAdd, "IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WC_FETCH_ADD"),
    (Op::BindMw, "IBV_WR_BIND_MW", "IBV_WC_BIND_MW"),
    (Op::LocalInv, "IBV_WR_LOCAL_INV", "IBV_WC_LOCAL_INV"),
    (Op::Tso, "IBV_WR_TSO", "IBV_WC_TSO"),
    (Op::AtomicWrite, "IBV_WR_ATOMIC_WRITE", "IBV_WC_ATOMIC_WRITE"),
    (Op::Driver, "IBV_WR_DRIVER1", ""),
    (Op::Recv, "", "IBV_WC_RECV"),
    (Op::RecvWriteImm, "", "IBV_WC_RECV_RDMA_WITH_IMM"),
    (Op::TmAdd, "", "IBV_WC_TM_ADD"),
    (Op::TmDel, "", "IBV_WC_TM_DEL"),
    (Op::TmSync, "", "IBV_WC_TM_SYNC"),
    (Op::TmRecv, "", "IBV_WC_TM_RECV"),
    (Op::TmNoTag, "", "IBV_WC_TM_NO_TAG"),
    (Op::Driver1, "", "IBV_WC_DRIVER1"),
    (Op::Driver2, "", "IBV_WC_DRIVER2"),
    (Op::Driver3, "", "IBV_WC_DRIVER3"),
];

/// A line of C that does not compile unless the enumerator has this value.
fn check(c: &mut String, enumerator: &str, value: u32) {
    writeln!(c, "_Static_assert({enumerator} == {value}, \"{enumerator}\");").expect("a String takes every write");
}

fn program() -> String {
    let mut c = String::from("#include <infiniband/verbs.h>\n");
    for (op, wr, wc) in OPERATIONS {
        assert_eq!(op.opcode().is_some(), !wr.is_empty(), "{op}");
        if let Some(opcode) = op.opcode() {
            check(&mut c, wr, opcode);
        }
        let shown = (0..=255).find(|opcode| Op::completed(*opcode) == op);
        assert_eq!(shown.is_some(), !wc.is_empty(), "{op}");
        if let Some(opcode) = shown {
            check(&mut c, wc, opcode);
        }
    }
    for status in (0..).take_while(|status| !status_name(*status).starts_with("status")) {
        check(&mut c, &format!("IBV_WC_{}", status_name(status).to_uppercase()), status);
    }
    c
}

#[test]
fn numbers_are_those_of_the_c_header() {
    assert_eq!(OPERATIONS.len() + 1, Op::NAMED.len());
    let program = program();
    assert_eq!(program.lines().count(), 1 + 13 + 19 + 24);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut cc = Command::new(&compiler)
        .args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    cc.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("the compiler reads it all");
    let output = cc.wait_with_output().expect("the compiler ends");
    assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stderr));
}
