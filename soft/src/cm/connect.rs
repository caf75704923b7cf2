//! Asking for a connection: where the peer is reached, a stream to it, and the REQ.

use super::channel::Params;
use super::connection::{Offer, Path, State as Phase, random, reason};
use super::device::Device;
use super::id::{Core, Stage, State};
use super::link::Link;
use super::listen;
use crate::addresses;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type::Type as EventKind;
use rdma_verbs_wire::cm::{Mad, Message};
use rdma_verbs_wire::frame::Hello;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first question is asked again after this time, further ones after twice the time of the one before.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// The CM response timeout of the kernel: 4.096 µs · 2^20.
const LONGEST_DELAY: Duration = Duration::from_millis(4295);
/// As long as the kernel's one try and 15 more.
const GIVE_UP_AFTER: Duration = Duration::from_secs(16 * 4295 / 1000);
/// A refusal is believed after this time. Programs close a listener and open the next one on the same port, and their
/// peers connect meanwhile (perftest with -R); on other devices resolving the address takes longer than that.
const PATIENCE: Duration = Duration::from_millis(250);
const FIRST_PATIENCE: Duration = Duration::from_millis(10);
/// How long a peer that is alive may think about a REQ: as long as the kernel's tries with an MRA to each, of
/// 4.096 µs · 2^24.
const THINKING_TIME: Duration = Duration::from_secs(16 * 69);
/// The same for a DREQ; nobody needs to think about that.
const DISCONNECT_TIME: Duration = GIVE_UP_AFTER;
/// Messages that are heard before others have their turn.
const AT_ONCE: usize = 16;

/// What is known while nobody has answered.
pub(super) struct Attempt {
    nonce: u64,
    delay: Duration,
    until: Instant,
    /// The question is open.
    asking: bool,
    refused_since: Option<Instant>,
}

impl Core {
    /// rdma_connect(3), as far as it does not wait. EINVAL unless the route is resolved.
    pub(super) fn connect(self: &Arc<Core>, device: &Device, mut offer: Offer) -> Result<(), Errno> {
        let mut state = self.lock();
        let (Stage::RouteResolved, Some(source), Some(destination)) = (state.stage, state.source, state.destination)
        else {
            return Err(Errno::EINVAL);
        };
        let path = Path {
            source: listen::canonical(source),
            destination: listen::canonical(destination),
            local_gid: addresses::gid(source.ip()),
            remote_gid: addresses::gid(destination.ip()),
            mtu: device.mtu,
            traffic_class: state.options.tos,
            ack_timeout: state.options.ack_timeout,
        };
        offer.private_data.splice(..0, state.connect_data.iter().copied());
        let port_space = state.port_space;
        state.connection.connect(port_space, device.guid, &path, &offer)?;
        state.connect_data.clear();
        state.stage = Stage::Connecting;
        let until = Instant::now() + GIVE_UP_AFTER;
        state.attempt =
            Some(Attempt { nonce: random(), delay: FIRST_DELAY, until, asking: false, refused_since: None });
        state.ask(self);
        Ok(())
    }

    /// The stream is readable or writable, or has something in its buffer.
    pub(super) fn link_ready(self: &Arc<Core>) {
        let mut state = self.lock();
        for _ in 0..AT_ONCE {
            let Some(link) = &mut state.link else { return };
            match link.finish_connecting() {
                Ok(false) => {}
                Ok(true) => state.think(self),
                Err(_) => return state.lost(self),
            }
            let Some(link) = &mut state.link else { return };
            match link.receive() {
                Ok(Some(mad)) => state.heard(self, mad),
                Ok(None) => return,
                Err(_) => return state.lost(self),
            }
        }
    }

    /// The RTU, after which the connection stands. EINVAL where no REP has come.
    pub(super) fn establish(self: &Arc<Core>) -> Result<(), Errno> {
        let mut state = self.lock();
        if let Some(message) = state.connection.establish()? {
            state.say(message);
        }
        Ok(())
    }

    /// rdma_disconnect(3), as far as it does not wait: whether the peer hears anything of it.
    pub(super) fn disconnect(self: &Arc<Core>) -> Result<bool, Errno> {
        let mut state = self.lock();
        let Some(message) = state.connection.disconnect()? else { return Ok(false) };
        state.say(message);
        if state.connection.state() == Phase::DreqSent {
            state.start_timer(self, DISCONNECT_TIME, |core, state| {
                let event = state.connection.disconnect_timed_out();
                state.close();
                state.tell(core, event);
            });
        } else {
            state.close();
            state.wait_out(self);
        }
        Ok(true)
    }
}

