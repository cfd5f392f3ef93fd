//! A real Ceph on loopback: monitors, a manager, and OSDs that keep their objects in memory.

mod configuration;
mod judge;
mod packages;
mod route;
mod service;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rados::{Answer, Cluster, Librados};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::judge::{Judge, too_few_copies};
pub use self::packages::{CephRelease, Programs, VARIABLE};
pub use self::route::Route;
pub use self::service::ServiceWatch;
use crate::process::{self, Process, ProcessId};
use crate::{ports, wait};

/// A second or two are usual; on a loaded machine a manager alone takes a minute.
const STARTED_WITHIN: Duration = Duration::from_mins(3);

/// An OSD that stops in order writes its objects to its directory first.
const STOP_GRACE: Duration = Duration::from_mins(2);

/// A client's write waits while placement groups peer: seconds, and longer on a loaded machine.
const CLIENT_WITHIN: Duration = Duration::from_mins(3);

/// How large the cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephOptions {
    /// Monitors.
    pub mons: usize,
    /// Racks; the hosts are dealt out to them in turn.
    pub racks: usize,
    /// Hosts `host-0` and so on, after the prefix.
    pub hosts: usize,
    /// Before the names of hosts, where Nodes of several clusters share an API server.
    pub prefix: String,
    /// OSDs of each host, numbered host by host.
    pub osds_per_host: usize,
    /// Whether each OSD is a host of its own in CRUSH, called `set-0` and so on after the prefix: as Rook has it of OSDs on volumes that
    /// move from node to node.
    pub are_portable: bool,
    /// Which Ceph; that of the environment, if it says nothing.
    pub release: Option<CephRelease>,
    /// Whether each monitor is reached by a [`Route`]: by clients and daemons alike.
    pub has_routes: bool,
}

impl Default for CephOptions {
    fn default() -> Self {
        Self {
            mons: 1,
            racks: 3,
            hosts: 3,
            prefix: String::new(),
            osds_per_host: 1,
            are_portable: false,
            release: None,
            has_routes: false,
        }
    }
}

impl CephOptions {
    /// The number of its OSDs.
    pub fn osds(&self) -> usize {
        self.hosts * self.osds_per_host
    }

    /// A host's name, which is its Node's too.
    pub fn host_name(&self, host: usize) -> String {
        format!("{}host-{host}", self.prefix)
    }

    /// The rack of a host.
    pub fn rack_of_host(&self, host: usize) -> String {
        format!("rack-{}", host % self.racks)
    }

    /// The host of an OSD.
    pub fn host_of(&self, osd: usize) -> String {
        self.host_name(osd / self.osds_per_host)
    }

    /// The host of an OSD in CRUSH.
    pub fn bucket_of(&self, osd: usize) -> String {
        if self.are_portable {
            format!("{}set-{osd}", self.prefix)
        } else {
            self.host_of(osd)
        }
    }

    /// The rack of an OSD.
    pub fn rack_of(&self, osd: usize) -> String {
        self.rack_of_host(osd / self.osds_per_host)
    }
}

/// A running Ceph cluster. Dropping it kills its parts and removes its directory; so does whatever else ends this process.
pub struct Ceph {
    mons: Vec<Process>,
    routes: Vec<Route>,
    mgr: Process,
    osds: Vec<Process>,
    admin: rados::Options,
    programs: Programs,
    options: CephOptions,
    // Last, so that it goes when the parts are gone.
    directory: TempDir,
}

