//! Connection management: the functions of librdmacm.

use crate::engine::Accepted;

/// A connection that a peer has opened to the process's listener in order to talk about connections.
pub(crate) fn accepted(_connection: Accepted) {
    todo!()
}
