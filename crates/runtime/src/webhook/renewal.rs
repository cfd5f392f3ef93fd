//! What becomes of the operator's own certificate, and when: pure.
//!
//! A new authority is published before it signs, and an old one stays published until it expires: at no moment does the API
//! server meet a certificate that it cannot check.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::authority::{Authority, Leaf, Lifetimes, MakeError, renewal};
use crate::tls::pair::{Validity, certificates};

/// Everything that the replicas share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// Signs.
    pub(super) authority: Authority,
    /// Will sign once it is trusted everywhere.
    pub(super) next: Option<Authority>,
    /// Certificates of those that signed before, PEM, each until it expires.
    pub(super) retired: Vec<String>,
    /// Is served.
    pub(super) leaf: Leaf,
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before that time.
    WaitUntil(Timestamp),
    /// Share these instead.
    Write {
        /// The new contents.
        contents: Box<Contents>,
        /// Why, for the log.
        why: &'static str,
    },
}

/// What the decision rests on.
pub(super) struct Situation<'a> {
    /// The operator.
    pub(super) component: &'a str,
    /// What is shared now, if it can be read.
    pub(super) contents: Option<&'a Contents>,
    /// The names and addresses that the certificate has to be valid for.
    pub(super) hosts: &'a BTreeSet<String>,
    /// Whether the bundle of the present contents is what the API server was given.
    pub(super) is_published: bool,
    pub(super) now: Timestamp,
    pub(super) lifetimes: &'a Lifetimes,
}

impl Contents {
    /// The authorities to trust, PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.iter().map(|next| next.certificate.as_str());
        let retired = self.retired.iter().map(String::as_str);
        [self.authority.certificate.as_str()]
            .into_iter()
            .chain(next)
            .chain(retired)
            .collect()
    }
}

/// The next step, from what there is.
pub(super) fn next_step(situation: &Situation<'_>) -> Result<Step, MakeError> {
    let Some(contents) = situation.contents else {
        return Ok(Step::write(anew(situation)?, "there is none that can be used"));
    };
    let Situation {
        component,
        hosts,
        now,
        lifetimes,
        ..
    } = *situation;
    if contents.authority.validity.not_after <= now {
        return Ok(Step::write(anew(situation)?, "its authority has expired"));
    }
    if let Some(next) = &contents.next
        && situation.is_published
        && settled(next, lifetimes) <= now
    {
        let contents = promote(contents, next, situation)?;
        return Ok(Step::write(contents, "a new authority is trusted and takes over"));
    }
    if contents.next.is_none() && renewal(contents.authority.validity) <= now {
        let next = Some(Authority::make(component, now, lifetimes)?);
        let contents = Contents {
            next,
            ..contents.clone()
        };
        return Ok(Step::write(
            contents,
            "its authority will expire: a new one is published",
        ));
    }
    if let Some(why) = reissue(contents, hosts, now) {
        let leaf = contents.authority.sign(hosts, now, lifetimes)?;
        let contents = Contents {
            leaf,
            ..contents.clone()
        };
        return Ok(Step::write(contents, why));
    }
    let lasting: Vec<String> = contents
        .retired
        .iter()
        .filter(|pem| now < expiry(pem))
        .cloned()
        .collect();
    if lasting.len() < contents.retired.len() {
        let contents = Contents {
            retired: lasting,
            ..contents.clone()
        };
        return Ok(Step::write(contents, "an authority that signs no more has expired"));
    }
    Ok(Step::WaitUntil(next_deadline(contents, situation)))
}

impl Step {
    fn write(contents: Contents, why: &'static str) -> Self {
        let contents = Box::new(contents);
        Self::Write { contents, why }
    }
}

fn anew(situation: &Situation<'_>) -> Result<Contents, MakeError> {
    let authority = Authority::make(situation.component, situation.now, situation.lifetimes)?;
    let leaf = authority.sign(situation.hosts, situation.now, situation.lifetimes)?;
    Ok(Contents {
        authority,
        next: None,
        retired: Vec::new(),
        leaf,
    })
}

