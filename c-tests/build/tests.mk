TESTS += 'c-tests/build/every-clang $T/clang'
