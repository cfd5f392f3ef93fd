//! Answers that are cut short, or have fields that are missing, renamed or of another type: each is refused, or says no more than it said.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::OsdId;
use super::answers::{OkToStop, OsdDump, OsdMetadata, OsdTree, QuorumStatus, Rules, Status};
use super::pg_health::CleanPattern;
use super::reckoning::PgReport;
use super::stop_check::{StopAnswer, Testimony};

const RELEASES: [&str; 3] = ["16.2.15", "18.2.7", "20.2.4"];

fn recorded(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(recorded(path)).unwrap()
}

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

fn down(map: &OsdDump) -> BTreeSet<OsdId> {
    map.osds.iter().filter(|osd| !osd.up).map(|osd| osd.id).collect()
}

/// Reads an answer by the name of its file.
fn read_as(name: &str, text: &str) -> Result<(), serde_json::Error> {
    fn read<T: DeserializeOwned>(text: &str) -> Result<(), serde_json::Error> {
        serde_json::from_str::<T>(text).map(drop)
    }
    let is = |kind: &str| name.contains(kind);
    match () {
        () if is("status") && !is("quorum") => read::<Status>(text),
        () if is("quorum-status") => read::<QuorumStatus>(text),
        () if is("osd-dump") => read::<OsdDump>(text),
        () if is("osd-tree") => read::<OsdTree>(text),
        () if is("osd-metadata") => read::<Vec<OsdMetadata>>(text),
        () if is("crush-rules") => read::<Rules>(text),
        () if is("ok-to-stop") => read::<OkToStop>(text),
        () => panic!("what is {name}?"),
    }
}

#[test]
fn answers_of_each_release_are_read_and_cut_short_refused() {
    for release in RELEASES {
        let files = fs::read_dir(recorded(release)).unwrap().map(Result::unwrap);
        let files: Vec<_> = files.filter(|file| file.path().is_file()).collect();
        assert!(6 <= files.len(), "{release}");
        for file in files {
            let name = file.file_name().into_string().unwrap();
            let text = text(&format!("{release}/{name}"));
            read_as(&name, &text).unwrap();
            let text = text.trim_end();
            for end in (0..text.len()).step_by(1 + text.len() / 200) {
                assert!(read_as(&name, &text[..end]).is_err(), "{release}/{name} up to {end}");
            }
        }
    }
}

/// What becomes of a field, wherever it occurs.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Missing,
    Renamed,
    OfAnotherType,
    Empty,
}

const DAMAGES: [Damage; 4] = [Damage::Missing, Damage::Renamed, Damage::OfAnotherType, Damage::Empty];

fn fields(answer: &Value, found: &mut BTreeSet<String>) {
    match answer {
        Value::Object(object) => {
            for (field, value) in object {
                found.insert(field.clone());
                fields(value, found);
            }
        }
        Value::Array(array) => array.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

fn spoil(answer: &mut Value, field: &str, damage: Damage) {
    match answer {
        Value::Object(object) => {
            if let Some(value) = object.remove(field) {
                match damage {
                    Damage::Missing => {}
                    Damage::Renamed => drop(object.insert(format!("{field}_v2"), value)),
                    Damage::OfAnotherType => drop(object.insert(field.to_owned(), json!("spoilt"))),
                    Damage::Empty => drop(object.insert(field.to_owned(), Value::Null)),
                }
            }
            object.values_mut().for_each(|value| spoil(value, field, damage));
        }
        Value::Array(array) => array.iter_mut().for_each(|value| spoil(value, field, damage)),
        _ => {}
    }
}

/// Each damaged answer that is still read and says something else.
fn damaged<T: DeserializeOwned + PartialEq>(text: &str) -> Vec<(String, T)> {
    let answer: Value = read(text);
    let whole: T = read(text);
    let mut all = BTreeSet::new();
    fields(&answer, &mut all);
    let mut others = Vec::new();
    for field in &all {
        for damage in DAMAGES {
            let mut answer = answer.clone();
            spoil(&mut answer, field, damage);
            if let Ok(other) = serde_json::from_value::<T>(answer)
                && other != whole
            {
                others.push((format!("{field} {damage:?}"), other));
            }
        }
    }
    others
}

#[rstest]
#[case("16.2.15/down2")]
#[case("20.2.4/down2")]
fn damaged_status_is_not_clean(#[case] scenario: &str) {
    let text = text(&format!("{scenario}-status.json"));
    for (damage, status) in damaged::<Status>(&text) {
        assert!(!CleanPattern::default().unclean(&status.pgmap).is_empty(), "{damage}");
    }
}

#[rstest]
#[case("16.2.15/down1")]
#[case("16.2.15/down2")]
#[case("20.2.4/down2")]
fn damaged_map_hides_no_osd_that_is_down(#[case] scenario: &str) {
    let text = text(&format!("{scenario}-osd-dump.json"));
    let down =
        |dump: &OsdDump| -> BTreeSet<OsdId> { dump.osds.iter().filter(|osd| !osd.up).map(|osd| osd.id).collect() };
    let whole = down(&serde_json::from_str(&text).unwrap());
    for (damage, dump) in damaged::<OsdDump>(&text) {
        assert_eq!(down(&dump), whole, "{damage}");
    }
}

/// Whichever of the four answers is damaged, a no does not become a yes.
#[rstest]
#[case("healthy")]
#[case("down1")]
#[case("raised")]
#[case("recovering")]
#[case("remapped")]
fn damaged_answer_lets_nothing_stop_that_may_not(#[case] scenario: &str) {
    let of = |what: &str| text(&format!("16.2.15/six-osds/{scenario}-{what}.json"));
    let tree: OsdTree = read(&text("16.2.15/six-osds/osd-tree.json"));
    let (groups, degraded, map) = (of("pgs-brief"), of("pg-ls-degraded"), of("osd-dump"));
    let report = || PgReport::new(read(&groups), read(&degraded));
    let whole = || read::<OsdDump>(&map);
    let down: BTreeSet<OsdId> = down(&whole());
    let mut spoilt: Vec<(String, PgReport, OsdDump)> = Vec::new();
    for (damage, groups) in damaged(&groups) {
        spoilt.push((damage, PgReport::new(groups, read(&degraded)), whole()));
    }
    for (damage, degraded) in damaged(&degraded) {
        spoilt.push((damage, PgReport::new(read(&groups), degraded), whole()));
    }
    for (damage, map) in damaged(&map) {
        spoilt.push((damage, report(), map));
    }
    assert!(!spoilt.is_empty());

    let none = BTreeSet::new();
    let may_stop = |ceph: Testimony, own: Testimony| StopAnswer { ceph, own }.may_stop(&none);
    let mut refused = 0;
    for verdict in read::<Vec<Value>>(&of("ok-to-stop")) {
        let asked: BTreeSet<OsdId> = read(&verdict["osds"].to_string());
        let stopped = &asked | &down;
        let own =
            |report: &PgReport, map: &OsdDump| may_stop(Testimony::default(), report.reckon(map, &tree, &stopped));
        if own(&report(), &whole()) == Some(false) {
            refused += 1;
            for (damage, report, map) in &spoilt {
                assert_ne!(own(report, map), Some(true), "{damage}, {asked:?}");
            }
        }
        let verdict = verdict.to_string();
        let said = |answer: &OkToStop| may_stop(Testimony::of_ceph(answer), Testimony::default());
        if said(&read(&verdict)) == Some(false) {
            for (damage, answer) in damaged(&verdict) {
                assert_ne!(said(&answer), Some(true), "{damage}, {asked:?}");
            }
        }
    }
    assert_ne!(refused, 0);
}
