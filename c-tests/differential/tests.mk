# The same scenarios with upstream's inlines, with and without their asserts, and with the library.

DIFFERENTIAL := $T/c-tests/differential
DIFFERENTIAL_PROGRAMS := $(addprefix $(DIFFERENTIAL)/,library upstream upstream-ndebug)

TESTS += 'c-tests/differential/compare $(DIFFERENTIAL) c-tests/DIFFERENCES.md'
TEST_FILES += $(DIFFERENTIAL_PROGRAMS)

# One object for all: the device does not know which header the scenarios were compiled with.
$(DIFFERENTIAL)/device.o: c-tests/differential/device.c c-tests/differential/device.h
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -c -o $@ $<

# -rdynamic lets the library find the device's definitions of ibv_reg_mr() and its like.
$(DIFFERENTIAL_PROGRAMS): c-tests/differential/scenarios.c c-tests/differential/device.h $(DIFFERENTIAL)/device.o
$(DIFFERENTIAL)/library: $(STAGE)/include/rdma_verbs/rdma/rdma_verbs.h | $(STAGE)/lib/librdma_verbs.so
	$(CC) $(TEST_CFLAGS) -DLIBRARY $(RDMA_VERBS_CFLAGS) -rdynamic -o $@ $(filter %.c %.o,$^) $(RDMA_VERBS_LIBS)
$(DIFFERENTIAL)/upstream:
	$(CC) $(TEST_CFLAGS) -rdynamic -o $@ $(filter %.c %.o,$^)
$(DIFFERENTIAL)/upstream-ndebug:
	$(CC) $(TEST_CFLAGS) -DNDEBUG -rdynamic -o $@ $(filter %.c %.o,$^)
