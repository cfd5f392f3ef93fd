//! The webhook's own certificate: shared, published, and changed while evictions are reviewed.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::caller::{Caller, Trust};
use crate::environment::SYSTEM;
use crate::reviewed::{NAME, Reviewed};

const SECRET: &str = "drain-lock-webhook-cert";

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_authority_and_loss_renews_it() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1"], json!({})).await?;
    let secrets: Api<Secret> = Api::namespaced(reviewed.env.client.clone(), SYSTEM);
    let (first, kept) = (reviewed.published().await?, secrets.get(SECRET).await?);

    ensure!(lock.stop(secs(30)).await?.success(), "it ended badly");
    lock.process().start()?;
    lock.ready(secs(60)).await?;
    reviewed.is_asked().await?;
    ensure!(reviewed.published().await? == first, "another authority was published");
    ensure!(
        secrets.get(SECRET).await?.data == kept.data,
        "another certificate was made"
    );

    // A second replica shares it.
    let dir = tempfile::tempdir()?;
    let second = Reviewed::spec_on(0, &json!({}))?;
    let second = reviewed.env.run(second).await?;
    let address = second
        .log()
        .split_once("serving webhook address=")
        .and_then(|(_, rest)| rest.split_whitespace().next().map(str::to_owned))
        .context("it does not say where it answers")?;
    let trust = || Trust {
        authority: Some(&first),
        ..Trust::default()
    };
    let caller = Caller::new(&format!("https://{address}"), dir.path(), trust()).await?;
    ensure!(caller.get("/evictions", &[]).await?.status == 405, "it does not answer");

    // Whoever takes the bundle away, or the Secret: the API server can ask again soon.
    let without = json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]);
    let configurations: Api<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration> =
        Api::all(reviewed.env.client.clone());
    let patch = Patch::Json::<()>(serde_json::from_value(without)?);
    configurations.patch(NAME, &PatchParams::default(), &patch).await?;
    wait::until("the bundle to be back", secs(60), || async {
        ensure!(reviewed.published().await? == first, "another one");
        Ok(())
    })
    .await?;
    reviewed.is_asked().await?;
    secrets.delete(SECRET, &DeleteParams::default()).await?;
    let second_authority = wait::until("a new authority", secs(60), || async {
        let published = reviewed.published().await?;
        ensure!(published != first, "the old one");
        Ok(published)
    })
    .await?;
    reviewed.is_asked().await?;
    // All replicas serve what the new authority has signed.
    let (first_address, dir) = (format!("https://127.0.0.1:{}", reviewed.port), tempfile::tempdir()?);
    for address in [first_address, format!("https://{address}")] {
        let trust = Trust {
            authority: Some(&second_authority),
            ..Trust::default()
        };
        let caller = Caller::new(&address, dir.path(), trust).await?;
        wait::until("the new certificate to be served", secs(60), || async {
            ensure!(caller.get("/evictions", &[]).await?.status == 405, "no answer");
            Ok(())
        })
        .await?;
    }
    reviewed.end([lock, second]).await
}
