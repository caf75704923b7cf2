//! The functions of libibverbs.
