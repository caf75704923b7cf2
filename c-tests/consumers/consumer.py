#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The library from Python, by its exported names; TAP on standard output.

usage: consumer.py LIBRARY
"""

import errno
import sys
from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char, c_int, c_size_t, c_uint32, c_uint64, c_void_p,
                    addressof, create_string_buffer, get_errno, pointer, set_errno, sizeof)

ID, CONTEXT, ADDR, MR, SGL, AH, WC = (c_void_p,) * 7
SIZE, COUNT, FLAGS, QPN, RKEY, REMOTE = c_size_t, c_int, c_int, c_uint32, c_uint32, c_uint64

FUNCTIONS = {
    "rdma_reg_msgs": (c_void_p, [ID, ADDR, SIZE]),
    "rdma_reg_read": (c_void_p, [ID, ADDR, SIZE]),
    "rdma_reg_write": (c_void_p, [ID, ADDR, SIZE]),
    "rdma_dereg_mr": (c_int, [MR]),
    "rdma_post_recvv": (c_int, [ID, CONTEXT, SGL, COUNT]),
    "rdma_post_sendv": (c_int, [ID, CONTEXT, SGL, COUNT, FLAGS]),
    "rdma_post_readv": (c_int, [ID, CONTEXT, SGL, COUNT, FLAGS, REMOTE, RKEY]),
    "rdma_post_writev": (c_int, [ID, CONTEXT, SGL, COUNT, FLAGS, REMOTE, RKEY]),
    "rdma_post_recv": (c_int, [ID, CONTEXT, ADDR, SIZE, MR]),
    "rdma_post_send": (c_int, [ID, CONTEXT, ADDR, SIZE, MR, FLAGS]),
    "rdma_post_read": (c_int, [ID, CONTEXT, ADDR, SIZE, MR, FLAGS, REMOTE, RKEY]),
    "rdma_post_write": (c_int, [ID, CONTEXT, ADDR, SIZE, MR, FLAGS, REMOTE, RKEY]),
    "rdma_post_ud_send": (c_int, [ID, CONTEXT, ADDR, SIZE, MR, FLAGS, AH, QPN]),
    "rdma_get_send_comp": (c_int, [ID, WC]),
    "rdma_get_recv_comp": (c_int, [ID, WC]),
}


class Sge(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class SendWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int),
                ("opcode", c_int), ("send_flags", c_uint32), ("imm_data", c_uint32), ("remote_addr", c_uint64),
                ("rkey", c_uint32), ("rest", c_char * 60)]


POST_SEND = CFUNCTYPE(c_int, c_void_p, POINTER(SendWr), c_void_p)


class Context(Structure):
    # ops is a table of 32 functions, of which post_send is number 25; this library looks at nothing behind it.
    _fields_ = [("device", c_void_p), ("before", c_void_p * 25), ("post_send", POST_SEND), ("after", c_void_p * 6),
                ("rest", c_char * 256)]


class Qp(Structure):
    _fields_ = [("context", POINTER(Context)), ("qp_context", c_void_p), ("pd", c_void_p), ("send_cq", c_void_p),
                ("recv_cq", c_void_p), ("srq", c_void_p), ("handle", c_uint32), ("qp_num", c_uint32),
                ("state", c_int), ("qp_type", c_int), ("rest", c_char * 256)]


class CmId(Structure):
    _fields_ = [("verbs", c_void_p), ("channel", c_void_p), ("context", c_void_p), ("qp", POINTER(Qp)),
                ("rest", c_char * 1024)]


class Mr(Structure):
    _fields_ = [("context", c_void_p), ("pd", c_void_p), ("addr", c_void_p), ("length", c_size_t),
                ("handle", c_uint32), ("lkey", c_uint32), ("rkey", c_uint32)]


IBV_QPS_RTS = 3
IBV_QPT_RC = 2
IBV_WR_RDMA_WRITE = 0

tests = 0
failures = 0


def result(ok, name, *why):
    global tests, failures
    tests += 1
    if ok:
        print(f"ok {tests} - {name}")
    else:
        failures += 1
        print(f"not ok {tests} - {name}")
        print("#", *why)


def posting(rdma):
    """A post through an operations table of Python functions, in structures that are declared here."""
    seen = []
    answer = 0

    def post_send(_qp, wr, _bad):
        wr = wr[0]
        sges = [(sge.addr, sge.length, sge.lkey) for sge in wr.sg_list[:wr.num_sge]]
        seen.append((wr.wr_id, sges, wr.opcode, wr.send_flags, wr.remote_addr, wr.rkey))
        return answer

    context = Context(post_send=POST_SEND(post_send))
    qp = Qp(context=pointer(context), state=IBV_QPS_RTS, qp_type=IBV_QPT_RC)
    cm_id = CmId(qp=pointer(qp))
    buffer = create_string_buffer(64)
    mr = Mr(addr=addressof(buffer), length=sizeof(buffer), lkey=0x1234)

    set_errno(errno.EXFULL)
    got = rdma.rdma_post_write(addressof(cm_id), 0x1122334455667788, addressof(buffer) + 8, 16, addressof(mr), 2,
                               0x99aabbccddeeff00, 0x87654321)
    result(got == 0 and get_errno() == errno.EXFULL, "a post", got, get_errno())
    expected = [(0x1122334455667788, [(addressof(buffer) + 8, 16, 0x1234)], IBV_WR_RDMA_WRITE, 2, 0x99aabbccddeeff00,
                 0x87654321)]
    result(seen == expected, "arrives as it was posted", seen, expected)

    answer = -errno.ENOBUFS
    got = rdma.rdma_post_send(addressof(cm_id), None, addressof(buffer), 64, addressof(mr), 0)
    result(got == -1 and get_errno() == errno.ENOBUFS, "a post that fails", got, get_errno())

    set_errno(0)
    got = rdma.rdma_post_send(addressof(cm_id), None, addressof(buffer), 65, addressof(mr), 0)
    result(got == -1 and get_errno() == errno.EINVAL, "a post past the end of the buffer", got, get_errno())
    set_errno(0)
    got = rdma.rdma_post_sendv(addressof(cm_id), None, None, -1, 0)
    result(got == -1 and get_errno() == errno.EINVAL, "a post with a negative count", got, get_errno())
    qp.state = 0
    sge = Sge(addressof(buffer), 1, mr.lkey)
    got = rdma.rdma_post_sendv(addressof(cm_id), None, addressof(sge), 1, 0)
    result(got == -1 and get_errno() == errno.ENOBUFS, "a device that is not known to be InfiniBand decides", got,
           get_errno())
    result(len(seen) == 3, "refused posts do not arrive", len(seen))


def all_functions(rdma):
    """Each function without an object, and on an id that is all zeros: no queues, no domain."""
    empty_id = create_string_buffer(sizeof(CmId))
    for name, (restype, argtypes) in FUNCTIONS.items():
        function = getattr(rdma, name)
        function.restype = restype
        function.argtypes = argtypes
        nothing = [None if argtype is c_void_p else 0 for argtype in argtypes]
        calls = {"of nothing": nothing}
        if name != "rdma_dereg_mr":
            calls["on an empty id"] = [addressof(empty_id)] + nothing[1:]
        for how, arguments in calls.items():
            set_errno(0)
            got = function(*arguments)
            failed = got is None if restype is c_void_p else got == -1
            result(failed and get_errno() == errno.EINVAL, f"{name} {how}", got, get_errno())


def main():
    rdma = CDLL(sys.argv[1], use_errno=True)
    all_functions(rdma)
    posting(rdma)
    print(f"1..{tests}")
    return failures != 0


sys.exit(main())
