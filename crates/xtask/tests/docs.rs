//! What the documentation says must be what the code does: its words, its examples, its links.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::{
    ActReason, BlockerReason, CephCondition, CephReason, DisabledReason, DrainReason, GateReason, HealthEvent,
    HealthReason, LockReason, SurgeObstacle, SurgeOutcome,
};
use nodeward_core::drain::{DrainDeadlines, NodeDrainView};
use nodeward_testkit::process::Process;
use nodeward_testkit::{debian, kubernetes, ports};
use regex::Regex;
use rstest::rstest;

/// An operator, as far as its pages speak of it.
#[derive(Debug, Clone, Copy)]
enum Operator {
    DrainKeeper,
    DrainLock,
    HealthCheck,
    CephPdb,
}

impl Operator {
    fn name(self) -> &'static str {
        match self {
            Self::DrainKeeper => "drain-keeper",
            Self::DrainLock => "drain-lock",
            Self::HealthCheck => "health-check",
            Self::CephPdb => "ceph-pdb",
        }
    }

    fn page(self, name: &str) -> String {
        read(&root().join("docs").join(self.name()).join(name))
    }

    /// What a configuration file comes to, or why it is refused.
    fn policy(self, text: &str) -> Result<String, String> {
        match self {
            Self::DrainKeeper => drain_keeper::settings::Settings::parse(text)
                .map(|settings| format!("{:#?}", settings.policy))
                .map_err(|error| error.to_string()),
            Self::DrainLock => drain_lock::settings::Settings::parse(text)
                .map(|settings| format!("{:#?}", settings.policy))
                .map_err(|error| error.to_string()),
            Self::HealthCheck => health_check::settings::Settings::parse_with(text, None)
                .map(|settings| format!("{:#?}", settings.policy))
                .map_err(|error| error.to_string()),
            Self::CephPdb => ceph_pdb::settings::Settings::parse(text)
                .map(|settings| format!("{:#?}", settings.policy))
                .map_err(|error| error.to_string()),
        }
    }

    fn reasons(self) -> Vec<&'static str> {
        match self {
            Self::DrainKeeper => [
                BlockerReason::ALL
                    .iter()
                    .map(|reason| reason.as_str())
                    .collect::<Vec<_>>(),
                GateReason::ALL.iter().map(|reason| reason.as_str()).collect(),
                ActReason::ALL.iter().map(|reason| reason.as_str()).collect(),
                SurgeOutcome::ALL.iter().map(|reason| reason.as_str()).collect(),
                DrainReason::ALL.iter().map(|reason| reason.as_str()).collect(),
            ]
            .concat(),
            Self::DrainLock => LockReason::ALL.iter().map(|reason| reason.as_str()).collect(),
            Self::HealthCheck => [
                DisabledReason::ALL
                    .iter()
                    .map(|reason| reason.as_str())
                    .collect::<Vec<_>>(),
                HealthEvent::ALL.iter().map(|reason| reason.as_str()).collect(),
                HealthReason::ALL.iter().map(|reason| reason.as_str()).collect(),
            ]
            .concat(),
            Self::CephPdb => {
                let reasons = CephReason::ALL.iter().map(|reason| reason.as_str());
                let conditions = CephCondition::ALL.iter().map(|condition| condition.as_str());
                reasons.chain(conditions).collect()
            }
        }
    }

    /// Metrics under names of another system.
    fn foreign_metrics(self) -> &'static [&'static str] {
        match self {
            Self::DrainKeeper => &["upgradeoperator_node_drain_timeout"],
            Self::DrainLock | Self::CephPdb => &[],
            Self::HealthCheck => &[
                "nodehealthcheck_ongoing_remediation",
                "nodehealthcheck_old_remediation_cr",
                "nodehealthcheck_unhealthy_node_duration_seconds",
            ],
        }
    }

    /// The endpoints that it serves over TLS: each has metrics of its certificate under its name.
    fn tls_endpoints(self) -> &'static [&'static str] {
        match self {
            Self::DrainKeeper | Self::CephPdb => &[],
            Self::DrainLock => &["webhook", "fleetlock"],
            Self::HealthCheck => &["webhook"],
        }
    }
}