impl Ceph {
    /// Starts all parts, and waits until the manager serves and all OSDs are up.
    ///
    /// # Errors
    /// Ceph cannot be fetched, or a part does not start in time: with the last lines of its log.
    pub async fn start(options: CephOptions) -> Result<Self> {
        let release = options.release.map_or_else(CephRelease::from_environment, Ok)?;
        let programs = tokio::task::spawn_blocking(move || Programs::of(release)).await??;
        let directory = tempfile::Builder::new().prefix("nodeward-ceph-").tempdir()?;
        process::remove_at_exit(directory.path())?;
        let ports: Vec<u16> = (0..options.mons).map(|_| ports::free()).collect::<Result<_>>()?;
        let configuration::Mons { processes, admin } = configuration::mons(&programs, directory.path(), &ports)?;
        let (mut mons, mut routes) = (Vec::new(), Vec::new());
        for (mut mon, port) in processes.into_iter().zip(ports) {
            if options.has_routes {
                let hidden = ports::free()?;
                routes.push(Route::start(port, hidden).await?);
                mon = mon.args(["--public-bind-addr", &format!("v2:127.0.0.1:{hidden}/0")]);
            }
            mon.start()?;
            mons.push(mon);
        }
        let mut ceph = Self {
            mons,
            routes,
            mgr: configuration::daemon(&programs, directory.path(), "mgr", "x"),
            osds: Vec::new(),
            admin,
            programs,
            options,
            directory,
        };
        let quorum = wait::until("the monitors to answer", STARTED_WITHIN, || {
            ceph.command(json!({"prefix": "status"}))
        });
        quorum.await.with_context(|| ceph.log_tails())?;
        ceph.start_mgr().await?;
        ceph.add_osds().await?;
        ceph.all_up().await.with_context(|| ceph.log_tails())?;
        Ok(ceph)
    }

    async fn start_mgr(&self) -> Result<()> {
        // Else it makes a pool of its own, whose copies lie in different hosts.
        self.command(json!({
            "prefix": "config set", "who": "mgr", "name": "mgr/devicehealth/enable_monitoring", "value": "false", "force": true,
        }))
        .await?;
        let caps = ["mon", "allow profile mgr", "osd", "allow *", "mds", "allow *"];
        self.add_keyring("mgr", "x", &caps).await?;
        self.mgr.start()?;
        let active = wait::until("the manager to serve", STARTED_WITHIN, || async {
            let map = self.command(json!({"prefix": "mgr dump"})).await?;
            ensure!(map["available"] == true, "{map}");
            Ok(())
        });
        active.await.with_context(|| self.log_tails())
    }

    async fn add_osds(&mut self) -> Result<()> {
        for number in 0..self.options.osds() {
            let (rack, host) = (self.options.rack_of(number), self.options.host_of(number));
            let uuid = configuration::random_uuid();
            let created = self.command(json!({"prefix": "osd new", "uuid": uuid})).await?;
            ensure!(created["osdid"] == number, "{created}: expected OSD {number}");
            let caps = ["mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"];
            let id = number.to_string();
            self.add_keyring("osd", &id, &caps).await?;
            let place = [
                "root=default".to_owned(),
                format!("rack={rack}"),
                format!("host={}", self.options.bucket_of(number)),
            ];
            self.command(json!({"prefix": "osd crush add", "id": number, "weight": 1.0, "args": place}))
                .await?;
            // The metadata that Rook's OSDs have, from these.
            let osd = configuration::daemon(&self.programs, self.directory.path(), "osd", &id)
                .env("POD_NAME", format!("rook-ceph-osd-{id}"))
                .env("NODE_NAME", &host);
            let (programs, directory) = (self.programs.clone(), self.directory.path().to_owned());
            tokio::task::spawn_blocking(move || configuration::make_osd(&programs, &directory, &id, &uuid)).await??;
            osd.start()?;
            self.osds.push(osd);
        }
        Ok(())
    }

    async fn add_keyring(&self, kind: &str, id: &str, caps: &[&str]) -> Result<()> {
        let entity = format!("{kind}.{id}");
        let key = self.add_user(&entity, caps).await?;
        configuration::write_keyring(&configuration::data(self.directory(), kind, id), &entity, &key)
    }

    /// Makes a user, unless there is one, and gives its key. `caps` are daemon types, each with what is allowed there.
    ///
    /// # Errors
    /// Ceph refuses it.
    pub async fn add_user(&self, entity: &str, caps: &[&str]) -> Result<String> {
        let created = self
            .command(json!({"prefix": "auth get-or-create", "entity": entity, "caps": caps}))
            .await?;
        let key = created[0]["key"].as_str().map(str::to_owned);
        key.with_context(|| format!("no key of {entity} in {created}"))
    }

