//! An RDMA device of software alone.
//!
//!     cm, verbs (C on the outside)  →  engine (reliable connections, over TCP)  →  reactor, wire
mod addresses;
mod capture;
mod cm;
mod descriptors;
mod engine;
mod event_queue;
mod reactor;
mod uncancelled;
mod verbs;