#[rstest]
fn reasons_and_their_sections_match(
    #[values(Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck, Operator::CephPdb)] operator: Operator,
) {
    let page = operator.page("reasons.md");
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let once: BTreeSet<&str> = sections.iter().copied().collect();
    assert_eq!(once, operator.reasons().into_iter().collect());
    assert_eq!(once.len(), sections.len(), "a reason has two sections");
}

#[test]
fn obstacles_of_surges_and_their_table_match() {
    let page = Operator::DrainKeeper.page("surge.md");
    let table = page.split("## What happens").next().unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let obstacles: Vec<&str> = SurgeObstacle::ALL.iter().map(|obstacle| obstacle.as_str()).collect();
    assert_eq!(rows.collect::<Vec<_>>(), obstacles);
}

#[rstest]
fn registered_metrics_and_their_page_match(
    #[values(Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck, Operator::CephPdb)] operator: Operator,
) {
    let own_source = format!("crates/{}/src", operator.name());
    let foreign = operator.foreign_metrics().iter().map(ToString::to_string);
    let mut registered: BTreeSet<String> = foreign.collect();
    for file in files(&root().join("crates"), "rs") {
        let path = file.to_string_lossy().into_owned();
        if path.contains("crates/runtime/src") || path.contains(&own_source) {
            registered.extend(names_registered_in(&read(&file), operator));
        }
    }
    let page = operator.page("metrics.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .filter(|name| name.contains('_'))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, registered);
}

/// Counters, which the encoder gives a suffix.
const COUNTERS: [&str; 21] = [
    "actions",
    "bad_reviews",
    "budget_overrides",
    "cache_lists",
    "ceph_commands",
    "config_reloads",
    "drain_events",
    "drain_requests",
    "drainer_reviews",
    "events",
    "eviction_reviews",
    "evictions",
    "fleetlock_answers",
    "ledger_writes",
    "ledger_written_bytes",
    "node_health_check_reviews",
    "opt_outs_ignored",
    "review_unknown_fields",
    "reviews_failed_open",
    "surges",
    "watch_failures",
];

/// Names as they are exported.
fn names_registered_in(source: &str, operator: Operator) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let prefix = format!("nodeward_{}_", operator.name().replace('-', "_"));
    let mut names = Vec::new();
    let calls = r#"\b(?:registry|metrics)\.(?:register|register_as|register_seconds|seconds_since|seconds_until)\(\s*(format!\()?("?)([^",)]+)"#;
    for call in Regex::new(calls).unwrap().captures_iter(code) {
        let (is_format, is_literal, name) = (call.get(1).is_some(), !call[2].is_empty(), &call[3]);
        let suffix = match name {
            "build" => "_info",
            counter if COUNTERS.contains(&counter) => "_total",
            _ => "",
        };
        match (is_format, is_literal) {
            (true, true) => {
                let of_endpoint = |endpoint: &&str| format!("{prefix}{}", name.replace("{name}", endpoint));
                names.extend(operator.tls_endpoints().iter().map(of_endpoint));
            }
            (false, true) if operator.foreign_metrics().contains(&name) => {}
            (false, true) => names.push(format!("{prefix}{name}{suffix}")),
            // The one call through which the others go.
            (false, false) if name == "name" => {}
            _ => panic!("a metric's name stands where it is registered: {name}"),
        }
    }
    for call in code.split("encode_descriptor(").skip(1) {
        let Some(name) = call.split('"').nth(1) else { continue };
        // Every Prometheus client has its process's metrics under these names.
        let own = if name.starts_with("process_") {
            ""
        } else {
            prefix.as_str()
        };
        let unit = if call.contains("Unit::Bytes") { "_bytes" } else { "" };
        names.push(format!("{own}{name}{unit}"));
    }
    names
}

