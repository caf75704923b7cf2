# The program that runs all tests, itself.

TESTS += 'c-tests/harness/selftest $T/c-tests/harness'
