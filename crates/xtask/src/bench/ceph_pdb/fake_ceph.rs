//! A Ceph of more OSDs than a machine runs: a program that answers as Ceph does, over the connection of `librados.c`.
//!
//! ceph-pdb does not know the difference: it loads that library in place of librados. Answers have the fields and the size of
//! recorded ones. An OSD is up or down the moment that its pod starts or has ended; placement groups need some seconds to
//! recover. What the real librados costs, in time and in memory, is not in figures with this Ceph.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nodeward_testkit::ceph::CephOptions;
use nodeward_testkit::rook::RookCeph;
use rados::Options;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use crate::bench::figures::count;

const LIBRARY: &str = include_str!("librados.c");

/// As often as OSDs report by default (`mgr_stats_period`).
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// How long placement groups lack copies after all OSDs are back.
const RECOVERY: Duration = Duration::from_secs(3);

/// A monitor sends lines of the log in batches, up to so late.
const LOG_DELAY: Duration = Duration::from_secs(1);

/// Copies of each object, each in another host, and how many it takes to write.
const SIZE: usize = 3;
const MIN_SIZE: usize = 2;

/// Placement groups, all of one pool.
const PGS: usize = 256;
const POOL: usize = 2;

/// An answer of 16.2.15 to each of these.
const OSD_DUMP: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/healthy-osd-dump.json");
const OSD_TREE: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/healthy-osd-tree.json");
const OSD_METADATA: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/osd-metadata.json");
const QUORUM_STATUS: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/quorum-status.json");
const RULES: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/crush-rules.json");
const STATUS: &str = include_str!("../../../../ceph-pdb/recorded/16.2.15/healthy-status.json");

/// Error numbers.
const EBUSY: i32 = -16;
const EINVAL: i32 = -22;

/// Builds the library in place of librados; gives its directory.
pub fn library() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.parent().unwrap_or(Path::new(".")).join("fake-ceph");
    std::fs::create_dir_all(&dir)?;
    let work = tempfile::tempdir_in(&dir)?;
    let (source, library) = (work.path().join("librados.c"), work.path().join("librados.so.2"));
    std::fs::write(&source, LIBRARY)?;
    // Who compiles Rust has it: it links.
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-pthread", "-o"]).arg(&library);
    let output = cc.arg(&source).output().context("run cc")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc: {}: {errors}", output.status);
    std::fs::rename(&library, dir.join("librados.so.2"))?;
    Ok(dir)
}

/// The cluster. It answers until it is dropped.
pub struct FakeCeph {
    admin: Options,
    options: CephOptions,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

struct Shared {
    state: Mutex<State>,
    log: broadcast::Sender<String>,
}

impl FakeCeph {
    /// All OSDs are down until they are started.
    pub async fn start(options: CephOptions) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let admin = Options {
            mon_host: format!("[v2:{}]", listener.local_addr()?),
            user: "client.admin".to_owned(),
            key: "any".to_owned(),
            encrypted: false,
            timeout: Some(Duration::from_secs(10)),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(&options)?),
            log: broadcast::channel(1_000).0,
        });
        let mut server = JoinSet::new();
        server.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            admin,
            options,
            shared,
            _server: server,
        })
    }

    fn set_up(&self, id: usize, is_up: bool) {
        nodeward_testkit::lock(&self.shared.state).set_up(id, is_up);
        let change = if is_up { "boot" } else { "marked itself down" };
        // Nobody may follow it.
        let _ = self.shared.log.send(format!("osd.{id} {change}"));
    }
}

impl RookCeph for FakeCeph {
    fn options(&self) -> &CephOptions {
        &self.options
    }

    fn admin(&self) -> &Options {
        &self.admin
    }

    async fn command(&self, command: Value) -> Result<Value> {
        let answer = nodeward_testkit::lock(&self.shared.state).answer(&command);
        ensure!(answer.code == 0, "{command}: {answer:?}");
        Ok(serde_json::from_str(&answer.output)?)
    }

    async fn add_user(&self, _: &str, _: &[&str]) -> Result<String> {
        Ok(self.admin.key.clone())
    }

    fn osd_runs(&self, id: usize) -> bool {
        nodeward_testkit::lock(&self.shared.state).up_from[id].is_some()
    }

    async fn stop_osd(&self, id: usize) -> Result<()> {
        self.set_up(id, false);
        Ok(())
    }

