# librdma_soft.so: the device of software alone.

SOFT_TEST := $T/c-tests/soft
SOFT_PROGRAMS := $(addprefix $(SOFT_TEST)/,observe deaths load)
SOFT_RUN := $(STAGE)/bin/rdma-verbs --soft

TESTS += 'env RDMA_VERBS=$(abspath $(STAGE))/bin/rdma-verbs c-tests/soft/programs tap' \
	'c-tests/soft/compare $(STAGE)/bin/rdma-verbs $(SOFT_TEST)/observe soft/DIFFERENCES.md' \
	'$(SOFT_RUN) $(SOFT_TEST)/deaths' \
	'env DEVICE_ADDRESS=127.0.0.1 $(SOFT_RUN) $(SOFT_TEST)/load' \
	'c-tests/soft/hostile $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/network $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/captures $(STAGE)/bin/rdma-verbs $(SOFT_TEST)/observe'
TEST_FILES += $(SOFT_PROGRAMS)

$(SOFT_PROGRAMS): $(SOFT_TEST)/%: c-tests/soft/%.c c-tests/soft/tests.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -lrdmacm -libverbs -lpthread

# All programs of the list on the software device, and what Soft-RoCE makes of them: soft/PROGRAMS.md.
.PHONY: programs
programs: setup stage
	RDMA_VERBS=$(abspath $(STAGE))/bin/rdma-verbs c-tests/soft/programs results >$(SOFT_TEST)/programs-on-soft
	c-tests/soft/programs table $(SOFT_TEST)/programs-on-soft c-tests/soft/programs-on-rxe.tsv >soft/PROGRAMS.md
