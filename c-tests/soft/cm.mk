# Connection management on the software device.

SOFT_CM_TEST := $T/c-tests/soft/cm

TESTS += 'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs --soft $(SOFT_CM_TEST)'
TEST_FILES += $(SOFT_CM_TEST)

$(SOFT_CM_TEST): c-tests/soft/cm.c c-tests/soft/cm.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -lrdmacm -libverbs -lcmocka -lpthread
