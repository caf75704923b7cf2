# rdma-verbs, with a library in place of the real one.
LAUNCHER_TEST := $T/c-tests/launcher

TESTS += 'c-tests/launcher/launcher $(STAGE)/bin/rdma-verbs $(LAUNCHER_TEST)'
TEST_FILES += $(addprefix $(LAUNCHER_TEST)/,fake.so inherited static static-pie)

$(LAUNCHER_TEST)/fake.so: c-tests/launcher/fake.c
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -shared -fPIC -o $@ $<

$(LAUNCHER_TEST)/inherited: c-tests/launcher/inherited.c
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -fPIE -pie -o $@ $<

$(LAUNCHER_TEST)/static $(LAUNCHER_TEST)/static-pie: $(LAUNCHER_TEST)/%: c-tests/launcher/inherited.c
	mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -fPIE -$* -o $@ $<
