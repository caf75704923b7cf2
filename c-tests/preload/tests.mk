# librdma_verbs_preload.so: programs on a real device, and programs over a libibverbs without one.

PRELOAD_TEST := $T/c-tests/preload
PRELOAD_HOSTS := $(PRELOAD_TEST)/hosts
PRELOAD_FAKE := $(PRELOAD_HOSTS)/libibverbs.so.1

TESTS += 'c-tests/preload/abi $(STAGE)/lib/rdma_verbs/librdma_verbs_preload.so' \
	'c-tests/abi/object $(STAGE)/lib/rdma_verbs/librdma_verbs_preload.so' \
	'c-tests/preload/hosts/hosts $T'
# Whatever else is on, the same answers.
TESTS += $(foreach option,--check=on --check=full --trace=/dev/null --stats=/dev/null --fault=post:nth=1000000, \
	'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs $(option) -- $(PRELOAD_HOSTS)/lists')
TESTS += 'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs --check --trace=/dev/null --stats=/dev/null --format=json -- \
	$(PRELOAD_HOSTS)/lists'
TESTS += $(foreach option,--trace=/dev/null --stats=/dev/null --fault=post:nth=1000000, \
	'c-tests/conformance/tap $(STAGE)/bin/rdma-verbs --check=off $(option) -- $(PRELOAD_HOSTS)/unchecked')

PRELOAD_DEVICE_PROGRAMS := $(PRELOAD_TEST)/start_poll \
	$(patsubst c-tests/preload/rules/%.c,$(PRELOAD_TEST)/rules/%,$(wildcard c-tests/preload/rules/*.c))
PRELOAD_HOST_PROGRAMS := $(addprefix $(PRELOAD_HOSTS)/,lists unchecked subject)
TEST_FILES += $(PRELOAD_DEVICE_PROGRAMS) $(PRELOAD_HOST_PROGRAMS) $(addprefix $(PRELOAD_HOSTS)/,with-library host plugin.so other.so)

$(PRELOAD_DEVICE_PROGRAMS): $(PRELOAD_TEST)/%: c-tests/preload/%.c $(addprefix c-tests/preload/,link.c link.h tests.mk)
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -o $@ $(filter %.c,$^) -libverbs

$(PRELOAD_FAKE): $(addprefix c-tests/preload/hosts/,fake.c fake.h libibverbs.map) c-tests/preload/tests.mk
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -fPIC -shared -Wl,-soname,$(@F),--version-script=c-tests/preload/hosts/libibverbs.map -o $@ $< -lpthread

# Linked to the fake's file: it has libibverbs's name.
$(PRELOAD_HOST_PROGRAMS): $(PRELOAD_HOSTS)/%: c-tests/preload/hosts/%.c $(PRELOAD_FAKE)
	$(CC) $(TEST_CFLAGS) -o $@ $^ -Wl,-rpath,$(abspath $(@D)) -lcmocka -lpthread

# A program that has the library without being run by anybody. It is found at its path: it has no SONAME.
$(PRELOAD_HOSTS)/with-library: c-tests/preload/hosts/subject.c $(PRELOAD_FAKE) $(STAGE)/lib/rdma_verbs/librdma_verbs_preload.so
	$(CC) $(TEST_CFLAGS) -o $@ $< -Wl,--no-as-needed $(abspath $(STAGE)/lib/rdma_verbs/librdma_verbs_preload.so) \
		-Wl,--as-needed $(PRELOAD_FAKE) -Wl,-rpath,$(abspath $(@D)) -lpthread

$(PRELOAD_HOSTS)/plugin.so: c-tests/preload/hosts/plugin.c $(PRELOAD_FAKE)
	$(CC) $(TEST_CFLAGS) -DPLUGIN -fPIC -shared -o $@ $^ -Wl,-rpath,$(abspath $(@D))

$(PRELOAD_HOSTS)/host: c-tests/preload/hosts/plugin.c $(PRELOAD_FAKE)
	$(CC) $(TEST_CFLAGS) -o $@ $< -ldl

$(PRELOAD_HOSTS)/other.so: c-tests/preload/hosts/other.c c-tests/preload/hosts/other.map $(PRELOAD_FAKE)
	$(CC) $(TEST_CFLAGS) -fPIC -shared -Wl,--version-script=c-tests/preload/hosts/other.map -o $@ $< -ldl

# On a real device: the distribution's programs, the suite's and the examples, and those that break a rule. Half a minute
# of work, which an emulated processor stretches.
PRELOAD_ON_DEVICE := 'VM_TIMEOUT=3400 c-tests/device/run c-tests/preload/device-tests $T'
TESTS += $(PRELOAD_ON_DEVICE)

# These alone.
.PHONY: check-preload
check-preload: setup stage
	$(STAGED) $(MAKE) $(PRELOAD_DEVICE_PROGRAMS) $(DEVICE)/device $(EXAMPLE_PROGRAMS)
	c-tests/run-tap $(PRELOAD_ON_DEVICE)
