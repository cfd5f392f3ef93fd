//! The page of `ui` in a real browser, on a real control plane.

use anyhow::{Context, Result, ensure};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::browser::{self, Browser};
use nodeward_testkit::fleet;
use nodeward_testkit::kubectl::Said;
use nodeward_testkit::proxy::{Fault, Proxy, Rule};
use nodeward_testkit::wait::{self, secs};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::person::{Person, says};
use crate::rights::bind;

/// Windows in which nothing may scroll sideways, and whether the checker looks at them: a laptop, a phone, the laptop's at
/// 200 % and at 400 %.
const WINDOWS: [(u32, u32, bool); 4] = [
    (1280, 800, true),
    (390, 844, true),
    (640, 400, false),
    (320, 256, false),
];

/// Links, buttons and fields that are smaller than what a finger hits.
const SMALL_TARGETS: &str = "return [...document.querySelectorAll('a, button, input, select, summary')]
    .filter((one) => one.checkVisibility() && !one.closest('.skip'))
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0 && (box.height < 23.5 || box.width < 23.5))
    .map(([one, box]) => `${one.outerHTML.slice(0, 120)} ${box.width} x ${box.height}`)";

/// What has the keyboard, in words; an error where nobody could see that.
const FOCUSED: &str = "const one = document.activeElement;
    const shown = one.classList.contains('cursor') ? one.querySelector('.mark') : one;
    const style = getComputedStyle(shown);
    const isSeen = one === document.body || one.id === 'main' || (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && style.visibility === 'visible');
    return isSeen ? `${one.tagName.toLowerCase()} ${one.className || one.id} ${one.getAttribute('aria-label') ?? one.innerText ?? ''}`.trim() : `unseen: ${one.outerHTML.slice(0, 200)}`";

/// Every view.
const VIEWS: [&str; 6] = ["fleet", "queue", "node", "health", "ceph", "log"];

/// What the issue of the day looks like.
const MARKUP: &str = "<img src=x onerror=\"document.title='run'\">";

/// The page, served by `kubectl nodeward ui`.
struct Page {
    browser: Browser,
    address: String,
    command: Said,
}

impl Page {
    /// Opened by this person.
    async fn of(env: &Environment, person: &Person, args: &[&str]) -> Result<Self> {
        let command = person.start(&[&["ui", "--no-open"], args].concat())?;
        let address = wait::until("the address", secs(60), || async {
            let said = command.text();
            let address = said.lines().find(|line| line.starts_with("http://127.0.0.1:"));
            address
                .map(|address| address.trim().to_owned())
                .with_context(|| said.clone())
        })
        .await?;
        let browser = Browser::start(env.plane.dir(), false).await?;
        browser.resize(1280, 800).await?;
        browser.client.goto(&address).await?;
        let page = Self {
            browser,
            address,
            command,
        };
        page.shows("the fleet", &["node"]).await?;
        Ok(page)
    }

    async fn open(&self, view: &str) -> Result<()> {
        let script = format!("location.hash = '#/{view}'");
        self.browser.client.execute(&script, Vec::new()).await?;
        Ok(())
    }

    /// Waits until a person sees these.
    async fn shows(&self, what: &str, parts: &[&str]) -> Result<()> {
        wait::until(format!("{what} in the page"), secs(90), || async {
            says(&self.browser.text().await?, parts)
        })
        .await
    }

