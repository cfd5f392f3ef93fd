//! AdmissionReviews, posted at a steady rate as an API server posts them: over connections that stay open, to the
//! certificate that it trusts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nodeward_testkit::{cluster, lock, wait};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Where the API server posts reviews of evictions, and whom it trusts there.
pub struct Endpoint {
    client: Client,
    path: String,
}

/// What came of the load.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// In milliseconds.
    pub latencies: Vec<f64>,
    pub admitted: usize,
    pub refused: usize,
}

impl Endpoint {
    /// From the webhook configuration that the chart installed and drain-lock completed.
    pub async fn found(client: &Client) -> Result<Self> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        wait::until(
            "the webhook's address and authority",
            Duration::from_secs(30),
            || async {
                let all = configurations.list(&ListParams::default()).await?.items;
                let mut hooks = all.into_iter().flat_map(|one| one.webhooks.unwrap_or_default());
                let hook = hooks.next().context("there is no webhook configuration")?;
                let url = hook.client_config.url.context("no url")?;
                let authority = hook.client_config.ca_bundle.context("no caBundle yet")?;
                Self::at(&url, &authority).await
            },
        )
        .await
    }

    async fn at(url: &str, authority: &ByteString) -> Result<Self> {
        let url: http::Uri = url.parse()?;
        let origin = format!("https://{}", url.authority().context("the webhook's host")?);
        let server = cluster::server(origin, std::str::from_utf8(&authority.0)?);
        let reached: Kubeconfig = serde_json::from_value(cluster::kubeconfig(&server, "nobody", &json!({})))?;
        let mut config = Config::from_custom_kubeconfig(reached, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config)?,
            path: url.path().to_owned(),
        })
    }

    /// Posts one review.
    async fn ask(&self, review: &[u8]) -> Result<bool> {
        let request = Request::post(&self.path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_vec())?;
        let answer: Value = self.client.request(request).await?;
        let response = &answer["response"];
        let allowed = response["allowed"]
            .as_bool()
            .with_context(|| format!("no answer: {answer}"))?;
        let code = &response["status"]["code"];
        ensure!(allowed || code == 429, "refused with another code: {answer}");
        Ok(allowed)
    }

    /// Posts reviews, so many a second, for so long; a slow answer does not delay the next question.
    pub async fn load(
        self,
        reviews: Vec<Vec<u8>>,
        per_second: u32,
        span: Duration,
        warm_up: Duration,
    ) -> Result<Answers> {
        let endpoint = Arc::new(self);
        let answers = Arc::new(Mutex::new(Answers::default()));
        let mut asked = JoinSet::new();
        let mut pace = interval(Duration::from_secs(1) / per_second);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let began = Instant::now();
        for review in reviews.into_iter().cycle() {
            let due = pace.tick().await;
            if began.elapsed() >= warm_up + span {
                break;
            }
            let is_counted = due.duration_since(began) >= warm_up;
            let (endpoint, answers) = (Arc::clone(&endpoint), Arc::clone(&answers));
            asked.spawn(async move {
                let sent = Instant::now();
                let allowed = endpoint.ask(&review).await?;
                let latency = sent.elapsed().as_secs_f64() * 1000.0;
                if is_counted {
                    let mut answers = lock(&answers);
                    answers.latencies.push(latency);
                    answers.admitted += usize::from(allowed);
                    answers.refused += usize::from(!allowed);
                }
                anyhow::Ok(())
            });
            while let Some(ended) = asked.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = asked.join_next().await {
            ended??;
        }
        Ok(lock(&answers).clone())
    }
}

/// A review as the API server sends it for an eviction by somebody who drains nothing.
pub fn review(number: usize, namespace: &str, pod: &str) -> Vec<u8> {
    let text = include_str!("../../../../objects/eviction-review.json")
        .replace("{number}", &format!("{number:012}"))
        .replace("{namespace}", namespace)
        .replace("{pod}", pod);
    text.into_bytes()
}
