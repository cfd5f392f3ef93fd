//! A way to a monitor that can stop forwarding without a word, as a network does that drops what it is given.
//!
//! A monitor tells its peers the address at which it wants to be reached, and refuses those that come by another one. So this
//! listens at the address that the monitor tells, and the monitor itself at one that nobody knows.

use std::net::Ipv4Addr;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// From the address at which a monitor is reached to the one at which it listens. It ends when it is dropped.
pub struct Route {
    forwards: watch::Sender<bool>,
    // Of its own: tests that share a Ceph have a runtime each.
    runtime: Option<Runtime>,
}

impl Route {
    pub(super) async fn start(from: u16, to: u16) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let forwards = watch::Sender::new(true);
        let listener = runtime.spawn(TcpListener::bind((Ipv4Addr::LOCALHOST, from))).await??;
        runtime.spawn(accept(listener, to, forwards.subscribe()));
        Ok(Self {
            forwards,
            runtime: Some(runtime),
        })
    }

    /// From now on nothing arrives at the other side, and no connection breaks.
    pub fn interrupt(&self) {
        self.forwards.send_replace(false);
    }

    /// What was held back arrives, and all that follows.
    pub fn restore(&self) {
        self.forwards.send_replace(true);
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // Dropping a runtime inside another one is not allowed to block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, to: u16, forwards: watch::Receiver<bool>) {
    while let Ok((near, _)) = listener.accept().await {
        let mut forwards = forwards.clone();
        tokio::spawn(async move {
            if forwards.wait_for(|forwards| *forwards).await.is_err() {
                return;
            }
            let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
                return;
            };
            let _ = far.set_nodelay(true);
            let _ = near.set_nodelay(true);
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            // The end of one direction is the end of both, as it is for a monitor that has died.
            tokio::select! {
                () = forward(near_read, far_write, forwards.clone()) => {}
                () = forward(far_read, near_write, forwards) => {}
            }
        });
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut forwards: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        // What has been read by now is lost to nobody: it arrives late.
        if forwards.wait_for(|forwards| *forwards).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
