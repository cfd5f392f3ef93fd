//! Serves HTTP to strangers: everything is bounded, so that no client can hold what others need.
//!
//! The ready-made servers for axum bound neither how many connections there are nor how long one may be idle, which is why
//! the loop that accepts them is here; the protocols themselves are hyper's and rustls's.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tls::Tls;

/// The address could not be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {name} on {address}: {source}")]
pub struct BindError {
    name: &'static str,
    address: SocketAddr,
    source: std::io::Error,
}

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body, where a handler's extractor reads it.
    pub body: usize,
    /// From the first byte of a request to the end of its answer; then 408.
    pub request: Duration,
    /// From a connection's beginning to the end of the TLS handshake, and from then, or from the last answer of HTTP/1.1, to
    /// the end of the next request's header.
    pub header: Duration,
    /// Without a request under way; then the connection is closed.
    pub idle: Duration,
    /// Of a connection in all; then it is closed, so that clients spread over the replicas anew.
    pub max_connection_age: Duration,
    /// Connections at once; further ones wait to be accepted.
    pub connections: usize,
    /// What is under way when it is time to stop may take this long.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 1024 * 1024,
            request: Duration::from_secs(10),
            header: Duration::from_secs(5),
            idle: Duration::from_mins(2),
            max_connection_age: Duration::from_mins(10),
            connections: 256,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Bytes of a request's header.
const HEADER_BYTES: u32 = 32 * 1024;

/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 250;

/// How long to wait after a failure to accept: of open files, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A server that is bound but does not answer yet.
#[derive(Debug)]
pub struct HttpServer {
    name: &'static str,
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpServer {
    /// Takes the address. `name` is what errors and the log call the server.
    pub async fn bind(name: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError { name, address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            name,
            listener,
            address,
        })
    }

    /// The address that is served: the port is known even if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled, and finishes what is under way then. With `tls` as long as that has a certificate,
    /// without it in plain text.
    pub async fn serve(self, router: Router, tls: Option<Tls>, limits: Limits, stop: CancellationToken) {
        tracing::info!(address = %self.address, tls = tls.is_some(), "serving {}", self.name);
        let router = bounded(router, limits);
        let permits = Arc::new(Semaphore::new(limits.connections));
        let connections = TaskTracker::new();
        while let Some((permit, stream)) = accept(&self.listener, &permits, &stop).await {
            let (router, tls, stop) = (router.clone(), tls.clone(), stop.clone());
            connections.spawn(async move {
                let _permit = permit;
                let _ = stream.set_nodelay(true);
                match tls {
                    None => serve_connection(stream, router, limits, stop).await,
                    Some(tls) => {
                        let Some(config) = tls.config() else { return };
                        let handshake = TlsAcceptor::from(config).accept(stream);
                        if let Ok(Ok(stream)) = timeout(limits.header, handshake).await {
                            serve_connection(stream, router, limits, stop).await;
                        }
                    }
                }
            });
        }
        connections.close();
        if timeout(limits.drain_timeout, connections.wait()).await.is_err() {
            tracing::warn!("{}: some connections did not end in time", self.name);
        }
    }
}

/// The next connection, and its place among those that may be there at once; `None` when it is time to stop.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(tokio::sync::OwnedSemaphorePermit, TcpStream)> {
    let next = async {
        let permit = Arc::clone(permits).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((permit, stream)),
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        next = next => next,
    }
}

/// The router, with the bounds of a single request.
fn bounded(router: Router, limits: Limits) -> Router {
    router
        .layer(DefaultBodyLimit::max(limits.body))
        .layer(middleware::from_fn(move |request: Request, next: Next| async move {
            match timeout(limits.request, next.run(request)).await {
                Ok(response) => response,
                Err(_) => too_slow(),
            }
        }))
}

fn too_slow() -> Response {
    (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response()
}

/// One connection, from its first request to its last.
async fn serve_connection<S>(stream: S, router: Router, limits: Limits, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::default());
    let noted = Arc::clone(&activity);
    let router = router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let request_noted = InFlightGuard::begin(&noted);
        async move {
            let _noted = request_noted;
            next.run(request).await
        }
    }));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(HEADER_BYTES as usize)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES)
        .keep_alive_interval(Some(limits.idle / 4))
        .keep_alive_timeout(limits.header);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let end_of_life = sleep(limits.max_connection_age);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = end_of_life => {}
        () = activity.idle_for(limits.idle) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.request + limits.drain_timeout, connection).await;
}