#[rstest]
#[case(Operator::DrainKeeper, 6)]
#[case(Operator::DrainLock, 4)]
#[case(Operator::HealthCheck, 4)]
#[case(Operator::CephPdb, 3)]
fn every_example_of_a_configuration_is_accepted(#[case] operator: Operator, #[case] at_least: usize) {
    let mut tried = 0;
    for page in pages() {
        for example in examples(&read(&page), &format!("# {} configuration", operator.name())) {
            tried += 1;
            if let Err(error) = operator.policy(&example) {
                panic!("{}: {error}\n{example}", page.display());
            }
        }
    }
    assert!(tried >= at_least, "only {tried} examples were found");
}

#[rstest]
fn the_documented_defaults_are_the_defaults(
    #[values(Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck, Operator::CephPdb)] operator: Operator,
) {
    let none_given = operator.policy("").unwrap();
    assert_eq!(operator.policy(&defaults(operator)), Ok(none_given));
}

#[rstest]
fn every_field_of_the_configuration_is_on_its_page(
    #[values(Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck, Operator::CephPdb)] operator: Operator,
) {
    let page = operator.page("configuration.md");
    let documented: serde_yaml::Value = serde_yaml::from_str(&defaults(operator)).unwrap();
    let fields_of_blocks = documented
        .as_mapping()
        .unwrap()
        .iter()
        .filter(|(_, value)| value.is_mapping())
        .flat_map(|(block, _)| fields(operator, block.as_str().unwrap()));
    let missing: Vec<String> = fields(operator, "")
        .into_iter()
        .chain(fields_of_blocks)
        .filter(|field| !page.contains(field))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The fields of a block of the configuration, as the refusal of an unknown one names them; none of a block that takes any.
fn fields(operator: Operator, block: &str) -> Vec<String> {
    const UNKNOWN: &str = "noSuchField: 1";
    let text = if block.is_empty() {
        UNKNOWN.to_owned()
    } else {
        format!("{block}: {{ {UNKNOWN} }}")
    };
    let Err(refused) = operator.policy(&text) else {
        return Vec::new();
    };
    let (_, expected) = refused.split_once("expected").unwrap_or_default();
    let fields: Vec<String> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(!fields.is_empty() || block.ends_with("Selector"), "{block}: {refused}");
    fields
}

fn defaults(operator: Operator) -> String {
    let first_line = format!("# {} configuration: every field, with its default", operator.name());
    examples(&operator.page("configuration.md"), &first_line).remove(0)
}

#[test]
fn every_link_inside_the_repository_leads_somewhere() {
    let docs = root().join("docs").canonicalize().unwrap();
    let mut broken = Vec::new();
    for page in pages() {
        for link in read(&page)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (file, anchor) = link
                .split_once('#')
                .map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = match (file.strip_prefix(REPOSITORY), file) {
                (Some(path), _) => root().join(path),
                (None, _) if link.is_empty() || link.contains("://") => continue,
                (None, "") => page.clone(),
                (None, file) => page.parent().unwrap().join(file),
            };
            let found = target.exists() && anchor.is_none_or(|anchor| anchors(&read(&target)).contains(anchor));
            // The book holds nothing but the pages, and its readers would find no file beside them.
            let leaves_the_book = page.starts_with(&docs)
                && !file.contains("://")
                && target.canonicalize().is_ok_and(|target| !target.starts_with(&docs));
            if !found || leaves_the_book {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Where files of this repository are that are no page of the book.
const REPOSITORY: &str = "https://github.com/nodeward/nodeward/blob/main/";

#[rstest]
#[case::as_github_and_mdbook_do("# A `b` c: d_e-F?\n## Twice\n## Twice\n", &["a-b-c-d_e-f", "twice", "twice-1"])]
#[case::a_comment_in_code_is_no_heading("```sh\n# not one\n```\n# One\n", &["one"])]
fn anchors_are_those_of_headings(#[case] page: &str, #[case] expected: &[&str]) {
    assert_eq!(anchors(page), expected.iter().map(ToString::to_string).collect());
}

#[rstest]
fn emergency_stop_opens_the_operators_page(
    #[values(Operator::DrainKeeper, Operator::DrainLock, Operator::HealthCheck, Operator::CephPdb)] operator: Operator,
) {
    let page = operator.page("index.md");
    assert_eq!(page.lines().nth(2), Some("## Emergency stop"));
    let pause = format!("kubectl nodeward pause {} --reason ", operator.name());
    let without_plugin = format!("create configmap nodeward-pause --from-literal={}=", operator.name());
    let stop = format!(
        "kubectl -n nodeward-system scale deployment/nodeward-{} --replicas=0",
        operator.name()
    );
    for command in [pause, without_plugin, stop] {
        assert!(page.contains(&command), "{command}");
    }
    assert!(page.contains("What stays:"));
}

/// The proxy that adds FleetLock's token, in nginx: only the paths, the address and the server's TLS are the test's own.
#[test]
fn documented_proxy_adds_token_and_keeps_window() {
    let nginx = debian::ensure_unpacked("nginx", &["nginx-light"]).unwrap();
    let page = Operator::DrainLock.page("migrate-from-lock-managers.md");
    let (_, block) = page.split_once("```nginx\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (upstream, port) = (server.local_addr().unwrap(), ports::free().unwrap());
    let temporary =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {};", path(name)));
    let own = format!("http {{ access_log off; {}", temporary.concat());
    let mut config = block.to_owned();
    for (documented, here) in [
        ("http {", own.as_str()),
        ("https://fleetlock.example.com:30944", &format!("http://{upstream}")),
        ("127.0.0.1:9494", &format!("127.0.0.1:{port}")),
        ("/etc/fleetlock/closed", &path("closed")),
        ("/etc/fleetlock/token.conf", &path("token.conf")),
    ] {
        assert!(config.contains(documented), "{documented}");
        config = config.replace(documented, here);
    }
    std::fs::write(path("nginx.conf"), config).unwrap();
    std::fs::write(path("token.conf"), "proxy_set_header Authorization \"Bearer abc\";\n").unwrap();
    let process = Process::new("nginx", nginx.join("usr/sbin/nginx"), directory.path().join("log")).args([
        "-e".to_owned(),
        "stderr".to_owned(),
        "-p".to_owned(),
        path(""),
        "-c".to_owned(),
        path("nginx.conf"),
        "-g".to_owned(),
        format!("daemon off; master_process off; pid {};", path("pid")),
    ]);
    process.start().unwrap();
    let ask = |request: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut machine = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(connected) => break connected,
                Err(error) => assert!(Instant::now() < deadline, "{error}: {}", process.log_tail(20)),
            }
        };
        let body = r#"{"client_params":{"id":"a","group":"default"}}"#;
        let length = body.len();
        let head =
            format!("POST /v1/{request} HTTP/1.0\r\nfleet-lock-protocol: true\r\nContent-Length: {length}\r\n\r\n");
        machine.write_all((head + body).as_bytes()).unwrap();
        machine.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = String::new();
        machine.read_to_string(&mut answer).unwrap();
        answer
    };
    // What arrives at the server, which answers 200.
    let served = |request: &str| {
        let server = server.try_clone().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut arrived = String::new();
            let mut part = [0; 4096];
            while !arrived.contains("default") {
                let read = connection.read(&mut part).unwrap();
                assert!(read > 0, "{arrived}");
                arrived.push_str(std::str::from_utf8(&part[..read]).unwrap());
            }
            connection
                .write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
            arrived
        });
        let answer = ask(request);
        assert!(answer.contains(" 200 OK"), "{answer}");
        serving.join().unwrap()
    };
    let request = served("pre-reboot");
    assert!(request.starts_with("POST /v1/pre-reboot "), "{request}");
    for header in ["Authorization: Bearer abc\r\n", "fleet-lock-protocol: true\r\n"] {
        assert!(request.contains(header), "{request}");
    }
    std::fs::write(path("closed"), "").unwrap();
    let refused = ask("pre-reboot");
    assert!(
        refused.contains(" 423 ") && refused.contains("\"kind\":\"window_closed\""),
        "{refused}"
    );
    assert!(served("steady-state").contains("Authorization: Bearer abc\r\n"));
}

