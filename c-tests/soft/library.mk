# librdma_soft.so: what it exports, and the functions of libibverbs on it.

SOFT_LIBRARY_TEST := $T/c-tests/soft
SOFT_LIBRARY := $(STAGE)/lib/rdma_verbs/librdma_soft.so

TESTS += 'c-tests/soft/exports $(SOFT_LIBRARY)' 'c-tests/abi/object $(SOFT_LIBRARY)' \
	'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs --soft --check=off $(SOFT_LIBRARY_TEST)/verbs'
TEST_FILES += $(SOFT_LIBRARY_TEST)/verbs

$(SOFT_LIBRARY_TEST)/verbs: c-tests/soft/verbs.c c-tests/soft/library.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -libverbs -lcmocka -lpthread
