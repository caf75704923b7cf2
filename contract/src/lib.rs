//! What both libraries share: which calls are refused before the provider sees them, what a provider's result
//! means, C objects as checked pointers, how a variable is read and a message is written.
//!
//! # Safety vocabulary
//!
//! A **valid object** is NULL, or a pointer to an initialised object of that type which nobody destroys before the
//! call returns, and whose pointer fields are NULL or valid objects themselves. Other threads may use it as far as
//! the verbs allow.

pub mod environment;
pub mod errno;
pub mod output;
pub mod refusal;
pub mod sys;
pub mod view;
