//! `librdma_verbs_preload.so`: checks, trace, statistics and faults for RDMA programs that are already built.
//!
//! A program that was compiled with rdma-core's headers has the posting functions in its own code; what all of them
//! end in is the operations table of the device context. So the library stands in front of `ibv_open_device`, lets
//! the real one run, and puts functions of its own into the table.
//!
//! ```text
//! exports (libibverbs's names)  →  device (tables)  →  post, completion, wr_ex, cq_ex (what the tables hold)
//!                                                        check, fault, record, region
//!                                                        trace, stats, rules  →  output
//! ```
//!
//! Nothing happens before the first device is opened: a program that uses no verbs is not touched. What is not asked
//! for is not patched in.
//!
//! The safety vocabulary is that of `rdma_verbs_contract`.

mod check;
mod clock;
mod completion;
mod config;
mod cq_ex;
mod device;
mod exports;
mod fault;
mod next;
mod output;
mod post;
mod record;
mod region;
mod request;
mod rules;
mod stats;
mod trace;
mod wr_ex;
