//! Whether all placement groups are clean.

use regex::Regex;

use super::answers::PgMap;

/// What a placement group with all its copies where they belong may be besides active; scrubbing and trimming are its daily
/// work.
const CLEAN: [&str; 5] = ["clean", "deep", "scrubbing", "snaptrim", "snaptrim_wait"];

/// What counts as clean: a pattern of the CephCluster's own, or else the usual states.
#[derive(Debug, Clone, Default)]
pub struct CleanPattern(Option<Regex>);

impl PartialEq for CleanPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(Regex::as_str) == other.0.as_ref().map(Regex::as_str)
    }
}

impl Eq for CleanPattern {}

impl CleanPattern {
    /// The pattern of a CephCluster (`spec.disruptionManagement.pgHealthyRegex`), or else the usual one.
    ///
    /// # Errors
    /// It is not a regular expression.
    pub fn new(own: Option<&str>) -> Result<Self, regex::Error> {
        let own = own.filter(|own| !own.is_empty()).map(Regex::new);
        own.transpose().map(Self)
    }

    /// Whether this state of a placement group is clean.
    pub fn matches(&self, state: &str) -> bool {
        if let Some(own) = &self.0 {
            return own.is_match(state);
        }
        let rest = state.strip_prefix("active+");
        rest.is_some_and(|rest| rest.split('+').all(|flag| CLEAN.contains(&flag)))
    }

    /// The states that are not clean, each with how many are in it. None at all is clean.
    pub fn unclean<'a>(&self, pgs: &'a PgMap) -> Vec<(&'a str, i64)> {
        let states = pgs
            .pgs_by_state
            .iter()
            .map(|state| (state.state_name.as_str(), state.count));
        let mut unclean: Vec<_> = states
            .filter(|(state, count)| *count > 0 && !self.matches(state))
            .collect();
        let counted: i64 = pgs.pgs_by_state.iter().map(|state| state.count).sum();
        // A new pool's placement groups are counted before they have a state.
        if counted < pgs.num_pgs {
            unclean.push(("unknown", pgs.num_pgs - counted));
        }
        unclean
    }
}

/// States that a placement group without all its copies may be in, or that take no requests.
pub fn lacks_redundancy(state: &str) -> bool {
    let mut flags = state.split('+');
    !state.split('+').any(|flag| flag == "active") || flags.any(|flag| matches!(flag, "degraded" | "undersized"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::answers::{PgCount, PgMap};
    use super::{CleanPattern, lacks_redundancy};

    fn pgs(states: &[(&str, i64)], num_pgs: i64) -> PgMap {
        let counted = states.iter().map(|(state, count)| PgCount {
            state_name: (*state).to_owned(),
            count: *count,
        });
        PgMap {
            pgs_by_state: counted.collect(),
            num_pgs,
        }
    }

    #[rstest]
    #[case::clean("active+clean", true)]
    #[case::scrubbing("active+clean+scrubbing+deep", true)]
    #[case::trimming("active+clean+snaptrim_wait", true)]
    #[case::remapped("active+clean+remapped", false)]
    #[case::peering("peering", false)]
    #[case::undersized("active+undersized+degraded", false)]
    #[case::inactive("undersized+peered", false)]
    #[case::repair("active+clean+scrubbing+deep+repair", false)]
    #[case::active_alone("active", false)]
    fn states_are_judged_whole(#[case] state: &str, #[case] is_clean: bool) {
        let pattern = CleanPattern::new(None).unwrap();
        assert_eq!(pattern.unclean(&pgs(&[(state, 1)], 1)).is_empty(), is_clean);
    }

    #[test]
    fn no_placement_groups_are_clean() {
        assert!(CleanPattern::new(None).unwrap().unclean(&pgs(&[], 0)).is_empty());
    }

    #[test]
    fn placement_groups_without_a_state_are_not_clean() {
        let pattern = CleanPattern::new(None).unwrap();
        let pgs = pgs(&[("active+clean", 8)], 16);
        assert_eq!(pattern.unclean(&pgs), [("unknown", 8)]);
    }

    #[test]
    fn a_pattern_of_ones_own_replaces_the_usual_one() {
        let pattern = CleanPattern::new(Some(r"^active\+clean(\+remapped)?$")).unwrap();
        assert!(pattern.unclean(&pgs(&[("active+clean+remapped", 1)], 1)).is_empty());
        assert!(!pattern.unclean(&pgs(&[("active+clean+scrubbing", 1)], 1)).is_empty());
        assert!(CleanPattern::new(Some("(")).is_err());
        assert!(
            CleanPattern::new(Some(""))
                .unwrap()
                .unclean(&pgs(&[("active+clean", 1)], 1))
                .is_empty()
        );
    }

    #[rstest]
    #[case("active+clean+remapped", false)]
    #[case("active+remapped+backfilling", false)]
    #[case("active+undersized", true)]
    #[case("active+recovering+degraded", true)]
    #[case("undersized+peered", true)]
    #[case("unknown", true)]
    #[case("activating", true)]
    fn redundancy_is_lost_by_state(#[case] state: &str, #[case] expected: bool) {
        assert_eq!(lacks_redundancy(state), expected);
    }
}
