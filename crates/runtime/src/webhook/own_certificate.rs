//! Keeps the operator's own certificate: makes, shares, publishes, serves and renews it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::authority::{Lifetimes, MakeError};
use super::registration::{Registered, Registration};
use super::renewal::{Contents, Situation, Step, next_step};
use super::secret::{Shared, Stored, name_of};
use crate::api_error::{has_code, with_sources};
use crate::backoff::endless_backoff;
use crate::cache::{Cache, Selection, Watchable, Watches};
use crate::component::{Component, beside};
use crate::operator::OperatorContext;
use crate::sleep::sleep_until;
use crate::tls::{PairError, Served, Tls};

/// A certificate is looked at once a day at least, whatever its dates say: clocks are set.
const LOOK_ANYWAY: SignedDuration = SignedDuration::from_hours(24);

/// Between looks that fail.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MOST_DELAY: Duration = Duration::from_mins(1);

/// The operator's own certificate.
pub(super) struct OwnCertificate {
    component: Component,
    shared: Shared,
    registration: Registration,
    lifetimes: Lifetimes,
    dry_run: bool,
    fallback_host: String,
    served: Served,
    serving: Option<Contents>,
    secret_watch: Cache<Option<String>>,
    registration_watch: Cache<Option<String>>,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{what}: {}", with_sources(source))]
    Api {
        what: &'static str,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error("the shared certificate cannot be served: {0}")]
    Serve(#[from] PairError),
}

impl KeepError {
    fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api {
            what,
            source: Box::new(source),
        }
    }
}

/// What a look at everything led to.
enum Looked {
    /// Something was written, or somebody else wrote: look again.
    Again,
    /// Nothing is to be done before that time.
    WaitUntil(Timestamp),
}

impl OwnCertificate {
    pub(super) fn new<T>(
        context: &OperatorContext<T>,
        configuration: String,
        lifetimes: Lifetimes,
        served: Served,
    ) -> Self {
        let (component, clients, watches) = (context.component, &context.clients, &context.watches);
        let (namespace, dry_run) = (&context.args.namespace, context.args.dry_run);
        // What the real operator shares and publishes is not a dry run's to write.
        let (secret, configuration) = (name_of(component, dry_run), beside(configuration, dry_run));
        let secrets: Api<Secret> = Api::namespaced(clients.watches.clone(), namespace);
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(clients.watches.clone());
        Self {
            component,
            secret_watch: watch(watches, "webhook-secret", secrets, &secret),
            shared: Shared::new(Api::namespaced(clients.requests.clone(), namespace), component, secret),
            registration_watch: watch(watches, "webhook-configuration", configurations, &configuration),
            registration: Registration {
                api: Api::all(clients.requests.clone()),
                name: configuration,
            },
            lifetimes,
            dry_run,
            fallback_host: format!("{}-webhook.{namespace}.svc", component.name()),
            served,
            serving: None,
        }
    }

    pub(super) fn tls(&self) -> Tls {
        self.served.tls()
    }

