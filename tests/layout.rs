//! The structs and constants of rdma-sys that `src/sys.rs` takes are those of the installed C headers.
//!
//! rdma-sys writes structs with unions by hand; bindgen derives the rest. Every field that the library touches is
//! compared in offset and size by a C compiler.

use rdma_sys::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

/// Lines of C that do not compile unless `holds`.
fn check(c: &mut String, holds: &str) {
    writeln!(c, "_Static_assert({holds}, \"{holds}\");").expect("a String takes every write");
}

/// The size of what a projection selects, without a value of the whole type.
fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layout {
    ($c:ident, $type:ident { $($($field:ident).+),* $(,)? }) => {
        check($c, &format!("sizeof(struct {}) == {}", stringify!($type), size_of::<$type>()));
        check($c, &format!("_Alignof(struct {}) == {}", stringify!($type), align_of::<$type>()));
        $(
            let path = stringify!($($field).+).replace(' ', "");
            // SAFETY: the projection is never called.
            #[allow(unused_unsafe, reason = "only a field of a union needs it")]
            let size = size_of_field(|object: &$type| unsafe { &object.$($field).+ });
            check($c, &format!("offsetof(struct {}, {path}) == {}", stringify!($type), offset_of!($type, $($field).+)));
            check($c, &format!("sizeof(((struct {} *)0)->{path}) == {size}", stringify!($type)));
        )*
    };
}

macro_rules! constants {
    ($c:ident, $($name:ident = $value:expr),* $(,)?) => {
        $(check($c, &format!("{} == {}", stringify!($name), $value));)*
    };
}

fn program() -> String {
    let mut text = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n");
    let c = &mut text;
    layout!(c, rdma_cm_id { qp, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd });
    layout!(c, ibv_qp { context, srq, state, qp_type });
    layout!(c, ibv_srq { context });
    layout!(c, ibv_cq { context });
    layout!(c, ibv_context { device, ops });
    layout!(c, ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv });
    layout!(c, ibv_device { transport_type });
    layout!(c, ibv_mr { addr, length, lkey });
    layout!(c, ibv_sge { addr, length, lkey });
    layout!(c, ibv_recv_wr { wr_id, next, sg_list, num_sge });
    layout!(c, ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags,
        wr.rdma.remote_addr, wr.rdma.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey,
    });
    layout!(c, ibv_wc {});
    constants!(
        c,
        IBV_SEND_INLINE = ibv_send_flags::IBV_SEND_INLINE.0,
        IBV_ACCESS_LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        IBV_ACCESS_REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        IBV_ACCESS_REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        IBV_QPS_RESET = ibv_qp_state::IBV_QPS_RESET,
        IBV_QPS_INIT = ibv_qp_state::IBV_QPS_INIT,
        IBV_QPS_RTR = ibv_qp_state::IBV_QPS_RTR,
        IBV_QPT_UD = ibv_qp_type::IBV_QPT_UD,
        IBV_QPT_XRC_SEND = ibv_qp_type::IBV_QPT_XRC_SEND,
        IBV_TRANSPORT_IB = ibv_transport_type::IBV_TRANSPORT_IB,
        IBV_WR_SEND = ibv_wr_opcode::IBV_WR_SEND,
        IBV_WR_RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ,
        IBV_WR_RDMA_WRITE = ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        RDMA_UDP_QKEY = RDMA_UDP_QKEY,
    );
    text
}

/// What the compiler says of the program: nothing where everything in it holds.
fn complaints(program: &str) -> String {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut child = Command::new(compiler)
        .args(["-std=c11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    child.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("the compiler reads");
    let output = child.wait_with_output().expect("the compiler ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn structs_and_constants_are_those_of_the_c_headers() {
    assert_eq!(complaints(&program()), "");
}

#[test]
fn a_wrong_offset_would_be_seen() {
    let wrong = program().replace("offsetof(struct ibv_qp, state) == ", "offsetof(struct ibv_qp, state) == 1");
    assert_ne!(wrong, program());
    assert!(complaints(&wrong).contains("offsetof(struct ibv_qp, state)"));
}