/// A promise carries a mark with the tests that hold it: `<!-- test: CRATE::NAME -->`, in its paragraph or at its point. A promise is
/// each point below the heading, or there each list, and each paragraph with a word that promises.
#[rstest]
#[case::readme("README.md", "## Promises", "\n- ", "")]
#[case::security(
    "SECURITY.md",
    "## What they are allowed to do",
    "\n\n",
    r"(?m)^- |\b(alone|except|never|no|none|nothing|only)\b"
)]
fn promises_name_tests_that_exist(
    #[case] page: &str,
    #[case] heading: &str,
    #[case] between: &str,
    #[case] promising: &str,
) {
    let page = read(&root().join(page));
    let (_, section) = page.split_once(&format!("{heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let promising = Regex::new(promising).unwrap();
    let promises = section.split(between).map(str::trim);
    let promises: Vec<&str> = promises
        .filter(|promise| !promise.is_empty() && promising.is_match(promise))
        .collect();
    assert!(promises.len() >= 7, "{}", promises.len());
    for promise in promises {
        assert!(promise.contains("<!-- test: "), "no mark: {promise}");
    }
}

/// Wherever a mark stands.
#[test]
fn tests_that_marks_name_exist() {
    let mark = Regex::new("<!-- test: ([^>]*) -->").unwrap();
    let (mut found, mut missing) = (0, Vec::new());
    for page in pages() {
        for named in mark.captures_iter(&read(&page)) {
            for name in named[1].split_whitespace() {
                found += 1;
                let (of, name) = name.split_once("::").unwrap_or_else(|| panic!("no crate: {name}"));
                let sources = root().join("crates").join(of);
                let has = |file: &PathBuf| has_test(&read(file), name);
                if !sources.is_dir() || !files(&sources, "rs").iter().any(has) {
                    missing.push(format!("{}: {of}::{name}", page.display()));
                }
            }
        }
    }
    assert!(found >= 20, "{found}");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Whether there is a function of this name below an attribute of tests.
fn has_test(source: &str, name: &str) -> bool {
    let function = Regex::new(&format!(r"\bfn {name}\b")).unwrap();
    let end = Regex::new(r"\n *\}\n").unwrap();
    let attribute = Regex::new(r"#\[(tokio::test|test|rstest)\b").unwrap();
    function.find_iter(source).any(|found| {
        let before = &source[..found.start()];
        let begins = end.find_iter(before).last().map_or(0, |end| end.end());
        attribute.is_match(&before[begins..])
    })
}

/// The first page is read to its end. Marks are not shown.
#[test]
fn readme_is_short() {
    let page = read(&root().join("README.md"));
    let lines = page.lines().filter(|line| !line.contains("<!-- test: ")).count();
    assert!(lines <= 90, "{lines} lines");
}

/// What is said to be tested is tested, by a test of that name.
#[test]
fn tests_on_the_page_of_ceph_exist() {
    let page = read(&root().join("docs/ceph-pdb-internals.md"));
    let (_, tested) = page.split_once("## The tests").unwrap();
    let crates = ["ceph-pdb", "rados"].map(|name| root().join("crates").join(name));
    let sources: String = crates
        .iter()
        .flat_map(|path| files(path, "rs"))
        .map(|file| read(&file))
        .collect();
    let name = Regex::new("`([a-z0-9]+(?:_[a-z0-9]+){2,})`").unwrap();
    let rows = tested.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<&str> = rows
        .filter(|row| !row.contains("---") && !row.contains("| tested |"))
        .collect();
    assert!(rows.len() > 25, "{}", rows.len());
    for row in rows {
        let says_how = ["real", "fake", "recorded"].iter().any(|how| row.contains(how));
        assert!(says_how, "{row}");
        for found in name.captures_iter(row) {
            assert!(sources.contains(&format!("fn {}(", &found[1])), "{}", &found[1]);
        }
    }
}

#[test]
fn compatibility_names_the_pinned_versions() {
    let (tested, oldest) = (kubernetes::DEFAULT, kubernetes::MINORS[0]);
    let chart = read(&root().join("charts/nodeward/Chart.yaml"));
    assert!(chart.contains(&format!("kubeVersion: \">={oldest}.")), "{oldest}");
    let page = read(&root().join("docs/compatibility.md"));
    let row = page.lines().find(|line| line.starts_with("| Kubernetes |")).unwrap();
    assert!(row.contains(tested), "{tested}: {row}");
    assert!(row.contains(&format!("| {oldest} and later |")), "{oldest}: {row}");
    let readme = read(&root().join("README.md"));
    for needed in [
        format!("(Kubernetes {tested})"),
        format!("Kubernetes {oldest} or later"),
    ] {
        assert!(readme.contains(&needed), "README.md: {needed}");
    }
}

/// What other operators do by the phase of a drain, in the words of the page.
#[test]
fn phases_and_their_page_match() {
    let page = Operator::DrainLock.page("phases.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| none"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let phases = Phase::ALL.iter().map(|phase| Some(*phase));
    let mut expected = Vec::new();
    for phase in [None].into_iter().chain(phases) {
        let drain = |granted| NodeDrainView {
            node: "n1".into(),
            node_uid: None,
            phase,
            granted,
            deadline: None,
            deadlines: DrainDeadlines::default(),
            dry_run: false,
            called_off: false,
        };
        let (with, without) = (drain(true), drain(false));
        let keeper = match (
            with.waits_for_turn(),
            with.is_under_way_on(&"u1".into()),
            with.marks_drain(),
        ) {
            (true, false, true) => "waits, its clock suspended",
            (false, true, true) => "forces pods, each by its claim",
            (false, true, false) => "forces pods, each by its claim, if another mark tells of a drain",
            (false, false, false) => "disregards it",
            other => panic!("{phase:?}: {other:?}"),
        };
        let check = match (
            with.is_maintenance(Timestamp::now()),
            without.is_maintenance(Timestamp::now()),
        ) {
            (true, true) => "leaves it alone",
            (true, false) if phase.is_some() => "leaves it alone while `Granted` is `True`",
            // Without a phase there is no status yet, and no condition.
            _ => "remediates",
        };
        let ceph = if with.is_active() { "draining" } else { "in use" };
        let name = phase.map_or("none".to_owned(), |phase| format!("`{phase}`"));
        expected.push([name, keeper.to_owned(), check.to_owned(), ceph.to_owned()]);
    }
    let documented: Vec<[String; 4]> = rows
        .iter()
        .map(|row| [0, 2, 3, 4].map(|cell| row[cell].to_owned()))
        .collect();
    assert_eq!(documented, expected);
}

/// Files, tests and constants of the change that is walked through.
#[test]
fn first_change_names_what_exists() {
    let page = read(&root().join("CONTRIBUTING.md"));
    let (_, walk) = page.split_once("## Your first change").unwrap();
    let (walk, _) = walk.split_once("## A change").unwrap();
    let sources: String = files(&root().join("crates"), "rs")
        .iter()
        .map(|file| read(file))
        .collect();
    let code = Regex::new("`([^`\n]+)`").unwrap();
    let mut named = 0;
    for found in code.captures_iter(walk) {
        let word = &found[1];
        if word.starts_with("crates/") || word.starts_with("docs/") {
            assert!(root().join(word).exists(), "{word}");
        } else if word.matches('_').count() > 0 && !word.contains(' ') {
            assert!(sources.contains(word), "{word}");
        } else {
            continue;
        }
        named += 1;
    }
    assert!(named > 6, "{named}");
}

#[test]
fn the_table_of_contents_names_every_page_once() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    for page in files(&docs, "md") {
        let name = page.strip_prefix(&docs).unwrap().to_string_lossy().into_owned();
        let times = summary.matches(&format!("({name})")).count();
        assert_eq!(
            times,
            usize::from(name != "SUMMARY.md"),
            "how often {name} is in SUMMARY.md"
        );
    }
}

#[test]
fn pictures_are_used_and_light() {
    let all: String = pages().iter().map(|page| read(page)).collect();
    let pictures = files(&root().join("docs/images"), "png");
    assert!(!pictures.is_empty());
    for picture in pictures {
        let name = picture.file_name().unwrap().to_string_lossy().into_owned();
        assert!(all.contains(&format!("images/{name})")), "{name} is on no page");
        let bytes = std::fs::metadata(&picture).unwrap().len();
        assert!(bytes < 200_000, "{name} has {bytes} bytes");
    }
}

#[rstest]
fn every_alert_has_a_runbook_and_listing(
    #[values("drain-keeper", "drain-lock", "health-check", "ceph-pdb")] component: &str,
) {
    let rules = read(&root().join(format!("charts/nodeward/templates/{component}/prometheusrule.yaml")));
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let runbooks: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: {{ $rule.runbookBaseUrl }}/"))
        .collect();
    assert!(alerts.len() > 2, "{alerts:?}");
    assert_eq!(alerts.len(), runbooks.len());
    let metrics = read(&root().join(format!("docs/{component}/metrics.md")));
    for (alert, runbook) in alerts.iter().zip(&runbooks) {
        let page = read(&root().join("docs").join(runbook));
        // Alerts that every component has share a page, which lists them.
        let of_component = runbook.strip_prefix(&format!("{component}/"));
        let (is_meant, link) = match of_component {
            Some(own) => (page.lines().next() == Some(&format!("# {alert}")), own.to_owned()),
            None => (page.contains(&format!("`{alert}`")), format!("../{runbook}")),
        };
        assert!(is_meant, "{runbook} does not name {alert}");
        assert!(metrics.contains(&format!("[{alert}]({link})")), "{alert} is not listed");
    }
    let pages: BTreeSet<PathBuf> = files(&root().join(format!("docs/{component}/runbooks")), "md")
        .into_iter()
        .collect();
    let linked: BTreeSet<PathBuf> = runbooks
        .iter()
        .filter(|runbook| runbook.starts_with(component))
        .map(|runbook| root().join("docs").join(runbook))
        .collect();
    assert_eq!(pages, linked, "a runbook is of no alert");
}

/// An alert on a name that nobody exports never fires.
#[rstest]
fn every_metric_in_an_alert_is_on_the_page(
    #[values("drain-keeper", "drain-lock", "health-check", "ceph-pdb")] component: &str,
) {
    let rules = read(&root().join(format!("charts/nodeward/templates/{component}/prometheusrule.yaml")));
    let page = read(&root().join(format!("docs/{component}/metrics.md")));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names: BTreeSet<&str> = rules
        .split(|c: char| !is_name(c))
        .filter(|word| {
            ["nodeward_", "upgradeoperator_", "nodehealthcheck_"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
        })
        .collect();
    assert!(!names.is_empty());
    for name in names {
        // The beginning of a regular expression.
        let shown = if name.ends_with('_') {
            format!("`{name}")
        } else {
            format!("`{name}`")
        };
        assert!(page.contains(&shown), "{name}");
    }
}

/// GitHub's and mdBook's anchors of a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code || !line.starts_with('#') {
            continue;
        }
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone())
            .chain(again)
            .find(|anchor| !found.contains(anchor));
        found.extend(free);
    }
    found
}

/// The YAML blocks whose first line begins like this.
fn examples(page: &str, first_line: &str) -> Vec<String> {
    page.split("```yaml")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.trim_start().starts_with(first_line))
        .map(without_indent)
        .collect()
}

/// A block inside a list is indented as a whole.
fn without_indent(block: &str) -> String {
    let indent = block
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.len() - line.trim_start().len())
        .min();
    let indent = indent.unwrap_or(0);
    block
        .lines()
        .map(|line| line.get(indent..).unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(files(&root().join(".github"), "md"));
    pages.extend(
        [
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "charts/nodeward/README.md",
            "crds/README.md",
            "crates/kubectl-nodeward/ui/README.md",
        ]
        .map(|page| root().join(page)),
    );
    // So that all paths begin alike.
    pages.into_iter().map(|page| page.canonicalize().unwrap()).collect()
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
