# The client and the server, which c-tests/device/suite runs, and the demo.

EXAMPLES := $T/c-tests/examples
EXAMPLE_PROGRAMS := $(EXAMPLES)/server $(EXAMPLES)/client
EXAMPLE_SOURCES := $(wildcard c-tests/examples/*.[ch]) c-tests/examples/Makefile c-tests/examples/tests.mk

TEST_FILES += $(EXAMPLE_PROGRAMS) $(EXAMPLE_PROGRAMS:$(EXAMPLES)/%=$(EXAMPLES)/static/%)

# As a reader of the examples builds them.
$(EXAMPLE_PROGRAMS): $(EXAMPLE_SOURCES) $(STAGE)/include/rdma_verbs/rdma/rdma_verbs.h | $(STAGE)/lib/librdma_verbs.so
	mkdir -p $(@D)
	$(STAGED) $(MAKE) -B -C $(@D) -f $(abspath c-tests/examples/Makefile) $(@F) \
		CFLAGS='$(TEST_CFLAGS)' LDFLAGS=-Wl,-rpath,$(abspath $(STAGE))/lib

# With the library in the program; librdmacm and libibverbs stay shared.
$(EXAMPLES)/static/%: c-tests/examples/%.c $(EXAMPLE_SOURCES) $(STAGE)/lib/librdma_verbs.a
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(RDMA_VERBS_CFLAGS) -o $@ $< \
		$(subst -lrdma_verbs,-l:librdma_verbs.a,$(call staged,--static --libs))

.PHONY: demo demo-vm examples
examples: stage
	@$(MAKE) -s --no-print-directory $(EXAMPLE_PROGRAMS)
demo: setup-build examples
	DEVICE_ADDRESS=127.0.0.1 c-tests/examples/demo $(EXAMPLES) $(STAGE)/bin/rdma-verbs --soft
demo-vm: setup examples
	c-tests/device/on-device c-tests/examples/demo $(EXAMPLES)