    fn start_osd(&self, id: usize) -> Result<()> {
        self.set_up(id, true);
        Ok(())
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // It ends when the other side does.
            let _ = serve_one(stream, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_one(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let Some((_, command)) = line.split_once(' ') else {
            return write_log(&mut writer, shared).await;
        };
        let answer = nodeward_testkit::lock(&shared.state).answer(&serde_json::from_str(command)?);
        let Answer { code, output, status } = answer;
        let text = format!("{code} {} {}\n{output}{status}", output.len(), status.len());
        writer.write_all(text.as_bytes()).await?;
    }
    Ok(())
}

async fn write_log(writer: &mut (impl AsyncWriteExt + Unpin), shared: &Shared) -> Result<()> {
    let mut lines = shared.log.subscribe();
    while let Ok(first) = lines.recv().await {
        tokio::time::sleep(LOG_DELAY).await;
        let mut batch = first + "\n";
        while let Ok(line) = lines.try_recv() {
            batch += &(line + "\n");
        }
        writer.write_all(batch.as_bytes()).await?;
    }
    Ok(())
}

#[derive(Debug)]
struct Answer {
    code: i32,
    output: String,
    status: String,
}

impl From<Value> for Answer {
    fn from(output: Value) -> Self {
        Self {
            code: 0,
            output: output.to_string(),
            status: String::new(),
        }
    }
}

struct State {
    options: CephOptions,
    epoch: i64,
    /// By OSD: the epoch in which it came up, unless it is down.
    up_from: Vec<Option<i64>>,
    /// Hosts.
    noout: BTreeSet<String>,
    began: Instant,
    /// When the last OSD came up.
    up_since: Instant,
    recorded: Recorded,
}

/// Answers, or what they are made from.
struct Recorded {
    dump: Value,
    tree: Value,
    metadata: Value,
    quorum: Value,
    rules: Value,
    status: Value,
}

impl State {
    fn new(options: &CephOptions) -> Result<Self> {
        Ok(Self {
            options: options.clone(),
            epoch: 1,
            up_from: vec![None; options.osds()],
            noout: BTreeSet::new(),
            began: Instant::now(),
            up_since: Instant::now(),
            recorded: Recorded {
                dump: serde_json::from_str(OSD_DUMP)?,
                tree: tree(options)?,
                metadata: serde_json::from_str(OSD_METADATA)?,
                quorum: serde_json::from_str(QUORUM_STATUS)?,
                rules: serde_json::from_str(RULES)?,
                status: serde_json::from_str(STATUS)?,
            },
        })
    }

    fn set_up(&mut self, id: usize, is_up: bool) {
        self.epoch += 1;
        self.up_from[id] = is_up.then_some(self.epoch);
        if is_up {
            self.up_since = Instant::now();
        }
    }

    fn down(&self) -> impl Iterator<Item = usize> {
        (0..self.up_from.len()).filter(|osd| self.up_from[*osd].is_none())
    }

    fn answer(&mut self, command: &Value) -> Answer {
        match command["prefix"].as_str().unwrap_or_default() {
            "status" => self.status().into(),
            "osd dump" => self.dump().into(),
            "osd tree" => self.recorded.tree.clone().into(),
            "osd crush rule dump" => self.recorded.rules.clone().into(),
            "osd metadata" => self.metadata().into(),
            "quorum_status" => self.recorded.quorum.clone().into(),
            "fsid" => json!({"fsid": self.recorded.status["fsid"]}).into(),
            "osd last-stat-seq" => self.reports(&command["id"]).into(),
            "osd set-group" => self.set_noout(&command["who"], true),
            "osd unset-group" => self.set_noout(&command["who"], false),
            "pg dump" => self.groups().into(),
            "pg ls" => json!({"pg_ready": true, "pg_stats": self.degraded()}).into(),
            "osd ok-to-stop" => self.ok_to_stop(&command["ids"]),
            other => Answer {
                code: EINVAL,
                output: String::new(),
                status: format!("no command {other:?} here"),
            },
        }
    }

    fn status(&self) -> Value {
        let mut status = self.recorded.status.clone();
        status["osdmap"]["epoch"] = json!(self.epoch);
        let down = self.down().count();
        let is_recovering = down == 0 && self.up_since.elapsed() < RECOVERY;
        let short = if is_recovering {
            1
        } else {
            PGS * SIZE * down / self.up_from.len()
        };
        let state = if is_recovering {
            "active+recovering+degraded"
        } else {
            "active+undersized+degraded"
        };
        let mut states = vec![json!({"state_name": "active+clean", "count": PGS - short.min(PGS)})];
        if short > 0 {
            states.push(json!({"state_name": state, "count": short.min(PGS)}));
        }
        status["pgmap"]["pgs_by_state"] = json!(states);
        status["pgmap"]["num_pgs"] = json!(PGS);
        status
    }

    fn dump(&self) -> Value {
        let mut dump = self.recorded.dump.clone();
        dump["epoch"] = json!(self.epoch);
        dump["osds"] = self
            .up_from
            .iter()
            .enumerate()
            .map(|(id, up_from)| self.osd(id, *up_from))
            .collect();
        for pool in dump["pools"].as_array_mut().into_iter().flatten() {
            // Copies lie in different hosts.
            pool["crush_rule"] = json!(0);
            (pool["size"], pool["min_size"]) = (json!(SIZE), json!(MIN_SIZE));
            pool["pg_num"] = json!(if pool["pool"] == POOL { PGS } else { 0 });
        }
        let flags = self.noout.iter().map(|host| (host.clone(), json!(["noout"])));
        dump["crush_node_flags"] = Value::Object(flags.collect());
        dump
    }

    fn osd(&self, id: usize, up_from: Option<i64>) -> Value {
        let mut osd = self.recorded.dump["osds"][0].clone();
        osd["osd"] = json!(id);
        osd["up"] = json!(i32::from(up_from.is_some()));
        osd["up_from"] = json!(up_from.unwrap_or_default());
        osd["state"] = if up_from.is_some() {
            json!(["exists", "up"])
        } else {
            json!(["exists"])
        };
        osd
    }

    fn metadata(&self) -> Value {
        let of_osd = |id: usize| {
            let mut metadata = self.recorded.metadata[0].clone();
            metadata["id"] = json!(id);
            metadata["hostname"] = json!(self.options.host_of(id));
            metadata["pod_name"] = json!(format!("rook-ceph-osd-{id}"));
            metadata
        };
        (0..self.up_from.len()).map(of_osd).collect()
    }

    /// How often an OSD has reported. They do not all report at the same time.
    fn reports(&self, id: &Value) -> Value {
        let phase = REPORT_PERIOD.mul_f64(id.as_f64().unwrap_or_default() / count(self.up_from.len()));
        let reports = (self.began.elapsed() + phase).as_millis() / REPORT_PERIOD.as_millis();
        json!(u64::try_from(reports).unwrap_or(u64::MAX))
    }

    fn set_noout(&mut self, hosts: &Value, on: bool) -> Answer {
        let hosts = hosts.as_array().into_iter().flatten().filter_map(Value::as_str);
        for host in hosts.map(str::to_owned) {
            let is_change = if on {
                self.noout.insert(host)
            } else {
                self.noout.remove(&host)
            };
            self.epoch += i64::from(is_change);
        }
        Answer {
            code: 0,
            output: String::new(),
            status: String::new(),
        }
    }

    /// The OSDs of each placement group that are up: of as many hosts as there are copies.
    fn acting(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        (0..PGS).map(|group| {
            let host = |copy: usize| (group + copy) % self.options.hosts;
            let osd = |copy: usize| host(copy) * self.options.osds_per_host + group % self.options.osds_per_host;
            let up = (0..SIZE).map(osd).filter(|osd| self.up_from[*osd].is_some());
            (format!("{POOL}.{group:x}"), up.collect())
        })
    }

    fn groups(&self) -> Value {
        let groups = self.acting().map(|(id, osds)| {
            let state = if osds.len() < SIZE {
                "active+undersized+degraded"
            } else {
                "active+clean"
            };
            json!({"pgid": id, "state": state, "up": osds, "acting": osds})
        });
        json!({"pg_ready": true, "pg_stats": groups.collect::<Vec<_>>()})
    }

    fn degraded(&self) -> Vec<Value> {
        let short = self.acting().filter(|(_, osds)| osds.len() < SIZE);
        let complete = short.map(|(id, osds)| {
            let osds: Vec<String> = osds.iter().map(ToString::to_string).collect();
            json!({"pgid": id, "avail_no_missing": osds})
        });
        complete.collect()
    }

    /// A placement group that has lost copies in two hosts has too few.
    fn ok_to_stop(&self, ids: &Value) -> Answer {
        let ids = ids
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|id| id.as_str()?.parse().ok());
        let host = |osd: usize| osd / self.options.osds_per_host;
        let hosts: BTreeSet<usize> = self.down().chain(ids).map(host).collect();
        let already: BTreeSet<usize> = self.down().map(host).collect();
        let lost = |hosts: usize| {
            if SIZE - hosts.min(SIZE) < MIN_SIZE {
                vec!["2.1f"]
            } else {
                Vec::new()
            }
        };
        let bad = lost(hosts.len());
        let code = if bad.is_empty() { 0 } else { EBUSY };
        let output = json!({
            "ok_to_stop": bad.is_empty(), "osds": [], "num_ok_pgs": PGS, "num_not_ok_pgs": bad.len(),
            "bad_become_inactive": bad, "bad_already_inactive": lost(already.len()),
        });
        Answer { code, ..output.into() }
    }
}

/// The answer to `osd tree`: all hosts under the root.
fn tree(options: &CephOptions) -> Result<Value> {
    let recorded: Value = serde_json::from_str(OSD_TREE)?;
    let nodes = recorded["nodes"].as_array().context("no nodes in the recorded tree")?;
    let node = |kind: &str, id: i64, name: String| {
        let template = nodes.iter().find(|node| node["type"] == kind);
        let mut node = template
            .with_context(|| format!("no {kind} in the recorded tree"))?
            .clone();
        (node["id"], node["name"]) = (json!(id), json!(name));
        anyhow::Ok(node)
    };
    let mut buckets = vec![node("root", -1, "default".to_owned())?];
    let mut hosts = Vec::new();
    for host in 0..options.hosts {
        let id = -2 - i64::try_from(host)?;
        let mut bucket = node("host", id, options.host_name(host))?;
        let first = host * options.osds_per_host;
        let osds: Vec<usize> = (first..first + options.osds_per_host).collect();
        for osd in &osds {
            buckets.push(node("osd", i64::try_from(*osd)?, format!("osd.{osd}"))?);
        }
        bucket["children"] = json!(osds);
        buckets.push(bucket);
        hosts.push(id);
    }
    buckets[0]["children"] = json!(hosts);
    Ok(json!({"nodes": buckets, "stray": []}))
}
