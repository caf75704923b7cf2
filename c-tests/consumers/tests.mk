# What is built and run with nothing but an installation, as a distribution's package would have it.

CONSUMERS := $T/c-tests/consumers
CONSUMER_ROOT := $(CONSUMERS)/root
CONSUMER_LIBRARY := $(CONSUMER_ROOT)/usr/lib/librdma_verbs.so.1
# Upstream's header, as the compiler finds it.
UPSTREAM_HEADER = $(shell $(CC) -M -include rdma/rdma_verbs.h -xc - </dev/null | tr ' ' '\n' | grep /rdma/rdma_verbs.h)

TESTS += 'c-tests/consumers/headers $(CONSUMER_ROOT)' \
	'c-tests/consumers/linking $(CONSUMER_ROOT) $T/release/librdma_verbs.so' \
	'c-tests/consumers/consumer.py $(CONSUMER_LIBRARY)' \
	'$(CONSUMERS)/dlopen $(CONSUMER_LIBRARY)' \
	'$(CONSUMERS)/prototypes'
TEST_FILES += $(CONSUMER_LIBRARY) $(CONSUMERS)/dlopen $(CONSUMERS)/prototypes

$(CONSUMER_LIBRARY): $(STAGE)/lib/librdma_verbs.so
	rm -rf $(CONSUMER_ROOT)
	$(MAKE) install DESTDIR=$(abspath $(CONSUMER_ROOT)) prefix=/usr >/dev/null

# Not linked with the library.
$(CONSUMERS)/dlopen $(CONSUMERS)/prototypes: $(CONSUMERS)/%: c-tests/consumers/%.c $(CONSUMER_LIBRARY)
	$(CC) $(TEST_CFLAGS) -DUPSTREAM='"$(UPSTREAM_HEADER)"' -I$(CONSUMER_ROOT)/usr/include/rdma_verbs -o $@ $< -ldl
