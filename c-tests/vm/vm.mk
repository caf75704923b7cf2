# `make vm CMD='...'`: a shell command in a VM with a Soft-RoCE device. To be included by the top-level Makefile.

# What the VM takes, on this side and inside.
VM_PACKAGES := qemu-system-x86 busybox-static cpio kmod xz-utils \
	iproute2 rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest

TESTS += 'c-tests/vm/selftest'

# Through the environment and unexpanded: quotes and dollars in CMD reach the VM's shell as they are.
.PHONY: vm
vm: export VM_CMD := $(value CMD)
vm:
	@[ -n "$$VM_CMD" ] || { echo "usage: make vm CMD='ibv_devinfo'" >&2; exit 1; }
	@c-tests/vm/run sh -c "$$VM_CMD"
