# The binary interface: names, what the loader is told, what the code may call, where the files go.

TESTS += 'c-tests/abi/symbols $(STAGE) $T/release/librdma_verbs.so' \
	'c-tests/abi/object $(STAGE)/lib/librdma_verbs.so.1 librdma_verbs.so.1' \
	'c-tests/abi/object $T/release/librdma_verbs.so' \
	'c-tests/abi/code $(STAGE)/lib/librdma_verbs.so.1' \
	'c-tests/abi/install $T/c-tests/abi/install'
