//! A connection as the messages of communication management make and end it (IBTA volume 1, 12.9), without sockets.

use super::channel::Params;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type::{self as event, Type as EventKind};
use rdma_sys::{ibv_access_flags, ibv_qp_attr_mask as mask, ibv_qp_state as qp_state};
use rdma_verbs_wire::cm::{Mad, Message, Rej, Rep, Req, private_data};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

/// Reasons of a REJ (12.6.7.2).
pub(super) mod reason {
    pub(in super::super) const TIMEOUT: u16 = 4;
    pub(in super::super) const INVALID_SERVICE_ID: u16 = 8;
    pub(in super::super) const INVALID_TRANSPORT_TYPE: u16 = 9;
    pub(in super::super) const INVALID_GID: u16 = 12;
    pub(in super::super) const INVALID_PATH_MTU: u16 = 26;
    pub(in super::super) const CONSUMER: u16 = 28;
    pub(in super::super) const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Which message a REJ answers (12.6.7.1).
mod rejected {
    pub(super) const REQ: u8 = 0;
    pub(super) const REP: u8 = 1;
    pub(super) const NONE: u8 = 2;
}

/// The CM response timeout that the kernel puts into every REQ: 4.096 µs · 2^20.
const RESPONSE_TIMEOUT: u8 = 20;
const MAX_RETRIES: u8 = 15;
/// The local ACK timeout where nobody asked for another: 4.096 µs · 2^19, as over RoCE.
const ACK_TIMEOUT: u8 = 19;
/// Of packets that may leave the subnet.
pub(super) const HOP_LIMIT: u8 = 64;

/// `IBV_MTU_256` to `IBV_MTU_4096`.
const PATH_MTUS: std::ops::RangeInclusive<u8> = 1..=5;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    #[default]
    Idle,
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    DreqReceived,
    Timewait,
    /// Rejected, or lost before it was established.
    Closed,
}

/// What a message, or the end of the stream, means.
#[derive(Default, PartialEq, Debug)]
pub(super) struct Step {
    pub(super) reply: Option<Message>,
    pub(super) event: Option<(EventKind, i32, Params)>,
    /// Nothing more is said on the stream.
    pub(super) close: bool,
}

/// A message that does not fit the state: the stream is not worth keeping.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Unexpected;

/// What the two ends of a path are to each other.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) local_gid: [u8; 16],
    pub(super) remote_gid: [u8; 16],
    /// `ibv_mtu`.
    pub(super) mtu: u8,
    pub(super) traffic_class: u8,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    pub(super) ack_timeout: Option<u8>,
}

/// `rdma_conn_param`, as rdma_connect(3) and rdma_accept(3) have filled it in.
#[derive(Clone, Default)]
pub(super) struct Offer {
    pub(super) qp_num: u32,
    pub(super) srq: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) private_data: Vec<u8>,
}

/// Attributes that bring a queue pair into the next state, and which of them count.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct QpAttributes {
    pub(super) mask: u32,
    pub(super) access_flags: u32,
    pub(super) path_mtu: u8,
    pub(super) dest_qp_num: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) local_gid: [u8; 16],
    pub(super) remote_gid: [u8; 16],
}

