use super::*;

#[test]
fn no_signal_configured_means_openshift() {
    assert_eq!(*UpgradeSignal::default().spec(), SignalSpec::OpenShift);
    assert!(UpgradeSignal::default().includes_openshift());
}
