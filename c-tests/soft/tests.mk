# librdma_soft.so: the device of software alone.

SOFT_TEST := $T/c-tests/soft
SOFT_LIBRARY := $(STAGE)/lib/rdma_verbs/librdma_soft.so
SOFT_PROGRAMS := $(addprefix $(SOFT_TEST)/,cm deaths load observe observe_cm strangers verbs)
SOFT_RUN := $(STAGE)/bin/rdma-verbs --soft --check=off
# Programs listen at ports of their own choice: those that choose the same take turns.
SOFT_ALONE := flock $(SOFT_TEST)/ports
# Stands in for an address of a network.
SOFT_ENVIRONMENT := env DEVICE_ADDRESS=127.0.0.1

TESTS += 'c-tests/soft/exports $(SOFT_LIBRARY)' 'c-tests/abi/object $(SOFT_LIBRARY)' \
	$(foreach program,verbs cm strangers,'c-tests/conformance/tap $(SOFT_RUN) $(SOFT_TEST)/$(program)') \
	$(foreach program,verbs cm,'c-tests/conformance/tap $(SOFT_TEST)/refuse EPERM $(SOFT_RUN) $(SOFT_TEST)/$(program)') \
	'$(SOFT_ENVIRONMENT) $(SOFT_RUN) $(SOFT_TEST)/load' \
	'$(SOFT_RUN) $(SOFT_TEST)/deaths' \
	'c-tests/soft/valgrind $(STAGE)/bin/rdma-verbs $(SOFT_TEST)/observe' \
	'c-tests/soft/compare $(STAGE)/bin/rdma-verbs soft/DIFFERENCES.md $(SOFT_TEST)/observe $(SOFT_TEST)/observe_cm' \
	'c-tests/device/run c-tests/soft/on-device $(SOFT_TEST)/cm' \
	'c-tests/soft/captures $(STAGE)/bin/rdma-verbs $(SOFT_TEST)/observe $(SOFT_TEST)/observe_cm' \
	'c-tests/soft/observed $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/hostile $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/network $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/thousand $(STAGE)/bin/rdma-verbs' \
	'c-tests/soft/container $(STAGE)/bin/rdma-verbs $(SOFT_TEST)/refuse' \
	'$(SOFT_ALONE) env RDMA_VERBS=$(abspath $(STAGE))/bin/rdma-verbs c-tests/soft/programs tap' \
	'$(SOFT_ALONE) $(SOFT_ENVIRONMENT) $(SOFT_RUN) c-tests/device/suite $T'
TEST_FILES += $(SOFT_PROGRAMS) $(SOFT_TEST)/refuse

$(SOFT_PROGRAMS): $(SOFT_TEST)/%: c-tests/soft/%.c c-tests/soft/observe.h c-tests/soft/tests.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $< -lrdmacm -libverbs -lcmocka -lpthread

$(SOFT_TEST)/refuse: c-tests/soft/refuse.c
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $<

# All programs of the list on the software device and, which takes a quarter of an hour, on Soft-RoCE: soft/PROGRAMS.md.
.PHONY: programs programs-on-rxe
programs: setup stage
	RDMA_VERBS=$(abspath $(STAGE))/bin/rdma-verbs c-tests/soft/programs results >$(SOFT_TEST)/programs-on-soft
	c-tests/soft/programs table $(SOFT_TEST)/programs-on-soft c-tests/soft/programs-on-rxe.tsv >soft/PROGRAMS.md
programs-on-rxe: setup
	VM_TIMEOUT=3400 c-tests/vm/run env DEVICE_ADDRESS=10.9.0.1 c-tests/soft/programs results >c-tests/soft/programs-on-rxe.tsv
