//! Plain HTTP on this machine.

use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// Milliseconds are usual; a loaded machine needs more.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// GET: status and body.
///
/// # Errors
/// When there is no answer in 20 s.
pub async fn get(url: &str) -> Result<(u16, String)> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let uri = url.parse()?;
    let answer = tokio::time::timeout(ANSWERS_WITHIN, async {
        let response = client.get(uri).await?;
        let status = response.status().as_u16();
        anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
    });
    let (status, body) = answer.await.with_context(|| format!("GET {url}: no answer"))??;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
