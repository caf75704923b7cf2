# The library on a real RDMA device: this machine's, or Soft-RoCE in the virtual machine.

DEVICE := $T/c-tests/device

TESTS += 'c-tests/device/run c-tests/device/suite $T'
TEST_FILES += $(DEVICE)/device

$(DEVICE)/device: $(wildcard c-tests/device/*.[ch]) c-tests/device/tests.mk \
		$(STAGE)/include/rdma_verbs/rdma/rdma_verbs.h | $(STAGE)/lib/librdma_verbs.so
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(RDMA_VERBS_CFLAGS) -o $@ $(filter %.c,$^) $(RDMA_VERBS_LIBS) -lcmocka -lpthread

.PHONY: check-device device-address
device-address:
	@[ -n '$(ADDR)' ] || { echo 'usage: make check-device ADDR=192.0.2.1    an address of the RDMA device'; exit 2; }
check-device: device-address stage
	$(MAKE) $(DEVICE)/device
	c-tests/run-tap 'c-tests/conformance/tap $(DEVICE)/device --address $(ADDR)'