/// Requests under way on one connection.
#[derive(Default)]
struct Activity {
    requests: AtomicUsize,
    ended: Notify,
}

impl Activity {
    /// Returns when there has been no request under way for so long.
    async fn idle_for(&self, idle: Duration) {
        let mut deadline = Instant::now() + idle;
        loop {
            tokio::select! {
                () = self.ended.notified() => deadline = Instant::now() + idle,
                () = sleep_until(deadline) => match self.requests.load(Ordering::Acquire) {
                    0 => return,
                    // Its end is notified; until then there is nothing to wait for but a look now and then.
                    _ => deadline = Instant::now() + idle,
                },
            }
        }
    }
}

/// Counts a request until it is answered or given up.
struct InFlightGuard(Arc<Activity>);

impl InFlightGuard {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(activity))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::body::Bytes;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::{HttpServer, Limits};

    const PATIENCE: Duration = Duration::from_mins(1);

    struct Served {
        address: std::net::SocketAddr,
        stop: CancellationToken,
        task: AbortOnDropHandle<()>,
    }

    async fn serve(router: Router, limits: Limits) -> Served {
        let server = HttpServer::bind("test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        let task = AbortOnDropHandle::new(tokio::spawn(server.serve(router, None, limits, stop.clone())));
        Served { address, stop, task }
    }

    impl Served {
        async fn say(&self, words: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(words.as_bytes()).await.unwrap();
            stream
        }
    }

    async fn all(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        timeout(PATIENCE, read)
            .await
            .expect("the connection stays open")
            .unwrap();
        answer
    }

    fn short() -> Limits {
        Limits {
            body: 10,
            request: Duration::from_millis(200),
            header: Duration::from_millis(200),
            idle: Duration::from_millis(300),
            max_connection_age: Duration::from_secs(30),
            connections: 2,
            drain_timeout: Duration::from_secs(5),
        }
    }

    fn echo() -> Router {
        Router::new().route("/", post(|body: Bytes| async move { body }))
    }

    const ASK: &str = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: ";

    #[tokio::test]
    async fn a_body_beyond_its_bound_is_refused() {
        let served = serve(echo(), short()).await;
        let answer = all(served.say(&format!("{ASK}2\r\n\r\nok")).await).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
        let answer = all(served.say(&format!("{ASK}11\r\n\r\nhello world")).await).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }

    #[tokio::test]
    async fn missing_body_is_not_awaited() {
        let served = serve(echo(), short()).await;
        let answer = all(served.say(&format!("{ASK}5\r\n\r\nhe")).await).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }

    #[tokio::test]
    async fn endless_header_is_not_awaited() {
        let served = serve(echo(), short()).await;
        assert_eq!(all(served.say("POST / HTTP/1.1\r\nhost").await).await, "");
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_others_out_for_long() {
        let served = serve(echo(), short()).await;
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(served.say("").await);
        }
        let answer = all(served.say(&format!("{ASK}2\r\n\r\nok")).await).await;
        assert!(answer.ends_with("ok"), "{answer}");
    }

    #[tokio::test]
    async fn a_silent_http2_connection_ends_after_its_idle_time() {
        let limits = Limits {
            header: PATIENCE,
            ..short()
        };
        let served = serve(echo(), limits).await;
        // The preface and an empty SETTINGS frame; every PING of the server is left without an answer of consequence.
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
        let mut stream = served.say(preface).await;
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .expect("it stays open")
            .unwrap();
        assert!(!rest.is_empty());
    }

    #[tokio::test]
    async fn requests_in_flight_finish_at_shutdown() {
        let (began, mut begun) = mpsc::channel::<()>(1);
        let router = Router::new().route(
            "/",
            get(move || async move {
                began.send(()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                "done"
            }),
        );
        let served = serve(router, short()).await;
        let stream = served.say("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        timeout(PATIENCE, begun.recv()).await.unwrap().unwrap();
        served.stop.cancel();
        assert!(all(stream).await.ends_with("done"));
        timeout(PATIENCE, served.task).await.expect("it ends").unwrap();
        assert!(TcpStream::connect(served.address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let first = HttpServer::bind("first", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let refusal = HttpServer::bind("webhook", first.address())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refusal.contains("webhook") && refusal.contains(&first.address().to_string()),
            "{refusal}"
        );
    }
}
