//! Serves an admission webhook over TLS.
//!
//! The certificate comes from a directory (`--webhook-cert-dir`), or is the operator's own: an authority and a certificate
//! that all replicas share in the Secret `<component>-webhook-cert`, renewed in time, with the authority published in the
//! ValidatingWebhookConfiguration that names this webhook.

mod authority;
mod own_certificate;
mod registration;
mod renewal;
pub mod review;
mod secret;

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;

pub use authority::Lifetimes;

use crate::args::WebhookArgs;
use crate::operator::OperatorContext;
use crate::serve::{BindError, HttpServer, Limits};
use crate::tls::{Served, Tls, TlsDirectory};
use own_certificate::OwnCertificate;

/// What the server and its certificate are called in metrics, in the log and by the readiness gate.
const NAME: &str = "webhook";

/// Serves `router` until the operator is told to stop; gives the address, whose port is known even if 0 was asked for.
/// `/readyz` waits for a certificate.
///
/// # Errors
/// When the address cannot be taken.
pub async fn serve<T>(
    context: &OperatorContext<T>,
    args: &WebhookArgs,
    router: Router,
) -> Result<SocketAddr, BindError> {
    serve_with(context, args, router, Lifetimes::default()).await
}

/// As [`serve`], with other lifetimes of the operator's own certificate.
///
/// # Errors
/// When the address cannot be taken.
pub async fn serve_with<T>(
    context: &OperatorContext<T>,
    args: &WebhookArgs,
    router: Router,
    lifetimes: Lifetimes,
) -> Result<SocketAddr, BindError> {
    let server = HttpServer::bind(NAME, args.webhook_bind).await?;
    let address = server.address();
    let tls = match &args.webhook_cert_dir {
        Some(directory) => certificate_in(directory, context),
        None => own_certificate(context, args.configuration_of(context.component.name()), lifetimes),
    };
    let gate = tls.clone();
    context
        .readiness
        .require("webhook certificate", move || match gate.config() {
            Some(_) => Ok(()),
            None => Err("there is none yet".to_owned()),
        });
    let answers = server.serve(router, Some(tls), Limits::default(), context.shutdown.clone());
    context.supervisor.spawn(NAME, answers);
    Ok(address)
}

fn certificate_in<T>(directory: &Path, context: &OperatorContext<T>) -> Tls {
    let certificate = TlsDirectory::open(NAME, directory, None, &context.metrics);
    let tls = certificate.tls();
    let follow = certificate.follow(context.shutdown.clone());
    context.supervisor.spawn("webhook certificate", follow);
    tls
}

fn own_certificate<T>(context: &OperatorContext<T>, configuration: String, lifetimes: Lifetimes) -> Tls {
    let served = Served::new(NAME, &context.metrics);
    let certificate = OwnCertificate::new(context, configuration, lifetimes, served);
    let tls = certificate.tls();
    let keep = certificate.keep(context.shutdown.clone());
    context.supervisor.spawn("webhook certificate", keep);
    tls
}
