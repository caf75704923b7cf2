# What a call costs: upstream's inline functions against the library. `make bench CC=clang` compiles with another compiler.

BENCH := $T/bench/$(notdir $(firstword $(CC)))
BENCH_CFLAGS = -std=gnu11 -O2 -g -Wall -Wextra -Werror
BENCH_PROGRAMS := $(BENCH)/posts $(BENCH)/pingpong
BENCH_TRANSFER := $(BENCH)/transfer
BENCH_OBSERVED := $(BENCH)/observed $(BENCH)/libibverbs.so.1

.PHONY: bench
bench: setup stage
	$(MAKE) $(BENCH_PROGRAMS) $(BENCH_OBSERVED) $(BENCH_TRANSFER)
	benches/run $(BENCH) $(STAGE)/bin/rdma-verbs

# The same source with upstream's header, and with the library's.
$(BENCH)/%-inline.o: benches/%.c
	mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) -DUPSTREAM -c -o $@ $<
$(BENCH)/%-lib.o: benches/%.c $(STAGE)/include/rdma_verbs/rdma/rdma_verbs.h
	mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) $(RDMA_VERBS_CFLAGS) -c -o $@ $<
$(BENCH)/%.o: benches/%.c
	mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) -c -o $@ $<

$(BENCH)/posts: $(addprefix $(BENCH)/,posts.o provider.o calls-inline.o calls-lib.o)
$(BENCH)/pingpong: $(addprefix $(BENCH)/,pingpong.o exchange-inline.o exchange-lib.o)
$(addprefix $(BENCH)/,posts.o provider.o calls-inline.o calls-lib.o): $(addprefix benches/,calls.h provider.h)
$(addprefix $(BENCH)/,pingpong.o exchange-inline.o exchange-lib.o): benches/exchange.h
$(BENCH_PROGRAMS): | $(STAGE)/lib/librdma_verbs.so
	$(CC) $(BENCH_CFLAGS) -o $@ $^ $(RDMA_VERBS_LIBS) -lpthread

# A program with inline posts and a libibverbs of its own, for the preload library to be put in front of.
$(BENCH)/libibverbs.so.1: benches/opener.c benches/provider.c benches/provider.h benches/opener.map
	mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) -fPIC -shared -Wl,-soname,$(@F),--version-script=benches/opener.map -o $@ $(filter %.c,$^)
$(BENCH)/observed: benches/observed.c benches/provider.h $(BENCH)/libibverbs.so.1
	$(CC) $(BENCH_CFLAGS) -o $@ $(filter %.c %.1,$^) -Wl,-rpath,'$$ORIGIN'

# Between two processes, over RDMA and over TCP.
$(BENCH_TRANSFER): benches/transfer.c
	mkdir -p $(@D)
	$(CC) $(BENCH_CFLAGS) -o $@ $< -lrdmacm -libverbs
