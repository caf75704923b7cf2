# Connection management on the software device.

SOFT_CM_TESTS := $(addprefix $T/c-tests/soft/,cm strangers)

TESTS += $(foreach test,$(SOFT_CM_TESTS),'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs --soft $(test)')
TEST_FILES += $(SOFT_CM_TESTS)

$(SOFT_CM_TESTS): $T/c-tests/soft/%: c-tests/soft/%.c c-tests/soft/cm.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -lrdmacm -libverbs -lcmocka -lpthread