fn promote(contents: &Contents, next: &Authority, situation: &Situation<'_>) -> Result<Contents, MakeError> {
    let mut retired = vec![contents.authority.certificate.clone()];
    retired.extend(contents.retired.iter().cloned());
    Ok(Contents {
        leaf: next.sign(situation.hosts, situation.now, situation.lifetimes)?,
        authority: next.clone(),
        next: None,
        retired,
    })
}

/// Why the certificate has to be made anew, if it has to.
fn reissue(contents: &Contents, hosts: &BTreeSet<String>, now: Timestamp) -> Option<&'static str> {
    let leaf = &contents.leaf;
    if !contents.authority.signed(leaf) {
        Some("its authority did not sign it")
    } else if !hosts.is_subset(&leaf.hosts) {
        Some("it lacks a name by which the API server calls")
    } else if renewal(leaf.validity) <= now && leaf.validity.not_after < contents.authority.validity.not_after {
        Some("it will expire")
    } else {
        None
    }
}

fn settled(next: &Authority, lifetimes: &Lifetimes) -> Timestamp {
    next.made_at() + lifetimes.settling
}

fn expiry(pem: &str) -> Timestamp {
    let validity = certificates(pem.as_bytes()).and_then(|found| Validity::of(found.first()?).ok());
    validity.map_or(Timestamp::MIN, |validity| validity.not_after)
}