    /// Waits until every OSD is up.
    ///
    /// # Errors
    /// One is not in time.
    pub async fn all_up(&self) -> Result<()> {
        wait::until("all OSDs to be up", STARTED_WITHIN, || async {
            let stat = self.command(json!({"prefix": "osd stat"})).await?;
            ensure!(stat["num_up_osds"] == self.osds.len(), "{stat}");
            Ok(())
        })
        .await
    }

    /// Makes a replicated pool whose copies lie in different buckets of a type, and waits until its placement groups are clean.
    ///
    /// # Errors
    /// Ceph refuses it, or they are not clean in time.
    pub async fn add_pool(&self, name: &str, size: usize, placement_groups: usize, domain: &str) -> Result<()> {
        let rule = format!("by-{domain}");
        self.command(
            json!({"prefix": "osd crush rule create-replicated", "name": rule, "root": "default", "type": domain}),
        )
        .await?;
        self.command(json!({
            "prefix": "osd pool create", "pool": name, "pg_num": placement_groups, "pool_type": "replicated", "rule": rule,
            "size": size, "autoscale_mode": "off",
        }))
        .await?;
        self.clean(STARTED_WITHIN).await
    }

    /// Waits until every placement group is active and clean, those of the latest pool too.
    ///
    /// # Errors
    /// One is not in time.
    pub async fn clean(&self, deadline: Duration) -> Result<()> {
        wait::until("all placement groups to be clean", deadline, || async {
            let dump = self.command(json!({"prefix": "osd dump"})).await?;
            let pools = dump["pools"].as_array().context("no pools")?.iter();
            let expected: u64 = pools.filter_map(|pool| pool["pg_num"].as_u64()).sum();
            let status = self.command(json!({"prefix": "status"})).await?;
            let pgs = &status["pgmap"];
            ensure!(pgs["num_pgs"] == expected, "{expected} in all: {pgs}");
            let states = pgs["pgs_by_state"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_clean = states.iter().all(|state| state["state_name"] == "active+clean");
            ensure!(is_clean && !states.is_empty(), "{pgs}");
            Ok(())
        })
        .await
    }

    /// How large it was made.
    pub fn options(&self) -> &CephOptions {
        &self.options
    }

    /// How its administrator connects.
    pub fn admin(&self) -> &rados::Options {
        &self.admin
    }

    /// Has the monitors carry out a command as the administrator, and reads what it prints.
    ///
    /// # Errors
    /// They do not answer, refuse it, or print something other than JSON.
    pub async fn command(&self, command: Value) -> Result<Value> {
        self.ask(command, Cluster::mon_command).await
    }

    /// The same with the manager, which waits for one as long as it takes.
    ///
    /// # Errors
    /// It refuses the command, or prints something other than JSON.
    pub async fn mgr_command(&self, command: Value) -> Result<Value> {
        self.ask(command, Cluster::mgr_command).await
    }

    async fn ask(
        &self,
        mut command: Value,
        ask: impl Fn(&Cluster, &Value) -> Result<Answer, rados::Error> + Send + 'static,
    ) -> Result<Value> {
        command["format"] = "json".into();
        let admin = self.admin.clone();
        let asked = tokio::task::spawn_blocking(move || -> Result<Answer> {
            let librados = Librados::load().context("set LD_LIBRARY_PATH as `cargo xtask test` does")?;
            Ok(ask(&Cluster::connect(librados, admin)?, &command)?)
        });
        let answer = asked.await??;
        answer.accepted()?;
        if answer.output.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        Ok(answer.json()?)
    }

    /// The CRUSH buckets with a `noout` of their own.
    ///
    /// # Errors
    /// The monitors do not tell.
    pub async fn buckets_with_noout(&self) -> Result<BTreeSet<String>> {
        let dump = self.command(json!({"prefix": "osd dump"})).await?;
        let flags = dump["crush_node_flags"].as_object().cloned().unwrap_or_default();
        let has_noout = |flags: &Value| flags.as_array().is_some_and(|flags| flags.contains(&json!("noout")));
        let buckets = flags.into_iter().filter(|(_, flags)| has_noout(flags));
        Ok(buckets.map(|(bucket, _)| bucket).collect())
    }

    /// Objects that were ever copied because an OSD lacked them.
    ///
    /// # Errors
    /// The manager does not tell.
    pub async fn objects_recovered(&self) -> Result<u64> {
        let pools = self
            .mgr_command(json!({"prefix": "pg dump", "dumpcontents": ["pools"]}))
            .await?;
        let pools = pools["pool_stats"].as_array().context("no pool_stats")?;
        let recovered = |pool: &Value| pool["stat_sum"]["num_objects_recovered"].as_u64().unwrap_or_default();
        Ok(pools.iter().map(recovered).sum())
    }

    /// Writes an object, and waits until all of its copies are there.
    ///
    /// # Errors
    /// It is not written in time.
    pub async fn put(&self, pool: &str, object: &str, content: &[u8]) -> Result<()> {
        let file = tempfile::NamedTempFile::new_in(self.directory())?;
        std::fs::write(file.path(), content)?;
        self.rados(&["-p", pool, "put", object, &file.path().display().to_string()])
            .await
            .with_context(|| format!("write {object}"))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It is not there, or not read in time.
    pub async fn get(&self, pool: &str, object: &str) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new_in(self.directory())?;
        self.rados(&["-p", pool, "get", object, &file.path().display().to_string()])
            .await
            .with_context(|| format!("read {object}"))?;
        Ok(std::fs::read(file.path())?)
    }

    async fn rados(&self, args: &[&str]) -> Result<()> {
        let at = |file: &str| self.directory().join(file).display().to_string();
        let (conf, keyring) = (at("ceph.conf"), at("mon.keyring"));
        let mut command = tokio::process::Command::from(self.programs.command("rados"));
        command
            .args(["-c", &conf, "-k", &keyring, "-n", "client.admin"])
            .args(args)
            .kill_on_drop(true);
        let ended = tokio::time::timeout(CLIENT_WITHIN, command.output());
        let output = ended.await.context("rados does not end")??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {errors}", output.status);
        Ok(())
    }

    /// A monitor.
    pub fn mon(&self, index: usize) -> &Process {
        &self.mons[index]
    }

    /// The way to a monitor, with [`CephOptions::has_routes`].
    pub fn route(&self, mon: usize) -> &Route {
        &self.routes[mon]
    }

    /// The manager.
    pub fn mgr(&self) -> &Process {
        &self.mgr
    }

    /// An OSD.
    pub fn osd(&self, id: usize) -> &Process {
        &self.osds[id]
    }

    /// Stops an OSD in order: its objects are there when it starts again. Killed, it has lost them.
    ///
    /// # Errors
    /// It does not run.
    pub async fn stop_osd(&self, id: usize) -> Result<()> {
        self.osds[id].stop(STOP_GRACE).await.map(drop)
    }

    /// Starts an OSD that does not run.
    ///
    /// # Errors
    /// It runs, or cannot be started.
    pub fn start_osd(&self, id: usize) -> Result<()> {
        self.osds[id].start()
    }

    /// The parts that run now.
    pub fn process_ids(&self) -> Vec<ProcessId> {
        self.daemons().filter_map(Process::id).collect()
    }

    fn daemons(&self) -> impl Iterator<Item = &Process> {
        self.mons.iter().chain([&self.mgr]).chain(&self.osds)
    }

    /// Where its data and logs are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn log_tails(&self) -> String {
        self.daemons()
            .map(|daemon| {
                let (name, ended) = (daemon.name(), daemon.exit_status());
                format!("{name} ({ended:?}):\n{}", daemon.log_tail(8))
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}
