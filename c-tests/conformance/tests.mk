# The conformance suite: every promise of the library, against providers that do as they are told.

CONFORMANCE := $T/c-tests/conformance
CONFORMANCE_CFLAGS = $(TEST_CFLAGS) -D_GNU_SOURCE $(RDMA_VERBS_CFLAGS)
# The library alone: a program need not be linked to libibverbs.
CONFORMANCE_LIBS = -L$(STAGE)/lib -Wl,-rpath,$(abspath $(STAGE))/lib -lrdma_verbs -lcmocka -ldl -lpthread
CONFORMANCE_RULES := $(wildcard c-tests/conformance/*.h) c-tests/conformance/tests.mk \
	$(STAGE)/include/rdma_verbs/rdma/rdma_verbs.h
CONFORMANCE_SUITE := $(addprefix c-tests/conformance/,main.c run.c suite.c refusals.c requests.c errnos.c \
	completions.c registration.c)
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all

# The scripted providers: with all functions, with the control functions only, and with one of these missing or alone.
# Each has a script of its own, also next to others (-Bsymbolic).
SCRIPTED := $(addprefix $(CONFORMANCE)/,libscripted.so libscripted-control.so libscripted-no-reg_mr.so \
	libscripted-no-dereg_mr.so libscripted-no-get_cq_event.so libscripted-no-ack_cq_events.so \
	libscripted-only-reg_mr.so libibverbs.so.1 sanitized/libscripted.so)
$(CONFORMANCE)/libscripted-control.so: SCRIPTED_FLAGS := -DNO_DATA_PATH
$(CONFORMANCE)/libscripted-no-reg_mr.so: SCRIPTED_FLAGS := -DNO_REG_MR
$(CONFORMANCE)/libscripted-no-dereg_mr.so: SCRIPTED_FLAGS := -DNO_DEREG_MR
$(CONFORMANCE)/libscripted-no-get_cq_event.so: SCRIPTED_FLAGS := -DNO_GET_CQ_EVENT
$(CONFORMANCE)/libscripted-no-ack_cq_events.so: SCRIPTED_FLAGS := -DNO_ACK_CQ_EVENTS
$(CONFORMANCE)/libscripted-only-reg_mr.so: SCRIPTED_FLAGS := -DNO_DATA_PATH -DNO_DEREG_MR -DNO_GET_CQ_EVENT \
	-DNO_ACK_CQ_EVENTS
$(CONFORMANCE)/libibverbs.so.1: SCRIPTED_FLAGS := -DNO_DATA_PATH -DOLD_VERSIONS \
	-Wl,-soname,libibverbs.so.1,--version-script=c-tests/conformance/libibverbs.map
$(CONFORMANCE)/sanitized/libscripted.so: SCRIPTED_FLAGS := $(SANITIZERS)
$(SCRIPTED): c-tests/conformance/scripted.c c-tests/conformance/libibverbs.map $(CONFORMANCE_RULES)
	mkdir -p $(@D)
	$(CC) $(CONFORMANCE_CFLAGS) $(SCRIPTED_FLAGS) -fPIC -shared -Wl,-Bsymbolic -o $@ $<

# A provider with a constructor that calls the program.
$(CONFORMANCE)/libscripted-constructor.so: $(addprefix c-tests/conformance/,scripted.c constructor.c) \
		$(CONFORMANCE_RULES)
	mkdir -p $(@D)
	$(CC) $(CONFORMANCE_CFLAGS) -fPIC -shared -Wl,-Bsymbolic -o $@ $(filter %.c,$^)

# The programs: the suite, the suite with a provider of its own, the suite with the sanitizers in.
CONFORMANCE_PROGRAMS := $(addprefix $(CONFORMANCE)/,conformance conformance-own sanitized/conformance provider \
	loading quiet)
$(CONFORMANCE)/conformance: $(CONFORMANCE_SUITE)
$(CONFORMANCE)/conformance-own: $(CONFORMANCE_SUITE) c-tests/conformance/scripted.c
$(CONFORMANCE)/conformance-own: CONFORMANCE_FLAGS := -rdynamic
$(CONFORMANCE)/sanitized/conformance: $(CONFORMANCE_SUITE)
$(CONFORMANCE)/sanitized/conformance: CONFORMANCE_FLAGS := $(SANITIZERS)
$(CONFORMANCE)/provider: $(addprefix c-tests/conformance/,provider.c run.c suite.c)
$(CONFORMANCE)/provider: CONFORMANCE_FLAGS := -rdynamic
$(CONFORMANCE)/loading: $(addprefix c-tests/conformance/,loading.c run.c suite.c)
$(CONFORMANCE)/loading: CONFORMANCE_FLAGS := -rdynamic
$(CONFORMANCE)/quiet: $(addprefix c-tests/conformance/,quiet.c run.c suite.c)
$(CONFORMANCE)/quiet: CONFORMANCE_FLAGS := -rdynamic -fno-builtin
$(CONFORMANCE_PROGRAMS): $(CONFORMANCE_RULES) | $(STAGE)/lib/librdma_verbs.so
	mkdir -p $(@D)
	$(CC) $(CONFORMANCE_CFLAGS) $(CONFORMANCE_FLAGS) -o $@ $(filter %.c,$^) $(CONFORMANCE_LIBS)

# The static library in a static program. That glibc warns of dlopen there is the point.
$(CONFORMANCE)/static: $(addprefix c-tests/conformance/,static.c suite.c scripted.c) $(CONFORMANCE_RULES) \
		$(STAGE)/lib/librdma_verbs.a
	mkdir -p $(@D)
	$(CC) $(CONFORMANCE_CFLAGS) -static -o $@ $(filter %.c,$^) $(STAGE)/lib/librdma_verbs.a

CONFORMANCE_FILES := $(SCRIPTED) $(CONFORMANCE)/libscripted-constructor.so $(CONFORMANCE_PROGRAMS) \
	$(CONFORMANCE)/static
TEST_FILES += $(CONFORMANCE_FILES)

CONFORMANCE_TESTS := \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/libscripted.so $(CONFORMANCE)/conformance by-name' \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/libscripted-control.so $(CONFORMANCE)/conformance by-table' \
	'env -u RDMA_VERBS_PROVIDER $(CONFORMANCE)/conformance-own by-name' \
	'c-tests/conformance/tap $(CONFORMANCE)/provider' \
	'$(CONFORMANCE)/loading' \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/libscripted.so $(CONFORMANCE)/quiet by-name' \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/libscripted-control.so $(CONFORMANCE)/quiet by-table' \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/libscripted-control.so \
		valgrind -q --error-exitcode=99 --leak-check=full $(CONFORMANCE)/conformance by-table' \
	'RDMA_VERBS_PROVIDER=$(CONFORMANCE)/sanitized/libscripted.so $(CONFORMANCE)/sanitized/conformance by-name' \
	'c-tests/conformance/sanitizers-are-in $(CONFORMANCE)/sanitized/conformance \
		$(CONFORMANCE)/sanitized/libscripted.so'
TESTS += $(CONFORMANCE_TESTS)

# The suite alone.
.PHONY: check-conformance
check-conformance: stage
	$(MAKE) $(CONFORMANCE_FILES)
	c-tests/run-tap $(CONFORMANCE_TESTS)
