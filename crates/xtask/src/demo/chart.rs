//! The release of the chart that an act installs, as a user does. The operators' binaries run here, under the
//! ServiceAccounts that it makes.

use nodeward_testkit::helm::Release;

use super::place::Place;

/// The name of the chart's release.
fn release_name(place: &Place) -> &str {
    if place.plane().is_some() {
        "nodeward"
    } else {
        place.run()
    }
}

/// The namespace of the operators.
pub fn namespace(place: &Place) -> String {
    if place.plane().is_some() {
        nodeward_api::DEFAULT_NAMESPACE.to_owned()
    } else {
        place.named("system")
    }
}

/// The name of an operator's ServiceAccount.
pub fn service_account(place: &Place, operator: &str) -> String {
    format!("{}-{operator}", release_name(place))
}

/// The chart's release.
pub fn release(place: &Place) -> Release {
    Release::new(release_name(place), &namespace(place))
}
