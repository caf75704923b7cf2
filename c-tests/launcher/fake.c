/* In place of librdma_verbs_preload.so: does nothing but be there. */
extern const int fake_library_is_here;
const int fake_library_is_here = 1;