fn next_deadline(contents: &Contents, situation: &Situation<'_>) -> Timestamp {
    let mut deadlines = vec![contents.authority.validity.not_after];
    match &contents.next {
        // Until it is published there is nothing to wait for but that.
        Some(next) if situation.is_published => deadlines.push(settled(next, situation.lifetimes)),
        Some(_) => {}
        None => deadlines.push(renewal(contents.authority.validity)),
    }
    if contents.leaf.validity.not_after < contents.authority.validity.not_after {
        deadlines.push(renewal(contents.leaf.validity));
    }
    deadlines.extend(contents.retired.iter().map(|pem| expiry(pem)));
    deadlines.into_iter().min().unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn lifetimes() -> Lifetimes {
        Lifetimes {
            authority: SignedDuration::from_hours(90),
            certificate: SignedDuration::from_hours(30),
            settling: HOUR,
        }
    }

    fn hosts(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    /// The contents at a time, and whether they are published.
    struct World {
        contents: Option<Contents>,
        hosts: BTreeSet<String>,
        is_published: bool,
        now: Timestamp,
    }

    impl World {
        fn new() -> Self {
            let mut world = Self {
                contents: None,
                hosts: hosts(&["webhook.ns.svc"]),
                is_published: true,
                now: start(),
            };
            world.write();
            world
        }

        fn step(&self) -> Step {
            next_step(&Situation {
                component: "drain-lock",
                contents: self.contents.as_ref(),
                hosts: &self.hosts,
                is_published: self.is_published,
                now: self.now,
                lifetimes: &lifetimes(),
            })
            .unwrap()
        }

        fn write(&mut self) -> &'static str {
            match self.step() {
                Step::Write { contents, why } => {
                    self.contents = Some(*contents);
                    why
                }
                Step::WaitUntil(until) => panic!("waits until {until}"),
            }
        }

        fn waits_until(&self) -> Timestamp {
            match self.step() {
                Step::WaitUntil(until) => until,
                Step::Write { why, .. } => panic!("writes: {why}"),
            }
        }

        fn contents(&self) -> &Contents {
            self.contents.as_ref().unwrap()
        }

        /// A certificate that is served can be checked with what the API server was given.
        fn is_trusted(&self, bundle: &str) -> bool {
            let signer = [&self.contents().authority].into_iter().chain(&self.contents().next);
            let signer = signer
                .into_iter()
                .find(|authority| authority.signed(&self.contents().leaf));
            signer.is_some_and(|authority| bundle.contains(&authority.certificate))
        }
    }

    #[test]
    fn new_certificate_has_all_names_and_needs_nothing() {
        let world = World::new();
        let contents = world.contents();
        assert_eq!(contents.leaf.hosts, world.hosts);
        assert!(contents.authority.signed(&contents.leaf));
        assert!(contents.leaf.validity.not_before <= start() - SignedDuration::from_mins(9));
        assert_eq!(contents.leaf.validity.not_after, start() + lifetimes().certificate);
        let until = world.waits_until();
        assert!(until > start() + HOUR * 18 && until < start() + HOUR * 21, "{until}");
    }

    #[rstest]
    #[case::an_address("127.0.0.1")]
    #[case::an_address_of_six("::1")]
    #[case::a_name("other.ns.svc")]
    fn missing_host_name_reissues_certificate(#[case] name: &str) {
        let mut world = World::new();
        let authority = world.contents().authority.clone();
        world.hosts = hosts(&[name]);
        assert_eq!(world.write(), "it lacks a name by which the API server calls");
        assert!(
            world.contents().leaf.hosts.contains(name),
            "{:?}",
            world.contents().leaf.hosts
        );
        assert_eq!(world.contents().authority, authority);
        world.waits_until();
    }

    #[test]
    fn a_certificate_is_renewed_under_its_authority() {
        let mut world = World::new();
        world.now = world.waits_until();
        let before = world.contents().clone();
        assert_eq!(world.write(), "it will expire");
        assert_eq!(world.contents().authority, before.authority);
        assert_ne!(world.contents().leaf.certificate, before.leaf.certificate);
        assert!(world.waits_until() > world.now);
    }

    /// From the first authority to the third, whenever the API server is told.
    #[test]
    fn served_certificate_is_trusted_during_renewal() {
        let mut world = World::new();
        let mut given = world.contents().bundle();
        let (mut authorities, first) = (1, world.contents().authority.clone());
        while authorities < 3 {
            world.is_published = given == world.contents().bundle();
            match world.step() {
                Step::Write { contents, .. } => {
                    let before = world.contents.replace(*contents).unwrap();
                    if before.authority != world.contents().authority {
                        authorities += 1;
                        assert!(
                            given.contains(&before.authority.certificate),
                            "an older replica still serves it"
                        );
                    }
                }
                Step::WaitUntil(_) if !world.is_published => given = world.contents().bundle(),
                Step::WaitUntil(until) => world.now = until,
            }
            assert!(world.is_trusted(&given), "at {}", world.now);
        }
        assert_ne!(world.contents().authority, first);
        assert!(world.now < start() + lifetimes().authority * 3);
    }

    #[test]
    fn new_authority_signs_only_once_settled() {
        let mut world = World::new();
        world.now = start() + HOUR * 62;
        while world.contents().next.is_none() {
            world.write();
        }
        world.is_published = false;
        // What else is due may be done; the authority stays.
        let authority = world.contents().authority.clone();
        world.now += HOUR * 2;
        while let Step::Write { contents, .. } = world.step() {
            world.contents = Some(*contents);
        }
        assert_eq!(world.contents().authority, authority);
        world.is_published = true;
        assert_eq!(world.write(), "a new authority is trusted and takes over");
        assert!(
            world.contents().bundle().contains(&authority.certificate),
            "the old one is still trusted"
        );
    }

    #[test]
    fn retired_authority_is_trusted_until_expiry() {
        let mut world = World::new();
        let first = world.contents().authority.clone();
        while world.now < first.validity.not_after - HOUR {
            match world.step() {
                Step::Write { contents, .. } => world.contents = Some(*contents),
                Step::WaitUntil(until) => world.now = until,
            }
        }
        while let Step::Write { contents, .. } = world.step() {
            world.contents = Some(*contents);
        }
        assert_ne!(world.contents().authority, first);
        assert!(!world.contents().bundle().contains(&first.certificate));
    }

    #[test]
    fn expired_authority_is_made_anew() {
        let mut world = World::new();
        world.now = start() + lifetimes().authority;
        assert_eq!(world.write(), "its authority has expired");
        world.waits_until();
    }

    #[test]
    fn a_certificate_of_another_authority_is_replaced() {
        let mut world = World::new();
        let other = World::new();
        let leaf = other.contents().leaf.clone();
        let contents = world.contents().clone();
        world.contents = Some(Contents { leaf, ..contents });
        assert_eq!(world.write(), "its authority did not sign it");
        assert!(world.contents().authority.signed(&world.contents().leaf));
    }
}
