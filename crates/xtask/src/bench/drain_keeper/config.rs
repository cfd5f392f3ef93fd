//! drain-keeper's configuration while it is measured: minutes are seconds, and the limits are lifted.

use jiff::SignedDuration;

/// `nodeDrain.timeOut`.
pub const TIME_OUT: SignedDuration = SignedDuration::from_secs(75);

/// `nodeDrain.expectedNodeDrainTime`; the UpgradeConfig's `PDBForceDrainTimeout` adds 0 minutes, which is legal.
pub const BUDGET_WAIT: SignedDuration = SignedDuration::from_secs(90);

/// `forceAfter`.
pub const FORCE_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// `overrideSpacing`.
pub const OVERRIDE_SPACING: SignedDuration = SignedDuration::from_secs(20);

/// The configuration. The pool that rests has its waits in minutes, so that its pods are waited for throughout.
pub fn text() -> String {
    format!(
        r#"
upgradeSignal: openshift
nodeDrain: {{ timeOut: "{}s", expectedNodeDrainTime: "{}s" }}
forceAfter: "{}s"
overrideSpacing: "{}s"
flapTolerance: "3s"
limits: {{ forcedPerNode: 1000, forcedPerMinute: 1000000 }}
pools:
  - selector: {{ {pool}: resting }}
    nodeDrain: {{ timeOut: 45, expectedNodeDrainTime: 60 }}
"#,
        TIME_OUT.as_secs(),
        BUDGET_WAIT.as_secs(),
        FORCE_AFTER.as_secs(),
        OVERRIDE_SPACING.as_secs(),
        pool = crate::bench::large::nodes::POOL_LABEL,
    )
}

#[cfg(test)]
mod tests {
    use drain_keeper::settings::Settings;

    #[test]
    fn drain_keeper_accepts_it() {
        Settings::parse(&super::text()).unwrap();
    }
}
