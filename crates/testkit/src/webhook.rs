//! An admission webhook of somebody else, which denies all that it is asked about.

use std::convert::Infallible;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::control_plane::ControlPlane;
use crate::{bulk, names};

/// A webhook at work. It ends when it is dropped, and then fails what it was asked about: see [`DenyingWebhook::remove`].
pub struct DenyingWebhook {
    registrations: Api<ValidatingWebhookConfiguration>,
    name: String,
    accepting: JoinHandle<()>,
}

impl DenyingWebhook {
    /// Denies every eviction of a namespace's pods with this code and message, and without a reason.
    ///
    /// # Errors
    /// When it cannot listen, or the API server refuses its registration.
    pub async fn of_evictions(plane: &ControlPlane, namespace: &str, code: u16, message: &str) -> Result<Self> {
        Self::on_conditions(plane, namespace, &json!([]), code, message).await
    }

    /// The same of the pods whose names begin so.
    ///
    /// # Errors
    /// As [`DenyingWebhook::of_evictions`].
    pub async fn of_pods_named(
        plane: &ControlPlane,
        namespace: &str,
        prefix: &str,
        code: u16,
        message: &str,
    ) -> Result<Self> {
        let named = json!([{ "name": "pods", "expression": format!("request.name.startsWith('{prefix}')") }]);
        Self::on_conditions(plane, namespace, &named, code, message).await
    }

    async fn on_conditions(
        plane: &ControlPlane,
        namespace: &str,
        conditions: &Value,
        code: u16,
        message: &str,
    ) -> Result<Self> {
        let tls = plane.tls_acceptor("testbed-webhook")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/", listener.local_addr()?);
        let status = json!({ "code": code, "message": message });
        let accepting = tokio::spawn(accept(listener, tls, status));

        let name = names::unique("denying-webhook");
        let registration = json!({
            "metadata": { "name": name },
            "webhooks": [{
                "name": "evictions.denying.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": { "url": url, "caBundle": STANDARD.encode(plane.ca()) },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                "matchConditions": conditions,
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"],
                }],
            }],
        });
        let client: Client = plane.client().await?;
        bulk::create_one(
            client.clone(),
            serde_json::from_value::<ValidatingWebhookConfiguration>(registration)?,
        )
        .await?;
        Ok(Self {
            registrations: Api::all(client),
            name,
            accepting,
        })
    }

    /// Takes the registration away: the API server asks it no more.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn remove(&self) -> Result<()> {
        self.registrations.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

impl Drop for DenyingWebhook {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, status: Value) {
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, status) = (tls.clone(), status.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(socket).await else { return };
            let service = service_fn(move |request| deny(request, status.clone()));
            let server = hyper::server::conn::http1::Builder::new();
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn deny(request: Request<Incoming>, status: Value) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(Collected::to_bytes);
    let review: Value = body
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok())
        .unwrap_or_default();
    let denial = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": { "uid": review["request"]["uid"], "allowed": false, "status": status },
    });
    let mut response = Response::new(Full::from(denial.to_string()));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    Ok(response)
}
