//! A libp2p behaviour that opens and accepts plain streams on a *given* connection, and loses none
//! of them. The `libp2p-stream` crate picks a connection at random and drops inbound streams when
//! two arrive at once; both would break the control channel while two nodes hold duplicate
//! connections. It must not interpret what the streams carry.

use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol,
    core::{
        Endpoint,
        transport::PortUse,
        upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    },
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
        NetworkBehaviour, NotifyHandler, SubstreamProtocol, ToSwarm,
        handler::{
            ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
        },
    },
};
use nodectl_types::NodeId;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    net::IpAddr,
    task::{Context, Poll},
};

pub const CONTROL: StreamProtocol = StreamProtocol::new("/nodectl/control");
pub const BULK: StreamProtocol = StreamProtocol::new("/nodectl/bulk/1");
pub const STREAM: StreamProtocol = StreamProtocol::new("/nodectl/stream/1");

/// A stream that a peer opened, or the outcome of one that was asked for under `ticket`.
#[derive(Debug)]
pub enum StreamEvent {
    Inbound {
        peer: PeerId,
        connection: ConnectionId,
        protocol: StreamProtocol,
        stream: Stream,
    },
    Opened {
        peer: PeerId,
        connection: ConnectionId,
        ticket: u64,
        result: Result<Stream, String>,
    },
}

/// Who answers peers that open streams, other than the one for messages. Both calls return at once;
/// `remote` is the peer's address, unless it is relayed.
pub trait Inbound: Send + Sync {
    /// The peer asks for a blob (`BULK`).
    fn for_blob(&self, remote: Option<IpAddr>, stream: Stream);
    /// The peer wants to speak to a service of this node (`STREAM`).
    fn for_service(&self, from: NodeId, remote: Option<IpAddr>, stream: Stream);
}

/// Hands streams over. Its queue holds what one poll of the swarm takes out again; the swarm bounds
/// what peers can have in negotiation.
#[derive(Default)]
pub struct StreamsBehaviour {
    queue: VecDeque<ToSwarm<StreamEvent, StreamRequest>>,
}

/// A request to open a stream.
#[derive(Debug)]
pub struct StreamRequest {
    protocol: StreamProtocol,
    ticket: u64,
}

impl StreamsBehaviour {
    /// `Event::Opened` with the ticket follows, unless the connection closes first.
    pub fn open(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        protocol: StreamProtocol,
        ticket: u64,
    ) {
        let handler = NotifyHandler::One(connection);
        self.queue.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler,
            event: StreamRequest { protocol, ticket },
        });
    }
}

impl NetworkBehaviour for StreamsBehaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = StreamEvent;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: FromHandler,
    ) {
        let event = match event {
            FromHandler::Inbound(stream, protocol) => StreamEvent::Inbound {
                peer,
                connection,
                protocol,
                stream,
            },
            FromHandler::Opened(ticket, result) => StreamEvent::Opened {
                peer,
                connection,
                ticket,
                result,
            },
        };
        self.queue.push_back(ToSwarm::GenerateEvent(event));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<StreamEvent, StreamRequest>> {
        // The swarm polls after every call above, so nothing waits for a wake-up.
        self.queue.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

#[derive(Debug)]
pub enum FromHandler {
    Inbound(Stream, StreamProtocol),
    Opened(u64, Result<Stream, String>),
}

type HandlerEvent = ConnectionHandlerEvent<Plain, u64, FromHandler>;

/// The behaviour's half inside one connection.
#[derive(Default)]
pub struct Handler {
    queue: VecDeque<HandlerEvent>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = StreamRequest;
    type ToBehaviour = FromHandler;
    type InboundProtocol = Plain;
    type OutboundProtocol = Plain;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = u64;

    fn listen_protocol(&self) -> SubstreamProtocol<Plain, ()> {
        SubstreamProtocol::new(Plain(vec![CONTROL, BULK, STREAM]), ())
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<HandlerEvent> {
        self.queue.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    fn on_behaviour_event(&mut self, StreamRequest { protocol, ticket }: StreamRequest) {
        let protocol = SubstreamProtocol::new(Plain(vec![protocol]), ticket);
        self.queue
            .push_back(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Plain, Plain, (), u64>) {
        let event = match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol),
                ..
            }) => FromHandler::Inbound(stream, protocol),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (stream, _),
                info,
            }) => FromHandler::Opened(info, Ok(stream)),
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                FromHandler::Opened(info, Err(error.to_string()))
            }
            _ => return,
        };
        self.queue
            .push_back(ConnectionHandlerEvent::NotifyBehaviour(event));
    }
}

/// Agrees on a protocol's name and hands out the stream as it is.
#[derive(Debug)]
pub struct Plain(Vec<StreamProtocol>);

impl UpgradeInfo for Plain {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for Plain {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for Plain {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}