#[derive(Default)]
pub(super) struct Connection {
    state: State,
    transaction_id: u64,
    local_comm_id: u32,
    remote_comm_id: u32,
    /// What was asked, to be said again on another stream.
    req: Option<Box<Req>>,
    remote_qpn: u32,
    /// The receive queue's first PSN, which the peer learns from us, and the send queue's, which it tells.
    rq_psn: u32,
    sq_psn: u32,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    path_mtu: u8,
    ack_timeout: u8,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT` of this side, which is heard by its own queue pair only.
    own_ack_timeout: Option<u8>,
    traffic_class: u8,
    hop_limit: u8,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// The peer has left before its REP was answered: its side is up, and ours may still come up.
    left_early: bool,
}

/// A number that nobody can guess.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

fn random_psn() -> u32 {
    random() as u32 & 0xff_ffff
}

/// `data` in the room that the message has for it, the rest zero. EINVAL where it does not fit.
fn padded<const N: usize>(data: &[u8]) -> Result<[u8; N], Errno> {
    let mut room = [0; N];
    room.get_mut(..data.len()).ok_or(Errno::EINVAL)?.copy_from_slice(data);
    Ok(room)
}

impl Connection {
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The event that asks for a connection, and the connection that it will be. The REJ reason where it cannot be.
    pub(super) fn requested(transaction_id: u64, req: &Req) -> Result<(Connection, Params), u16> {
        if !PATH_MTUS.contains(&req.path_mtu) {
            return Err(reason::INVALID_PATH_MTU);
        }
        let connection = Connection {
            state: State::ReqReceived,
            transaction_id,
            local_comm_id: random() as u32,
            remote_comm_id: req.local_comm_id,
            req: None,
            remote_qpn: req.local_qpn,
            rq_psn: random_psn(),
            sq_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            path_mtu: req.path_mtu,
            ack_timeout: req.ack_timeout,
            own_ack_timeout: None,
            traffic_class: req.traffic_class,
            hop_limit: req.hop_limit,
            local_gid: req.remote_gid,
            remote_gid: req.local_gid,
            left_early: false,
        };
        let params = Params {
            private_data: req.private_data.to_vec(),
            responder_resources: connection.responder_resources,
            initiator_depth: connection.initiator_depth,
            flow_control: req.end_to_end_flow_control.into(),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq.into(),
            qp_num: req.local_qpn,
            arg: 0,
        };
        Ok((connection, params))
    }

    /// What answers a REQ that becomes no connection.
    pub(super) fn refusal(transaction_id: u64, req: &Req, reason: u16) -> Mad {
        let rej = Rej {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            message_rejected: rejected::REQ,
            reason,
            private_data: [0; private_data::REJ],
        };
        Mad { transaction_id, message: Message::Rej(Box::new(rej)) }
    }

    /// Gets ready to ask for a connection; [`Connection::request`] has the message. EINVAL where there is one already,
    /// and for private data that is too long.
    pub(super) fn connect(&mut self, port_space: u32, guid: u64, path: &Path, offer: &Offer) -> Result<(), Errno> {
        if self.state != State::Idle {
            return Err(Errno::EINVAL);
        }
        let req = Req {
            local_comm_id: random() as u32,
            service_id: service_id(port_space, path.destination.port()),
            local_ca_guid: guid,
            local_qpn: offer.qp_num & 0xff_ffff,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            remote_cm_response_timeout: RESPONSE_TIMEOUT,
            transport: 0,
            end_to_end_flow_control: offer.flow_control,
            starting_psn: random_psn(),
            local_cm_response_timeout: RESPONSE_TIMEOUT,
            retry_count: offer.retry_count.min(7),
            path_mtu: path.mtu,
            rnr_retry_count: offer.rnr_retry_count.min(7),
            max_cm_retries: MAX_RETRIES,
            srq: offer.srq,
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            hop_limit: HOP_LIMIT,
            traffic_class: path.traffic_class,
            ack_timeout: path.ack_timeout.unwrap_or(ACK_TIMEOUT),
            source_port: path.source.port(),
            source: path.source.ip(),
            destination: path.destination.ip(),
            private_data: padded(&offer.private_data)?,
        };
        *self = Connection {
            state: State::ReqSent,
            transaction_id: random(),
            local_comm_id: req.local_comm_id,
            remote_comm_id: 0,
            remote_qpn: 0,
            rq_psn: req.starting_psn,
            sq_psn: 0,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            path_mtu: req.path_mtu,
            ack_timeout: req.ack_timeout,
            own_ack_timeout: path.ack_timeout,
            traffic_class: req.traffic_class,
            hop_limit: req.hop_limit,
            local_gid: req.local_gid,
            remote_gid: req.remote_gid,
            left_early: false,
            req: Some(Box::new(req)),
        };
        Ok(())
    }

    /// The REQ, while its answer is waited for.
    pub(super) fn request(&self) -> Option<Mad> {
        let req = self.req.as_ref().filter(|_| self.state == State::ReqSent)?;
        Some(self.mad(Message::Req(req.clone())))
    }

    pub(super) fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }

    /// The REP. EINVAL where nothing is asked, or no longer.
    pub(super) fn accept(&mut self, guid: u64, offer: &Offer) -> Result<Message, Errno> {
        if self.state != State::ReqReceived {
            return Err(Errno::EINVAL);
        }
        let private_data = padded(&offer.private_data)?;
        self.state = State::RepSent;
        self.responder_resources = offer.responder_resources;
        self.initiator_depth = offer.initiator_depth;
        Ok(Message::Rep(Box::new(Rep {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            local_qpn: offer.qp_num & 0xff_ffff,
            starting_psn: self.rq_psn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            target_ack_delay: 0,
            end_to_end_flow_control: offer.flow_control,
            rnr_retry_count: offer.rnr_retry_count.min(7),
            srq: offer.srq,
            local_ca_guid: guid,
            private_data,
        })))
    }

    pub(super) fn set_own_ack_timeout(&mut self, timeout: u8) {
        self.own_ack_timeout = Some(timeout);
    }

    /// The RTU. `None` where the peer has ended the connection meanwhile; EINVAL where there is no REP to answer.
    pub(super) fn establish(&mut self) -> Result<Option<Message>, Errno> {
        match self.state {
            State::RepReceived => {
                self.state = State::Established;
                Ok(Some(Message::Rtu { local_comm_id: self.local_comm_id, remote_comm_id: self.remote_comm_id }))
            }
            State::DreqReceived => Ok(None),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The queue pair has heard from its peer before the RTU came: whether that establishes the connection. EISCONN
    /// where it is established already, EINVAL where it cannot be.
    pub(super) fn heard(&mut self) -> Result<(), Errno> {
        match self.state {
            State::RepSent => {
                self.state = State::Established;
                Ok(())
            }
            State::Established => Err(Errno::EISCONN),
            _ => Err(Errno::EINVAL),
        }
    }

    fn rej(&self, message_rejected: u8, reason: u16, private_data: [u8; private_data::REJ]) -> Message {
        Message::Rej(Box::new(Rej {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            message_rejected,
            reason,
            private_data,
        }))
    }

    /// The REJ. EINVAL where nothing is to be rejected, and for private data that is too long.
    pub(super) fn reject(&mut self, reason: u16, data: &[u8]) -> Result<Message, Errno> {
        let message = match self.state {
            State::ReqReceived => rejected::REQ,
            State::RepReceived => rejected::REP,
            State::ReqSent | State::RepSent => rejected::NONE,
            _ => return Err(Errno::EINVAL),
        };
        let rej = self.rej(message, reason, padded(data)?);
        self.state = State::Closed;
        Ok(rej)
    }

    fn dreq(&self) -> Message {
        Message::Dreq {
            local_comm_id: self.local_comm_id,
            remote_comm_id: self.remote_comm_id,
            remote_qpn: self.remote_qpn,
        }
    }

    fn drep(&self) -> Message {
        Message::Drep { local_comm_id: self.local_comm_id, remote_comm_id: self.remote_comm_id }
    }

    /// DREQ or DREP; `None` where there is nothing to say. EINVAL where there never was a connection.
    pub(super) fn disconnect(&mut self) -> Result<Option<Message>, Errno> {
        match self.state {
            State::Idle => Err(Errno::EINVAL),
            State::Established | State::RepSent => {
                self.state = State::DreqSent;
                Ok(Some(self.dreq()))
            }
            State::DreqReceived => {
                self.state = State::Timewait;
                Ok(Some(self.drep()))
            }
            _ => Ok(None),
        }
    }

    /// The identifier goes away: the last word to the peer.
    pub(super) fn abandon(&mut self) -> Option<Message> {
        let zeros = [0; private_data::REJ];
        let message = match self.state {
            State::ReqSent => Some(self.rej(rejected::NONE, reason::TIMEOUT, zeros)),
            State::ReqReceived => Some(self.rej(rejected::REQ, reason::CONSUMER, zeros)),
            State::RepReceived => Some(self.rej(rejected::REP, reason::CONSUMER, zeros)),
            State::RepSent | State::Established => Some(self.dreq()),
            State::DreqReceived => Some(self.drep()),
            State::Idle | State::DreqSent | State::Timewait | State::Closed => None,
        };
        self.state = State::Closed;
        message
    }

    /// A message of the peer. A REQ is none of these: it comes before there is a connection.
    pub(super) fn receive(&mut self, message: Message) -> Result<Step, Unexpected> {
        if matches!(self.state, State::Timewait | State::Closed) {
            return Ok(Step { close: true, ..Step::default() });
        }
        let to = match &message {
            Message::Req(_) => return Err(Unexpected),
            Message::Mra { remote_comm_id, .. }
            | Message::Rtu { remote_comm_id, .. }
            | Message::Dreq { remote_comm_id, .. }
            | Message::Drep { remote_comm_id, .. } => *remote_comm_id,
            Message::Rej(rej) => rej.remote_comm_id,
            Message::Rep(rep) => rep.remote_comm_id,
        };
        // A peer that gives up before it has read our REP does not know our number.
        let unknown = to == 0 && matches!(self.state, State::ReqReceived | State::RepSent);
        if to != self.local_comm_id && !unknown {
            return Err(Unexpected);
        }
        match (self.state, message) {
            (State::ReqSent, Message::Rep(rep)) => Ok(self.replied(&rep)),
            (State::ReqSent | State::RepSent | State::RepReceived, Message::Mra { .. }) => Ok(Step::default()),
            (State::RepSent, Message::Rtu { .. }) => {
                self.state = State::Established;
                Ok(Step { event: Some((event::RDMA_CM_EVENT_ESTABLISHED, 0, Params::default())), ..Step::default() })
            }
            (State::ReqReceived, Message::Rej(_)) => {
                self.state = State::Closed;
                Ok(Step { close: true, ..Step::default() })
            }
            (State::ReqSent | State::RepReceived | State::RepSent, Message::Rej(rej)) => {
                self.state = State::Closed;
                Ok(Step {
                    event: Some(rejected_event(rej.reason, rej.private_data.to_vec())),
                    close: true,
                    ..Step::default()
                })
            }
            (State::RepSent | State::RepReceived | State::Established, Message::Dreq { .. }) => {
                self.left_early = self.state == State::RepReceived;
                self.state = State::DreqReceived;
                Ok(Step { event: Some(disconnected(0)), ..Step::default() })
            }
            (State::DreqSent, Message::Dreq { .. }) => {
                self.state = State::Timewait;
                Ok(Step { reply: Some(self.drep()), event: Some(disconnected(0)), close: true })
            }
            (State::DreqSent, Message::Drep { .. }) => {
                self.state = State::Timewait;
                Ok(Step { event: Some(disconnected(0)), close: true, ..Step::default() })
            }
            // Said before our DREQ was read, or after the queue pair had heard from its peer.
            (State::DreqSent | State::Established, Message::Rtu { .. }) => Ok(Step::default()),
            _ => Err(Unexpected),
        }
    }

    fn replied(&mut self, rep: &Rep) -> Step {
        self.state = State::RepReceived;
        self.req = None;
        self.remote_comm_id = rep.local_comm_id;
        self.remote_qpn = rep.local_qpn;
        self.sq_psn = rep.starting_psn;
        self.initiator_depth = rep.responder_resources;
        self.responder_resources = rep.initiator_depth;
        self.rnr_retry_count = rep.rnr_retry_count;
        let params = Params {
            private_data: rep.private_data.to_vec(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: rep.end_to_end_flow_control.into(),
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq.into(),
            qp_num: rep.local_qpn,
            arg: 0,
        };
        Step { event: Some((event::RDMA_CM_EVENT_CONNECT_RESPONSE, 0, params)), ..Step::default() }
    }

    /// The stream has ended without a word. In [`State::ReqSent`] that says nothing yet: the peer may have had no room.
    pub(super) fn lost(&mut self) -> Option<(EventKind, i32, Params)> {
        match self.state {
            State::Idle | State::ReqSent | State::DreqReceived | State::Timewait | State::Closed => None,
            State::ReqReceived => {
                self.state = State::Closed;
                None
            }
            // What the kernel of a process says that ends here.
            State::RepSent | State::RepReceived => {
                self.state = State::Closed;
                Some(rejected_event(reason::CONSUMER, vec![0; private_data::REJ]))
            }
            State::Established => {
                self.state = State::DreqReceived;
                Some(disconnected(0))
            }
            State::DreqSent => {
                self.state = State::Timewait;
                Some(disconnected(0))
            }
        }
    }

    /// Nobody answers the REQ.
    pub(super) fn unreachable(&mut self, reason: Errno) -> Option<(EventKind, i32, Params)> {
        if self.state != State::ReqSent {
            return None;
        }
        self.state = State::Closed;
        Some((event::RDMA_CM_EVENT_UNREACHABLE, -(reason as i32), Params::default()))
    }

    /// Nobody listens there.
    pub(super) fn refused(&mut self) -> Option<(EventKind, i32, Params)> {
        if self.state != State::ReqSent {
            return None;
        }
        self.state = State::Closed;
        Some(rejected_event(reason::INVALID_SERVICE_ID, vec![0; private_data::REJ]))
    }

    /// Nobody answers the DREQ.
    pub(super) fn disconnect_timed_out(&mut self) -> Option<(EventKind, i32, Params)> {
        if self.state != State::DreqSent {
            return None;
        }
        self.state = State::Timewait;
        Some(disconnected(-(Errno::ETIMEDOUT as i32)))
    }

    /// How long packets of the connection may still be under way after its end (12.9.8.4).
    pub(super) fn timewait(&self) -> Duration {
        let exponent = if self.ack_timeout == 0 { ACK_TIMEOUT } else { self.ack_timeout };
        Duration::from_nanos(4096) * (1 << exponent.min(31))
    }

    /// What rdma_init_qp_attr(3) answers for a queue pair on its way to `state`: EINVAL where the connection has not
    /// come so far.
    pub(super) fn qp_attributes(&self, state: qp_state::Type) -> Result<QpAttributes, Errno> {
        let connecting =
            matches!(self.state, State::ReqReceived | State::RepSent | State::RepReceived | State::Established)
                || (self.left_early && self.state == State::DreqReceived);
        let base = QpAttributes {
            mask: mask::IBV_QP_STATE.0,
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ..QpAttributes::default()
        };
        // Before there is a connection the kernel knows of no other state.
        let state = if self.state == State::Idle { qp_state::IBV_QPS_INIT } else { state };
        match state {
            qp_state::IBV_QPS_INIT => {
                let remote_write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
                let access = match self.state {
                    State::Idle => ibv_access_flags(0),
                    State::ReqSent => remote_write,
                    _ if !connecting => return Err(Errno::EINVAL),
                    _ if self.responder_resources == 0 => remote_write,
                    _ => {
                        remote_write
                            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
                    }
                };
                let wanted =
                    mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
                Ok(QpAttributes { mask: wanted.0, access_flags: access.0, ..base })
            }
            qp_state::IBV_QPS_RTR if connecting => {
                let wanted = mask::IBV_QP_STATE
                    | mask::IBV_QP_AV
                    | mask::IBV_QP_PATH_MTU
                    | mask::IBV_QP_DEST_QPN
                    | mask::IBV_QP_RQ_PSN
                    | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                    | mask::IBV_QP_MIN_RNR_TIMER;
                Ok(QpAttributes {
                    mask: wanted.0,
                    path_mtu: self.path_mtu,
                    dest_qp_num: self.remote_qpn,
                    rq_psn: self.rq_psn,
                    max_dest_rd_atomic: self.responder_resources,
                    ..base
                })
            }
            qp_state::IBV_QPS_RTS if connecting => {
                let wanted = mask::IBV_QP_STATE
                    | mask::IBV_QP_SQ_PSN
                    | mask::IBV_QP_TIMEOUT
                    | mask::IBV_QP_RETRY_CNT
                    | mask::IBV_QP_RNR_RETRY
                    | mask::IBV_QP_MAX_QP_RD_ATOMIC;
                Ok(QpAttributes {
                    mask: wanted.0,
                    sq_psn: self.sq_psn,
                    timeout: self.own_ack_timeout.unwrap_or(self.ack_timeout),
                    retry_cnt: self.retry_count,
                    rnr_retry: self.rnr_retry_count,
                    max_rd_atomic: self.initiator_depth,
                    ..base
                })
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Annex A11.3.2: the port space and the port, in the range of the RDMA IP CM service.
pub(super) fn service_id(port_space: u32, port: u16) -> u64 {
    u64::from(port_space) << 16 | u64::from(port)
}

fn rejected_event(reason: u16, private_data: Vec<u8>) -> (EventKind, i32, Params) {
    (event::RDMA_CM_EVENT_REJECTED, reason.into(), Params { private_data, ..Params::default() })
}

fn disconnected(status: i32) -> (EventKind, i32, Params) {
    (event::RDMA_CM_EVENT_DISCONNECTED, status, Params::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::rdma_port_space::RDMA_PS_TCP;

    const CLIENT: [u8; 16] = [1; 16];
    const SERVER: [u8; 16] = [2; 16];
    const ALL_RIGHTS: u32 = 0xe;

    fn path() -> Path {
        Path {
            source: "10.9.0.1:40000".parse().unwrap(),
            destination: "10.9.0.2:7471".parse().unwrap(),
            local_gid: CLIENT,
            remote_gid: SERVER,
            mtu: 3,
            traffic_class: 0x20,
            ack_timeout: None,
        }
    }

    fn offer() -> Offer {
        Offer {
            qp_num: 0x11_1111,
            responder_resources: 2,
            initiator_depth: 3,
            retry_count: 6,
            rnr_retry_count: 4,
            private_data: b"hello".to_vec(),
            ..Offer::default()
        }
    }

    /// What the peer reads.
    fn carried(from: &Connection, message: Message) -> Message {
        Mad::decode(&from.mad(message).encode()).unwrap().message
    }

    /// A client that has asked, and the server that it has asked.
    fn asked() -> (Connection, Connection, Params) {
        let mut client = Connection::default();
        client.connect(RDMA_PS_TCP, 7, &path(), &offer()).unwrap();
        let mad = Mad::decode(&client.request().unwrap().encode()).unwrap();
        let Message::Req(req) = mad.message else { panic!("no REQ") };
        let (server, params) = Connection::requested(mad.transaction_id, &req).unwrap();
        (client, server, params)
    }

    /// As far as the REP.
    fn replied() -> (Connection, Connection, Params) {
        let (mut client, mut server, _) = asked();
        let answer = Offer {
            qp_num: 0x22_2222,
            responder_resources: 3,
            initiator_depth: 2,
            rnr_retry_count: 5,
            private_data: b"world".to_vec(),
            ..Offer::default()
        };
        let rep = server.accept(8, &answer).unwrap();
        let step = client.receive(carried(&server, rep)).unwrap();
        let (kind, status, params) = step.event.unwrap();
        assert_eq!((kind, status), (event::RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
        (client, server, params)
    }

    fn established() -> (Connection, Connection) {
        let (mut client, mut server, _) = replied();
        let rtu = client.establish().unwrap().unwrap();
        let step = server.receive(carried(&client, rtu)).unwrap();
        assert_eq!(step.event, Some((event::RDMA_CM_EVENT_ESTABLISHED, 0, Params::default())));
        (client, server)
    }

    /// A connection in each state, and the peer that brought it there.
    fn in_every_state() -> Vec<(Connection, Connection)> {
        let disconnecting = || {
            let (mut client, mut server) = established();
            let dreq = client.disconnect().unwrap().unwrap();
            server.receive(carried(&client, dreq)).unwrap();
            (client, server)
        };
        let ended = || {
            let (mut client, mut server) = disconnecting();
            let drep = server.disconnect().unwrap().unwrap();
            client.receive(carried(&server, drep)).unwrap();
            (client, server)
        };
        let rejected = || {
            let (mut client, mut server, _) = asked();
            let rej = server.reject(reason::CONSUMER, b"no").unwrap();
            client.receive(carried(&server, rej)).unwrap();
            (client, server)
        };
        let swapped = |(client, server): (Connection, Connection)| (server, client);
        let two = |(client, server, _): (Connection, Connection, Params)| (client, server);
        vec![
            (Connection::default(), Connection::default()),
            two(asked()),
            swapped(two(asked())),
            two(replied()),
            swapped(two(replied())),
            established(),
            swapped(established()),
            disconnecting(),
            swapped(disconnecting()),
            ended(),
            swapped(ended()),
            rejected(),
            swapped(rejected()),
        ]
    }

    #[test]
    fn a_request_is_seen_with_the_views_swapped_and_padded() {
        let (_, _, params) = asked();
        assert_eq!((params.responder_resources, params.initiator_depth), (3, 2));
        assert_eq!((params.retry_count, params.rnr_retry_count), (6, 4));
        assert_eq!(params.qp_num, 0x11_1111);
        assert_eq!(params.private_data.len(), 56);
        assert!(params.private_data.starts_with(b"hello\0"));
    }

    #[test]
    fn a_reply_is_seen_with_the_views_swapped_and_padded() {
        let (_, _, params) = replied();
        assert_eq!((params.responder_resources, params.initiator_depth), (2, 3));
        assert_eq!((params.rnr_retry_count, params.qp_num), (5, 0x22_2222));
        assert_eq!(params.private_data.len(), 196);
        assert!(params.private_data.starts_with(b"world\0"));
    }

    #[test]
    fn queue_pairs_get_what_was_agreed() {
        let (client, server) = established();
        let rtr = |connection: &Connection| connection.qp_attributes(qp_state::IBV_QPS_RTR).unwrap();
        let rts = |connection: &Connection| connection.qp_attributes(qp_state::IBV_QPS_RTS).unwrap();
        let init = |connection: &Connection| connection.qp_attributes(qp_state::IBV_QPS_INIT).unwrap();
        for (one, other, qp_num) in [(&client, &server, 0x22_2222), (&server, &client, 0x11_1111)] {
            assert_eq!(init(one).access_flags, ALL_RIGHTS);
            assert_eq!(rtr(one).dest_qp_num, qp_num);
            assert_eq!(rtr(one).path_mtu, 3);
            assert_eq!(rtr(one).rq_psn, rts(other).sq_psn);
            assert_eq!((rtr(one).local_gid, rtr(one).remote_gid), (rtr(other).remote_gid, rtr(other).local_gid));
            assert_eq!(rtr(one).traffic_class, 0x20);
            assert_eq!((rts(one).timeout, rts(one).retry_cnt), (19, 6));
            assert_eq!(rtr(one).max_dest_rd_atomic, rts(other).max_rd_atomic);
        }
        // Each side's sends wait as often as the other side has said.
        assert_eq!((rts(&client).rnr_retry, rts(&server).rnr_retry), (5, 4));
        assert_eq!((rtr(&client).max_dest_rd_atomic, rts(&client).max_rd_atomic), (2, 3));
    }

    #[test]
    fn rights_come_with_the_connection() {
        let idle = Connection::default();
        assert_eq!(idle.qp_attributes(qp_state::IBV_QPS_INIT).unwrap().access_flags, 0);
        assert_eq!(idle.qp_attributes(qp_state::IBV_QPS_RTR), idle.qp_attributes(qp_state::IBV_QPS_INIT));
        let (client, server, _) = asked();
        assert_eq!(client.qp_attributes(qp_state::IBV_QPS_RTR), Err(Errno::EINVAL));
        assert_eq!(server.qp_attributes(qp_state::IBV_QPS_INIT).unwrap().access_flags, ALL_RIGHTS);
        assert!(server.qp_attributes(qp_state::IBV_QPS_RTR).is_ok());
    }

    #[test]
    fn who_is_left_gets_no_attributes_unless_it_was_early() {
        let rtr = |connection: &Connection| connection.qp_attributes(qp_state::IBV_QPS_RTR);
        let (mut client, mut server) = established();
        let dreq = client.disconnect().unwrap().unwrap();
        server.receive(carried(&client, dreq)).unwrap();
        assert_eq!(rtr(&server), Err(Errno::EINVAL));
        let (mut client, mut server, _) = replied();
        let dreq = server.disconnect().unwrap().unwrap();
        client.receive(carried(&server, dreq)).unwrap();
        assert!(rtr(&client).is_ok());
        client.disconnect().unwrap();
        assert_eq!(rtr(&client), Err(Errno::EINVAL));
    }

    #[test]
    fn an_own_ack_timeout_is_heard_by_both_sides_of_a_request_and_by_one_of_an_accept() {
        let mut client = Connection::default();
        client.connect(RDMA_PS_TCP, 7, &Path { ack_timeout: Some(14), ..path() }, &offer()).unwrap();
        let Message::Req(req) = client.request().unwrap().message else { panic!("no REQ") };
        let (mut server, _) = Connection::requested(1, &req).unwrap();
        assert_eq!(server.qp_attributes(qp_state::IBV_QPS_RTS).unwrap().timeout, 14);
        server.set_own_ack_timeout(10);
        assert_eq!(server.qp_attributes(qp_state::IBV_QPS_RTS).unwrap().timeout, 10);
        let rep = server.accept(8, &Offer::default()).unwrap();
        client.receive(rep).unwrap();
        assert_eq!(client.qp_attributes(qp_state::IBV_QPS_RTS).unwrap().timeout, 14);
    }

    #[test]
    fn private_data_that_does_not_fit_is_refused_and_nothing_happens() {
        let long = |length| Offer { private_data: vec![1; length], ..Offer::default() };
        let mut client = Connection::default();
        assert_eq!(client.connect(RDMA_PS_TCP, 7, &path(), &long(57)), Err(Errno::EINVAL));
        assert_eq!(client.state(), State::Idle);
        client.connect(RDMA_PS_TCP, 7, &path(), &long(56)).unwrap();
        let (_, mut server, _) = asked();
        assert_eq!(server.accept(8, &long(197)), Err(Errno::EINVAL));
        assert_eq!(server.reject(reason::CONSUMER, &[1; 149]), Err(Errno::EINVAL));
        assert_eq!(server.state(), State::ReqReceived);
        server.accept(8, &long(196)).unwrap();
    }

    #[test]
    fn a_rejection_brings_its_reason_and_its_data() {
        let (mut client, mut server, _) = asked();
        let rej = server.reject(reason::CONSUMER, b"no").unwrap();
        let step = client.receive(carried(&server, rej)).unwrap();
        let (kind, status, params) = step.event.unwrap();
        assert_eq!((kind, status), (event::RDMA_CM_EVENT_REJECTED, 28));
        assert_eq!(params.private_data.len(), 148);
        assert!(params.private_data.starts_with(b"no\0"));
        assert_eq!(client.connect(RDMA_PS_TCP, 7, &path(), &offer()), Err(Errno::EINVAL));
        assert_eq!(server.accept(8, &Offer::default()), Err(Errno::EINVAL));
    }

    #[test]
    fn a_refusal_needs_no_connection() {
        let (mut client, ..) = asked();
        let Message::Req(req) = client.request().unwrap().message else { panic!("no REQ") };
        let mad = Connection::refusal(1, &req, reason::INVALID_SERVICE_ID);
        let step = client.receive(mad.message).unwrap();
        let (kind, status, params) = step.event.unwrap();
        assert_eq!((kind, status, params.private_data.len()), (event::RDMA_CM_EVENT_REJECTED, 8, 148));
    }

    #[test]
    fn the_one_who_is_left_learns_it_before_it_answers() {
        let (mut client, mut server) = established();
        let dreq = client.disconnect().unwrap().unwrap();
        assert_eq!(client.state(), State::DreqSent);
        let step = server.receive(carried(&client, dreq)).unwrap();
        assert_eq!((step.event, step.reply, step.close), (Some(disconnected(0)), None, false));
        let drep = server.disconnect().unwrap().unwrap();
        let step = client.receive(carried(&server, drep)).unwrap();
        assert_eq!((step.event, step.close), (Some(disconnected(0)), true));
        for ended in [&mut client, &mut server] {
            assert_eq!(ended.state(), State::Timewait);
            assert_eq!(ended.disconnect(), Ok(None));
        }
    }

    #[test]
    fn both_may_leave_at_once() {
        let (mut client, mut server) = established();
        let (one, other) = (client.disconnect().unwrap().unwrap(), server.disconnect().unwrap().unwrap());
        for (at, dreq) in [(&mut client, other), (&mut server, one)] {
            let step = at.receive(dreq).unwrap();
            assert_eq!((step.event, step.close), (Some(disconnected(0)), true));
            assert!(matches!(step.reply, Some(Message::Drep { .. })));
            assert_eq!(at.state(), State::Timewait);
        }
    }

    #[test]
    fn a_stream_that_ends_tells_each_state_something_else() {
        for (mut connection, _) in in_every_state() {
            let before = connection.state();
            let told = connection.lost().map(|(kind, status, _)| (kind, status));
            let expected = match before {
                State::RepSent | State::RepReceived => Some((event::RDMA_CM_EVENT_REJECTED, 28)),
                State::Established | State::DreqSent => Some((event::RDMA_CM_EVENT_DISCONNECTED, 0)),
                _ => None,
            };
            assert_eq!(told, expected, "{before:?}");
            assert_eq!(connection.lost(), None, "{before:?}: told twice");
        }
    }

    #[test]
    fn who_goes_away_says_so_to_a_peer_that_waits() {
        for (mut connection, mut peer) in in_every_state() {
            let before = connection.state();
            let waits =
                matches!(peer.state(), State::ReqSent | State::RepSent | State::RepReceived | State::Established);
            let Some(message) = connection.abandon() else {
                assert!(!waits, "{before:?} leaves a peer in {:?}", peer.state());
                continue;
            };
            let message = carried(&connection, message);
            // The REQ made the peer, and so a REJ that follows it is for it.
            let step = peer.receive(message).unwrap();
            assert_eq!(step.event.is_some(), waits || peer.state() == State::Timewait, "{before:?}");
            assert_eq!(connection.abandon(), None);
        }
    }

    #[test]
    fn a_message_out_of_place_ends_the_stream_and_nothing_else() {
        let strange = |local: u32| {
            let zeros = [0; private_data::REJ];
            [
                Message::Rtu { local_comm_id: 1, remote_comm_id: local },
                Message::Drep { local_comm_id: 1, remote_comm_id: local },
                Message::Dreq { local_comm_id: 1, remote_comm_id: local, remote_qpn: 0 },
                Message::Mra { local_comm_id: 1, remote_comm_id: local, message_mraed: 0, service_timeout: 0 },
                Message::Rej(Box::new(Rej {
                    local_comm_id: 1,
                    remote_comm_id: local,
                    message_rejected: 0,
                    reason: 1,
                    private_data: zeros,
                })),
                Message::Req(Box::new({
                    let (client, ..) = asked();
                    let Some(Message::Req(req)) = client.request().map(|mad| mad.message) else { panic!("no REQ") };
                    *req
                })),
            ]
        };
        for (connection, _) in in_every_state() {
            let number = connection.local_comm_id;
            for message in strange(number).into_iter().chain(strange(number.wrapping_add(1))) {
                let (mut connection, _) =
                    in_every_state().into_iter().find(|(other, _)| other.state() == connection.state()).unwrap();
                let before = connection.state();
                if connection.receive(message.clone()) == Err(Unexpected) {
                    assert_eq!(connection.state(), before, "{message:?}");
                }
            }
        }
    }

    #[test]
    fn a_connection_is_disconnected_only_where_there_was_one() {
        assert_eq!(Connection::default().disconnect(), Err(Errno::EINVAL));
        let (mut client, ..) = asked();
        assert_eq!(client.disconnect(), Ok(None));
    }

    #[test]
    fn data_may_come_before_the_rtu() {
        let (mut client, mut server, _) = replied();
        server.heard().unwrap();
        assert_eq!(server.heard(), Err(Errno::EISCONN));
        let rtu = client.establish().unwrap().unwrap();
        assert_eq!(server.receive(carried(&client, rtu)).unwrap(), Step::default());
        assert_eq!(client.establish(), Err(Errno::EINVAL));
    }

    #[test]
    fn nobody_there_and_no_answer_are_two_things() {
        let (mut client, ..) = asked();
        let (kind, status, _) = client.refused().unwrap();
        assert_eq!((kind, status), (event::RDMA_CM_EVENT_REJECTED, 8));
        let (mut client, ..) = asked();
        let (kind, status, _) = client.unreachable(Errno::ETIMEDOUT).unwrap();
        assert_eq!((kind, status), (event::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
        assert_eq!(client.refused(), None);
    }

    #[test]
    fn a_disconnect_that_nobody_answers_ends_all_the_same() {
        let (mut client, _) = established();
        client.disconnect().unwrap();
        assert_eq!(client.disconnect_timed_out(), Some(disconnected(-libc::ETIMEDOUT)));
        assert_eq!(client.state(), State::Timewait);
        assert_eq!(client.timewait(), Duration::from_nanos(4096 << 19));
    }

    #[test]
    fn a_request_with_an_impossible_mtu_is_refused() {
        let (client, ..) = asked();
        let Message::Req(mut req) = client.request().unwrap().message else { panic!("no REQ") };
        for mtu in [0, 6, 255] {
            req.path_mtu = mtu;
            assert!(matches!(Connection::requested(1, &req), Err(reason::INVALID_PATH_MTU)));
        }
    }
}