    /// Presses a key, as a person does.
    async fn press(&self, key: &str) -> Result<()> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            _ => 40,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if key == "Enter" {
                params["text"] = json!("\r");
            }
            self.browser.command("Input.dispatchKeyEvent", params).await?;
        }
        Ok(())
    }

    /// What has the keyboard.
    async fn focused(&self) -> Result<String> {
        let told = self.browser.client.execute(FOCUSED, Vec::new()).await?;
        let told = told.as_str().context("a text")?;
        ensure!(!told.starts_with("unseen"), "{told}");
        Ok(told.to_owned())
    }

    /// Gives the keyboard to what the selector finds, and waits until it has it.
    async fn focus(&self, selector: &str) -> Result<()> {
        let script = format!(
            "const one = document.querySelector({}); one?.focus(); return one !== null && document.activeElement === one",
            json!(selector)
        );
        self.browser
            .until(&format!("{selector} to have the keyboard"), &script)
            .await
    }

    async fn at(&self, hash: &str) -> Result<()> {
        let script = format!("return decodeURIComponent(location.hash).startsWith({})", json!(hash));
        self.browser.until(&format!("the address {hash}"), &script).await
    }

    async fn counts(&self, selector: &str) -> Result<usize> {
        let script = format!("return document.querySelectorAll({}).length", json!(selector));
        let count = self.browser.client.execute(&script, Vec::new()).await?;
        Ok(usize::try_from(count.as_u64().context("a number")?)?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_shows_three_drains_live() -> Result<()> {
    let env = Environment::new().await?;
    let [first, second, third] = env.workers().await?;
    let nodes = [first.clone(), second.clone(), third.clone()];
    env.add_pinned("db", &nodes).await?;
    let page = Page::of(&env, &env.admin, &[]).await?;
    page.open(&format!("fleet?search={}", env.name)).await?;
    page.shows("each node", &[&first, &second, &third, "Ready"]).await?;

    // Those that are asked for at once queue in no certain order.
    let ask = ["--no-wait", "--fallback", "wait"];
    env.admin.page(&[&["drain", &first], &ask[..]].concat()).await?;
    env.phase(&first, Phase::Drained).await?;
    for node in [&second, &third] {
        // Of a node that is cordoned, the drain waits for the budget, and not for room.
        fleet::cordon(&env.client, node).await?;
        env.admin.page(&[&["drain", node], &ask[..]].concat()).await?;
        env.status_that(node, "to wait for the first", |status| {
            status.blocked_by.iter().any(|blocked| blocked.node.is_some())
        })
        .await?;
    }
    page.shows("the states", &["drained", "waiting"]).await?;
    page.open("queue").await?;
    page.shows("the queue", &["Drained", "Queued", &format!("{}/db", env.name)])
        .await?;
    let choose = format!(
        "[...document.querySelectorAll('.timeline button')].find((one) => one.innerText.includes('{second}')).click()"
    );
    page.browser.client.execute(&choose, Vec::new()).await?;
    page.shows(
        "who waits for whom",
        &["waited for", "1 older drain needs or holds a budget"],
    )
    .await?;

    // All that `why` says of the node, and nothing else.
    page.open(&format!("node/{second}")).await?;
    let why = env.admin.page(&["why", &second]).await?;
    ensure!(why.contains("goes on when"), "{why}");
    page.shows(
        "why it waits",
        &[
            "requesters",
            "goes on when",
            "kubectl nodeward",
            "Budgets that matter here",
        ],
    )
    .await?;

    // The first ends, the second follows; nobody loads the page anew, and the keyboard stays where it is.
    page.open("queue").await?;
    let focus = format!(
        "const one = [...document.querySelectorAll('.timeline button')].find((one) => one.innerText.includes('{third}')); one?.focus(); return document.activeElement === one"
    );
    page.browser.until("the third to have the keyboard", &focus).await?;
    env.admin.page(&["release", &first]).await?;
    env.phase(&second, Phase::Drained).await?;
    let is_gone = format!("return !document.querySelector('.timeline')?.innerText.includes('{first}')");
    page.browser.until("the first to leave the queue", &is_gone).await?;
    ensure!(page.focused().await?.contains(&third), "{}", page.focused().await?);
    page.open(&format!("node/{second}")).await?;
    page.shows("the next turn", &["Drained", "do the work, then end the drain"])
        .await?;
    for view in VIEWS {
        page.open(view).await?;
        page.shows("the view", &["Nodeward", "Read-only"]).await?;
    }
    page.open("log").await?;
    page.shows("the evictions", &["PodEvicted"]).await?;
    for node in [&second, &third] {
        env.admin.page(&["release", node]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_tenants_stays_text() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    env.add_pinned("db", std::slice::from_ref(&node)).await?;
    let hold = ["hold", "db", "-n", &env.name, "--reason", MARKUP, "--for", "1h"];
    env.admin.page(&hold).await?;
    env.admin
        .page(&["drain", &node, "--no-wait", "--purpose", MARKUP])
        .await?;
    env.status_that(&node, "to wait for the owner", |status| !status.blocked_by.is_empty())
        .await?;
    let file = env.plane.dir().join(format!("{}.html", env.name));
    let file = file.to_str().context("a path")?;
    env.admin.page(&["ui", "--export", file]).await?;
    let page = Page::of(&env, &env.admin, &[]).await?;
    for address in [page.address.clone(), format!("file://{file}")] {
        page.browser.client.goto(&address).await?;
        for view in ["queue", &format!("node/{node}")] {
            page.open(view).await?;
            if view == "queue" {
                let choose = format!(
                    "[...document.querySelectorAll('.timeline button')].find((one) => one.innerText.includes('{node}'))?.click()"
                );
                page.shows("the queue", &[&node]).await?;
                page.browser.client.execute(&choose, Vec::new()).await?;
            }
            page.shows("the owner's reason", &[MARKUP]).await?;
            assert_eq!(page.counts("img").await?, 0, "{view}");
        }
        assert_ne!(page.browser.client.title().await?, "run");
    }
    env.admin.page(&["release", &node]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn page_tells_its_age_while_the_api_is_away() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let proxy = Proxy::start(env.plane).await?;
    let far = Person::through(env.plane, &proxy)?;
    let page = Page::of(&env, &far, &[]).await?;
    page.open(&format!("fleet?search={node}")).await?;
    page.shows("the node", &[&node]).await?;
    proxy.inject(Rule::new(Fault::BrokenConnection));
    proxy.drop_watches();
    page.shows("the age of what is shown", &["Old:", "ago", "tried again by itself"])
        .await?;
    // What changes each second is read out to nobody.
    let ages = "[aria-live] time, [role=status] time, [role=alert] time";
    assert_eq!(page.counts(ages).await?, 0);
    proxy.heal();
    page.browser
        .until("the banner to go", "return !document.body.innerText.includes('Old:')")
        .await?;
    fleet::cordon(&env.client, &node).await?;
    page.shows("what happened since", &["cordoned"]).await?;
    page.command.process().kill();
    page.shows(
        "that the plugin is away",
        &["Old:", "the connection to kubectl nodeward ui is lost"],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn page_only_gets_lists_and_watches() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    env.add_pinned("db", std::slice::from_ref(&node)).await?;
    // One who may do anything, evict pods among it, and whose requests are in the audit log.
    let name = format!("{}-root", env.name);
    let person = Person::named(env.plane, &name, "system:serviceaccounts", &env.name)?;
    bind(&env, "cluster-admin", &name, None).await?;
    let mark = env.plane.audit().mark()?;
    let page = Page::of(&env, &person, &[]).await?;
    page.open(&format!("node/{node}")).await?;
    page.shows(
        "the node's pods",
        &["to leave", "nobody: by the statuses of their budgets"],
    )
    .await?;
    let asked = env.plane.audit().since(mark)?.only(|request| request.user == name);
    ensure!(asked.count() > 10, "{:?}", asked.by_verb_and_resource());
    let writes = asked.writes().by_verb_and_resource();
    // Who asks: what `kubectl auth whoami` asks for.
    let writes: Vec<&String> = writes.keys().collect();
    assert_eq!(writes, ["create selfsubjectreviews"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keyboard_reaches_and_opens_every_node() -> Result<()> {
    let env = Environment::new().await?;
    let file = env.plane.dir().join(format!("{}.json", env.name));
    std::fs::write(&file, snapshot(300).to_string())?;
    let page = Page::of(&env, &env.admin, &["--from", file.to_str().context("a path")?]).await?;
    page.press("Tab").await?;
    ensure!(page.focused().await?.contains("To the content"));
    page.press("Enter").await?;
    page.browser
        .until(
            "the content to have the keyboard",
            "return document.activeElement.id === 'main'",
        )
        .await?;
    // Every stop can be seen, and cells and table are one each.
    let mut stops = Vec::new();
    for _ in 0..80 {
        page.press("Tab").await?;
        stops.push(page.focused().await?);
        if stops.last().is_some_and(|stop| stop.starts_with("body")) {
            break;
        }
    }
    for once in ["div cursor", "div rows"] {
        let found = stops.iter().filter(|stop| stop.starts_with(once)).count();
        assert_eq!(found, 1, "{once}: {stops:#?}");
    }
    ensure!(stops.len() < 80, "{stops:#?}");
    for (selector, keys) in [
        (".cursor", ["End", "ArrowUp", "ArrowLeft"]),
        (".rows", ["End", "ArrowUp", "ArrowUp"]),
    ] {
        page.open("fleet").await?;
        page.focus(selector).await?;
        for key in keys {
            page.press(key).await?;
        }
        page.press("Enter").await?;
        page.at("#/node/ip-10-0-").await?;
    }
    // One stop among all drains.
    page.open("queue").await?;
    page.browser
        .until(
            "one stop",
            "return document.querySelectorAll('.timeline button[tabindex=\"0\"]').length === 1",
        )
        .await?;
    page.focus(".timeline button[tabindex=\"0\"]").await?;
    let before = page.focused().await?;
    page.press("ArrowDown").await?;
    assert_ne!(page.focused().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_named_in_the_page() -> Result<()> {
    let env = Environment::new().await?;
    let name = format!("{}-reader", env.name);
    let reader = Person::named(env.plane, &name, "people", &env.name)?;
    bind(&env, "nodeward-view", &name, None).await?;
    let page = Page::of(&env, &reader, &[]).await?;
    page.browser
        .client
        .execute("document.querySelector('.unread').open = true", Vec::new())
        .await?;
    page.shows("what is missing", &["not shown", &format!("{name} may not")])
        .await?;
    wait::until("the terminal to say so", secs(60), || async {
        says(&page.command.text(), &["Cannot tell:", "may not"])
    })
    .await
}

/// A kept moment of so many nodes, some of each state.
fn snapshot(count: usize) -> Value {
    let states = [
        "Ready",
        "Ready",
        "Ready",
        "Cordoned",
        "Draining",
        "Waiting",
        "Drained",
        "Recovering",
        "Blocked",
        "Unhealthy",
        "Remediating",
        "NotReady",
    ];
    let nodes = (0..count).map(|index| {
        let state = states[(index * 7 + index / 13) % states.len()];
        let severity = match state {
            "Blocked" if index % 3 == 0 => "NeedsPerson",
            "NotReady" => "NeedsPerson",
            "Blocked" | "Unhealthy" | "Remediating" => "Acts",
            "Ready" | "Cordoned" => "Fine",
            _ => "Waits",
        };
        let why = (severity != "Fine").then(|| format!("shop/database-{index} is covered by a budget that allows no disruption (PDB shop/database)"));
        let commands = ["NeedsPerson", "Acts"].contains(&severity).then(|| json!([{ "label": "show what it waits for", "command": format!("kubectl nodeward why ip-10-0-{index}.example") }]));
        let (pool, zone) = (["workers", "gpu", "spot"][index % 3], ["eu-1a", "eu-1b", "eu-1c"][index / 7 % 3]);
        let node = json!({
            "state": state, "ready": state != "NotReady", "cordoned": severity != "Fine", "severity": severity, "since": "2026-01-01T10:10:00Z",
            "groups": { "pool": pool, "zone": zone },
            "why": why, "commands": commands.unwrap_or(json!([])),
        });
        (format!("ip-10-0-{index}.example"), node)
    });
    let drains = (0..40.min(count)).map(|index| {
        let node = format!("ip-10-0-{index}.example");
        let drain = json!({
            "node": node, "phase": "Queued", "word": "Queued", "ticket": index + 1, "requesters": ["alice"], "evict": "Nodeward",
            "fallback": "Wait", "startedAt": "2026-01-01T10:10:00Z", "turn": "no older drain comes first", "commands": [],
        });
        (node, drain)
    });
    let drains: serde_json::Map<_, _> = drains.collect();
    json!({ "format": 3, "nodeViews": {}, "state": {
        "at": "2026-01-01T10:30:00Z", "source": { "cluster": "lab", "version": "0.1.0", "snapshot": "2026-01-01T10:30:00Z" },
        "components": [{ "name": "drain-lock", "state": "Leading", "namespace": "nodeward-system", "text": "drain-lock in nodeward-system: works", "style": "Good" }],
        "groupings": [{ "name": "pool", "label": "node pool" }, { "name": "zone", "label": "zone" }],
        "nodes": nodes.collect::<serde_json::Map<_, _>>(), "drains": drains, "budgets": {}, "nodeGroups": {}, "healthChecks": {}, "cephClusters": {},
        "log": {}, "unread": [],
    } })
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_a_large_fleet_is_shown_again() -> Result<()> {
    let env = Environment::new().await?;
    let file = env.plane.dir().join(format!("{}.json", env.name));
    std::fs::write(&file, snapshot(15_000).to_string())?;
    let file = file.to_str().context("a path")?;
    let page = Page::of(&env, &env.admin, &["--from", file]).await?;
    page.shows("the fleet", &["15000 nodes", "A kept moment", "workers 5000"])
        .await?;
    let rows = "return document.querySelector('.rows').getAttribute('aria-rowcount') === '15001' && document.querySelectorAll('.rows .row').length < 100";
    page.browser.until("the table to hold few rows", rows).await?;
    // The end of the table is reached, and a search finds one of all.
    let script = "const rows = document.querySelector('.rows'); rows.scrollTop = rows.scrollHeight;";
    page.browser.client.execute(script, Vec::new()).await?;
    page.browser.until("the last row", "return [...document.querySelectorAll('.rows .row')].some((row) => row.getAttribute('aria-rowindex') === '15001')").await?;
    page.open("fleet?search=ip-10-0-14999").await?;
    page.shows("the one node", &["ip-10-0-14999.example"]).await?;
    let names = "return document.querySelector('.rows').getAttribute('aria-rowcount') === '2'";
    page.browser.until("the table of one", names).await
}

#[tokio::test(flavor = "multi_thread")]
async fn accessibility_checker_finds_nothing() -> Result<()> {
    let env = Environment::new().await?;
    let [first, second] = env.workers().await?;
    env.add_pinned("db", &[first.clone(), second.clone()]).await?;
    let ask = ["--no-wait", "--fallback", "wait"];
    env.admin.page(&[&["drain", &first], &ask[..]].concat()).await?;
    env.phase(&first, Phase::Drained).await?;
    env.admin.page(&[&["drain", &second], &ask[..]].concat()).await?;
    let axe = browser::axe().await?;
    // A page with the checker in it: the served one lets no other script in.
    let file = env.plane.dir().join(format!("{}.html", env.name));
    let path = file.to_str().context("a path")?;
    env.admin.page(&["ui", "--export", path]).await?;
    for wants_dark in [false, true] {
        let browser = Browser::start(env.plane.dir(), wants_dark).await?;
        for (width, height, is_checked) in WINDOWS {
            browser.resize(width, height).await?;
            browser.client.goto(&format!("file://{path}")).await?;
            browser.client.execute(&axe, Vec::new()).await?;
            for view in ["fleet", "queue", &format!("node/{second}"), "health", "ceph", "log"] {
                browser
                    .client
                    .execute(&format!("location.hash = '#/{view}'"), Vec::new())
                    .await?;
                browser
                    .until("the view", "return document.querySelector('main h2') !== null")
                    .await?;
                let small = browser.client.execute(SMALL_TARGETS, Vec::new()).await?;
                assert_eq!(small, json!([]), "{view} at {width} wide");
                let moving = browser
                    .client
                    .execute("return document.getAnimations().length", Vec::new())
                    .await?;
                assert_eq!(moving, json!(0), "{view}");
                let check = "const done = arguments[arguments.length - 1]; axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] }).then((found) => done(found.violations.map((one) => one.id + ': ' + one.nodes.map((node) => node.html + ' ' + node.failureSummary).join('; '))));";
                let found = if is_checked {
                    browser.client.execute_async(check, Vec::new()).await?
                } else {
                    json!([])
                };
                assert_eq!(found, json!([]), "{view} at {width} wide, dark: {wants_dark}");
                let fits = browser
                    .client
                    .execute(
                        "return document.documentElement.scrollWidth <= innerWidth + 1",
                        Vec::new(),
                    )
                    .await?;
                assert_eq!(fits, json!(true), "{view} at {width} wide scrolls sideways");
            }
        }
    }
    for node in [&first, &second] {
        env.admin.page(&["release", node]).await?;
    }
    Ok(())
}
