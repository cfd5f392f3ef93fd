//! Events about a configuration that got broken or mended.

use k8s_openapi::api::core::v1::ObjectReference;
use tokio_util::sync::CancellationToken;

use super::{ConfigHandle, Rejections};
use crate::events::{EventSink, EventSpec, Severity};

/// Tells of each fault once, about the operator's own pod, until `stop` is cancelled.
pub(crate) async fn announce<T>(
    handle: ConfigHandle<T>,
    events: EventSink,
    operator: ObjectReference,
    stop: CancellationToken,
) {
    let mut rejections = handle.rejections();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = rejections.changed() => if changed.is_err() { return },
        }
        let event = event(&rejections.borrow_and_update(), operator.clone());
        events.emit(event);
    }
}

fn event(rejections: &Rejections, operator: ObjectReference) -> EventSpec {
    let (severity, reason, note) = match rejections.any() {
        Some(error) => (
            Severity::Warning,
            "ConfigRejected",
            format!("the last good configuration stays in force: {error}"),
        ),
        None => (
            Severity::Normal,
            "ConfigAccepted",
            "the configuration is in order again".to_owned(),
        ),
    };
    EventSpec {
        regarding: operator,
        related: None,
        severity,
        reason,
        action: "Configure",
        note,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::event;
    use crate::config::{ConfigError, Rejections};
    use crate::events::{Severity, pod_reference};

    #[test]
    fn fault_is_warning_and_its_end_normal() {
        let error = Arc::new(ConfigError::at("repeat", "must be at least 1").in_origin("f.yaml"));
        let broken = Rejections {
            merged: Some(error),
            ..Rejections::default()
        };
        let told = event(&broken, pod_reference("ns", "p", None));
        assert_eq!((told.severity, told.reason), (Severity::Warning, "ConfigRejected"));
        assert!(
            told.note.contains("f.yaml: repeat: must be at least 1"),
            "{}",
            told.note
        );
        let told = event(&Rejections::default(), pod_reference("ns", "p", None));
        assert_eq!((told.severity, told.reason), (Severity::Normal, "ConfigAccepted"));
    }
}
