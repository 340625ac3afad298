//! A TCP proxy between a member and the server, for faults of the network.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::frames::{Frames, is_ack};

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// They are forwarded.
    Open,
    /// They are forwarded, and every piece of them later by this much.
    Slow(Duration),
    /// What the server sends waits, as in a network that delivers one way only.
    HoldReplies,
    /// What the client sends waits.
    HoldRequests,
    /// What the server sends is lost. To be followed by [`Link::Cut`]: the rest would be no protocol.
    LoseReplies,
    /// Acks of finished messages are lost; all else is forwarded.
    LoseAcks,
    /// Nothing is forwarded and nothing closed, as when a cable is drawn.
    Silent,
    /// Connections are closed, and new ones too.
    Cut,
}

/// A proxy. It ends with the runtime.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    link: watch::Sender<Link>,
    connections: watch::Sender<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Proxy {
    /// Listens for connections to `url`.
    pub(crate) async fn to(url: &str) -> io::Result<Self> {
        let server = url.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let link = watch::Sender::new(Link::Open);
        let connections = watch::Sender::new(0);
        let (watched, counted) = (link.clone(), connections.clone());
        tokio::spawn(async move {
            // A connection that ends before it is accepted is no reason to refuse the next.
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                let (server, watched, counted) = (server.clone(), watched.subscribe(), counted.clone());
                counted.send_modify(|count| *count += 1);
                tokio::spawn(async move {
                    connection(client, server, watched).await;
                    counted.send_modify(|count| *count -= 1);
                });
            }
        });
        Ok(Self {
            address,
            link,
            connections,
        })
    }

    /// The address that clients connect to.
    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// A client that knows no other way to the server.
    pub(crate) async fn connect(&self) -> Result<async_nats::Client, async_nats::ConnectError> {
        let options = async_nats::ConnectOptions::new()
            .ignore_discovered_servers()
            .reconnect_delay_callback(|_| Duration::from_millis(20));
        options.connect(self.url()).await
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }

    /// Closes every connection and refuses new ones.
    pub(crate) async fn cut(&self) {
        self.set(Link::Cut);
        // The sender is kept here, so the wait ends with what it waits for.
        let _ = self.connections.subscribe().wait_for(|count| *count == 0).await;
    }
}

async fn connection(client: TcpStream, server: String, link: watch::Receiver<Link>) {
    if *link.borrow() == Link::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // When one direction ends, both do.
    tokio::select! {
        () = forward(Side::Client, from_client, to_server, link.clone()) => {}
        () = forward(Side::Server, from_server, to_client, link) => {}
    }
}

async fn forward(from: Side, mut source: OwnedReadHalf, mut sink: OwnedWriteHalf, mut link: watch::Receiver<Link>) {
    let mut buffer = vec![0; 16 * 1024];
    let mut frames = Frames::default();
    loop {
        let now = *link.borrow_and_update();
        match (now, from) {
            (Link::Cut, _) => return,
            (Link::Silent, _) | (Link::HoldReplies, Side::Server) | (Link::HoldRequests, Side::Client) => {
                if link.changed().await.is_err() {
                    return;
                }
                continue;
            }
            _ => {}
        }
        let read = tokio::select! {
            biased;
            changed = link.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = source.read(&mut buffer) => read,
        };
        let Ok(count @ 1..) = read else {
            return;
        };
        if (now, from) == (Link::LoseReplies, Side::Server) {
            continue;
        }
        if let Link::Slow(delay) = now {
            tokio::time::sleep(delay).await;
        }
        let mut bytes = buffer[..count].to_vec();
        if from == Side::Client {
            bytes = frames.take(&bytes, |frame| (now, is_ack(frame)) != (Link::LoseAcks, true));
        }
        if sink.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
