//! Which objects a watch asks for.

use std::time::Duration;

use kube::api::{ListParams, WatchParams};

/// Selectors that the server applies, so that what does not match never crosses the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    fields: Option<String>,
    labels: Option<String>,
    name: Option<String>,
    poll_interval: Option<Duration>,
}

/// How long the server keeps one watch open. kube refuses 295 s and more, for the server cuts a request at five minutes.
pub(super) const WATCH_SECONDS: u32 = 290;

/// Objects in one page of a list: a page of full Nodes (some 20 KB each) then stays below 5 MB while it is decoded.
pub(super) const PAGE_SIZE: u32 = 200;

impl Selection {
    /// Every object.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only objects that match a field selector: `spec.nodeName=worker-1`.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Only objects that match a label selector: `app=web`.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only the object of this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self.fields(format!("metadata.name={name}"))
        }
    }

    /// Where the server forbids to watch, the objects are listed, or the one object is read, as often as this.
    #[must_use]
    pub fn or_polled(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn poll_interval(&self) -> Option<Duration> {
        self.poll_interval
    }

    pub(super) fn watch_params(&self, with_initial_list: bool) -> WatchParams {
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: with_initial_list,
        }
    }

    pub(super) fn page(&self, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some(PAGE_SIZE),
            continue_token,
            ..ListParams::default()
        }
    }
}