    /// Until `stop` is cancelled.
    pub(super) async fn keep(mut self, stop: CancellationToken) {
        let (mut secret, mut registration) = (self.secret_watch.changes(), self.registration_watch.changes());
        let mut backoff = endless_backoff(FIRST_DELAY, MOST_DELAY);
        loop {
            let wait = match self.look().await {
                Ok(Looked::Again) => Timestamp::now() + SignedDuration::from_millis(fastrand::i64(10..100)),
                Ok(Looked::WaitUntil(until)) => {
                    backoff = endless_backoff(FIRST_DELAY, MOST_DELAY);
                    until.min(Timestamp::now() + LOOK_ANYWAY)
                }
                Err(error) => {
                    let delay = backoff.next().unwrap_or(MOST_DELAY);
                    tracing::warn!("webhook certificate: {error}; tried again in {delay:?}");
                    Timestamp::now() + SignedDuration::try_from(delay).unwrap_or(LOOK_ANYWAY)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(Some(wait)) => {}
                _ = secret.changed() => {}
                _ = registration.changed() => {}
            }
        }
    }

    /// Looks at everything and does the one thing that is due. The configuration is read before the Secret: where somebody
    /// has changed it since, publishing is refused, so that an old bundle never replaces a newer one.
    async fn look(&mut self) -> Result<Looked, KeepError> {
        let api = KeepError::api;
        let registered = self.registration.read().await.or_else(absent_if_forbidden);
        let registered = registered.map_err(api("the webhook configuration cannot be read"))?;
        let stored = match self.shared.read().await {
            Err(error) if self.dry_run && has_code(&error, 403) => Stored::default(),
            stored => stored.map_err(api("the Secret cannot be read"))?,
        };
        if let Some(Err(problem)) = &stored.contents {
            tracing::warn!("webhook certificate: the Secret holds nothing of use: {problem}");
        }
        let mut published = Ok(false);
        if let Some(contents) = stored.contents() {
            self.serve(contents)?;
            published = self.publish(contents, registered.as_ref()).await;
            if let Ok(true) = published {
                return Ok(Looked::Again);
            }
        }
        if self.dry_run && registered.is_none() {
            return self.serve_without_writing(&stored);
        }
        match self.next_step(stored.contents(), registered.as_ref())? {
            // What cannot be published keeps nothing else from being renewed.
            Step::WaitUntil(until) => published.map(|_| Looked::WaitUntil(until)),
            Step::Write { contents, why } => {
                // Nobody needs that of a dry run once its registration is gone.
                let owner = registered
                    .filter(|_| self.dry_run)
                    .and_then(|registered| registered.owner);
                match self.shared.write(&contents, &stored, owner).await {
                    Ok(()) => tracing::info!("webhook certificate: a new one was made: {why}"),
                    Err(error) if has_code(&error, 409) => {
                        tracing::debug!("webhook certificate: another replica was first");
                    }
                    Err(source) => return Err(api("the Secret cannot be written")(source)),
                }
                Ok(Looked::Again)
            }
        }
    }

    /// A dry run that is not registered writes nothing: it serves a certificate that nobody else knows, and nobody asks it.
    fn serve_without_writing(&mut self, stored: &Stored) -> Result<Looked, KeepError> {
        if stored.contents().is_none() {
            let mine = self.serving.clone();
            match self.next_step(mine.as_ref(), None)? {
                Step::Write { contents, .. } => self.serve(&contents)?,
                Step::WaitUntil(until) => return Ok(Looked::WaitUntil(until)),
            }
        }
        Ok(Looked::WaitUntil(Timestamp::now() + LOOK_ANYWAY))
    }

    fn next_step(&self, contents: Option<&Contents>, registered: Option<&Registered>) -> Result<Step, KeepError> {
        let mut hosts = registered.map_or_else(BTreeSet::new, |registered| registered.hosts.clone());
        if hosts.is_empty() {
            // Nobody calls: nothing is known to be wrong with the names there are.
            let fallback = || BTreeSet::from([self.fallback_host.clone()]);
            hosts = contents.map_or_else(fallback, |contents| contents.leaf.hosts.clone());
        }
        let is_published =
            registered.is_none_or(|registered| contents.is_some_and(|contents| registered.has(&contents.bundle())));
        Ok(next_step(&Situation {
            component: self.component.name(),
            contents,
            hosts: &hosts,
            is_published,
            now: Timestamp::now(),
            lifetimes: &self.lifetimes,
        })?)
    }

    fn serve(&mut self, contents: &Contents) -> Result<(), KeepError> {
        let is_new = |serving: &Contents| serving.leaf != contents.leaf;
        if self.serving.as_ref().is_none_or(is_new) {
            self.served.put(&contents.leaf.pair()?);
        }
        self.serving = Some(contents.clone());
        Ok(())
    }

    /// Tells the API server whom to trust; false if it knows, or if there is nobody to tell.
    async fn publish(&self, contents: &Contents, registered: Option<&Registered>) -> Result<bool, KeepError> {
        let bundle = contents.bundle();
        let Some(registered) = registered.filter(|registered| !registered.has(&bundle)) else {
            return Ok(false);
        };
        let manager = self.component.field_manager();
        match self.registration.publish(&bundle, registered, manager).await {
            Ok(()) => tracing::info!(
                configuration = self.registration.name,
                "the webhook's authority was published"
            ),
            Err(error) if has_code(&error, 409) => tracing::debug!("the webhook configuration was changed meanwhile"),
            Err(source) => return Err(KeepError::api("the webhook's authority cannot be published")(source)),
        }
        Ok(true)
    }
}

fn watch<K: Watchable>(watches: &Watches, cache: &'static str, api: Api<K>, name: &str) -> Cache<Option<String>> {
    let version = |object: K| Some(object.meta().resource_version.clone());
    watches.cache(cache, api, Selection::all().named(name), version)
}

/// An operator that may not read the configuration serves all the same: somebody else then publishes the authority.
fn absent_if_forbidden(error: kube::Error) -> Result<Option<Registered>, kube::Error> {
    if has_code(&error, 403) { Ok(None) } else { Err(error) }
}