impl State {
    pub(super) fn tell(&mut self, core: &Arc<Core>, event: Option<(EventKind, i32, Params)>) {
        if let Some(event) = event {
            self.happened(core, event);
        }
    }

    fn ask(&mut self, core: &Arc<Core>) {
        self.close();
        let (Some(attempt), Some(port)) = (&mut self.attempt, &self.port) else { return };
        if Instant::now() >= attempt.until {
            return self.unreachable(core, Errno::ETIMEDOUT);
        }
        attempt.asking = true;
        let delay = attempt.delay;
        attempt.delay = (delay * 2).min(LONGEST_DELAY);
        let asked = port.ask(attempt.nonce);
        self.start_timer(core, delay, |core, state| state.ask(core));
        if let Err(reason) = asked {
            self.asking_failed(core, reason);
        }
    }

    /// The question, or an earlier one, did not reach anybody.
    pub(super) fn asking_failed(&mut self, core: &Arc<Core>, reason: Errno) {
        if !self.attempt.as_ref().is_some_and(|attempt| attempt.asking) {
            return;
        }
        match reason {
            Errno::ECONNREFUSED => self.refused(core),
            Errno::EHOSTUNREACH | Errno::ENETUNREACH => self.unreachable(core, reason),
            // Lost, as any datagram may be.
            _ => {}
        }
    }

    /// Nobody listens there, or nobody yet.
    fn refused(&mut self, core: &Arc<Core>) {
        let Some(attempt) = &mut self.attempt else { return };
        let waited = attempt.refused_since.get_or_insert_with(Instant::now).elapsed();
        if waited < PATIENCE {
            attempt.asking = false;
            self.close();
            return self.start_timer(core, waited.max(FIRST_PATIENCE), |core, state| state.ask(core));
        }
        let event = self.connection.refused();
        self.end_attempt();
        self.close();
        self.tell(core, event);
    }

    fn unreachable(&mut self, core: &Arc<Core>, reason: Errno) {
        let event = self.connection.unreachable(reason);
        self.end_attempt();
        self.close();
        self.tell(core, event);
    }

    fn end_attempt(&mut self) {
        self.attempt = None;
        self.stop_timer();
    }

    pub(super) fn answered(&mut self, core: &Arc<Core>, nonce: u64, tcp_port: u16) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.asking && attempt.nonce == nonce) else {
            return;
        };
        attempt.asking = false;
        let (Some(source), Some(destination), Some(request)) =
            (self.source, self.destination, self.connection.request())
        else {
            return;
        };
        let mut peer: SocketAddr = destination;
        peer.set_port(tcp_port);
        let hello = Hello::Management {
            source_gid: addresses::gid(source.ip()),
            destination_gid: addresses::gid(destination.ip()),
        };
        // Where there is no stream the question is asked again.
        self.link = Link::connect(core, source, peer, &hello, &request).ok();
        self.start_timer(core, LONGEST_DELAY, |core, state| state.ask(core));
    }

    /// The peer has the REQ.
    fn think(&mut self, core: &Arc<Core>) {
        if self.connection.state() == Phase::ReqSent {
            self.start_timer(core, THINKING_TIME, |core, state| state.unreachable(core, Errno::ETIMEDOUT));
        }
    }

    fn heard(&mut self, core: &Arc<Core>, mad: Mad) {
        if self.connection.state() == Phase::Idle {
            return listen::heard(core, self, mad);
        }
        if self.attempt.is_some()
            && let Message::Rej(rej) = &mad.message
            && rej.reason == reason::INVALID_SERVICE_ID
        {
            return self.refused(core);
        }
        let Ok(step) = self.connection.receive(mad.message) else { return self.lost(core) };
        if let Some(reply) = step.reply {
            self.say(reply);
        }
        if step.close {
            self.close();
        }
        if self.attempt.is_some() && self.connection.state() != Phase::ReqSent {
            self.end_attempt();
            // A port that nobody has asked for has done its work.
            if self.port.as_ref().is_some_and(|port| !port.chosen) {
                let port = self.port.take();
                self.discard(port);
            }
        }
        self.tell(core, step.event);
    }

    /// The stream has ended, or is none of ours.
    pub(super) fn lost(&mut self, core: &Arc<Core>) {
        self.close();
        if let Some(attempt) = &self.attempt {
            // The peer had no room for the request, or has gone; the next question tells which.
            let delay = attempt.delay;
            return self.start_timer(core, delay, |core, state| state.ask(core));
        }
        let event = self.connection.lost();
        self.tell(core, event);
        listen::forget(core);
    }
}
