//! A real Ceph on loopback: monitors, a manager, and OSDs that keep their objects in memory.

mod configuration;
mod packages;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rados::{Answer, Cluster, Librados};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::packages::Programs;
use crate::process::{self, Process};
use crate::{ports, wait};

/// A second or two are usual; a loaded machine needs more.
const STARTED_WITHIN: Duration = Duration::from_secs(90);

/// An OSD that stops in order writes its objects to its directory first.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// How large the cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CephOptions {
    /// Monitors.
    pub mons: usize,
    /// Racks; the hosts are dealt out to them in turn.
    pub racks: usize,
    /// Hosts `host-0` and so on.
    pub hosts: usize,
    /// OSDs of each host, numbered host by host.
    pub osds_per_host: usize,
}

impl Default for CephOptions {
    fn default() -> Self {
        Self {
            mons: 1,
            racks: 3,
            hosts: 3,
            osds_per_host: 1,
        }
    }
}

/// A running Ceph cluster. Dropping it kills its parts and removes its directory; so does whatever else ends this process.
pub struct Ceph {
    mons: Vec<Process>,
    mgr: Process,
    osds: Vec<Process>,
    admin: rados::Options,
    // Last, so that it goes when the parts are gone.
    directory: TempDir,
}

impl Ceph {
    /// Starts all parts, and waits until the manager serves and all OSDs are up.
    ///
    /// # Errors
    /// Ceph cannot be fetched, or a part does not start in time: with the last lines of its log.
    pub async fn start(options: CephOptions) -> Result<Self> {
        let programs = tokio::task::spawn_blocking(Programs::ensure_unpacked).await??;
        let directory = tempfile::Builder::new().prefix("nodeward-ceph-").tempdir()?;
        process::remove_at_exit(directory.path())?;
        let ports: Vec<u16> = (0..options.mons).map(|_| ports::free()).collect::<Result<_>>()?;
        let mons = configuration::mons(&programs, directory.path(), &ports)?;
        for mon in &mons.processes {
            mon.start()?;
        }
        let mut ceph = Self {
            mons: mons.processes,
            mgr: configuration::daemon(&programs, directory.path(), "mgr", "x"),
            osds: Vec::new(),
            admin: mons.admin,
            directory,
        };
        let quorum = wait::until("the monitors to answer", STARTED_WITHIN, || {
            ceph.command(json!({"prefix": "status"}))
        });
        quorum.await.with_context(|| ceph.log_tails())?;
        ceph.start_mgr().await?;
        ceph.add_osds(&programs, options).await?;
        ceph.all_up().await.with_context(|| ceph.log_tails())?;
        Ok(ceph)
    }

    async fn start_mgr(&self) -> Result<()> {
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

    async fn add_osds(&mut self, programs: &Programs, options: CephOptions) -> Result<()> {
        for number in 0..options.hosts * options.osds_per_host {
            let host = number / options.osds_per_host;
            let (rack, host) = (format!("rack-{}", host % options.racks), format!("host-{host}"));
            let uuid = configuration::random_uuid();
            let created = self.command(json!({"prefix": "osd new", "uuid": uuid})).await?;
            ensure!(created["osdid"] == number, "{created}: expected OSD {number}");
            let caps = ["mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"];
            let id = number.to_string();
            self.add_keyring("osd", &id, &caps).await?;
            let place = [
                "root=default".to_owned(),
                format!("rack={rack}"),
                format!("host={host}"),
            ];
            self.command(json!({"prefix": "osd crush add", "id": number, "weight": 1.0, "args": place}))
                .await?;
            // The metadata that Rook's OSDs have, from these.
            let osd = configuration::daemon(programs, self.directory.path(), "osd", &id)
                .env("POD_NAME", format!("rook-ceph-osd-{id}"))
                .env("NODE_NAME", &host);
            let (programs, directory) = (programs.clone(), self.directory.path().to_owned());
            tokio::task::spawn_blocking(move || configuration::make_osd(&programs, &directory, &id, &uuid)).await??;
            osd.start()?;
            self.osds.push(osd);
        }
        Ok(())
    }

    async fn add_keyring(&self, kind: &str, id: &str, caps: &[&str]) -> Result<()> {
        let entity = format!("{kind}.{id}");
        let created = self
            .command(json!({"prefix": "auth get-or-create", "entity": entity, "caps": caps}))
            .await?;
        let key = created[0]["key"]
            .as_str()
            .with_context(|| format!("no key of {entity} in {created}"))?;
        configuration::write_keyring(&configuration::data(self.directory(), kind, id), &entity, key)
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

    /// Waits until every placement group is active and clean.
    ///
    /// # Errors
    /// One is not in time.
    pub async fn clean(&self, deadline: Duration) -> Result<()> {
        wait::until("all placement groups to be clean", deadline, || async {
            let status = self.command(json!({"prefix": "status"})).await?;
            let pgs = &status["pgmap"];
            let states = pgs["pgs_by_state"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_clean = states.iter().all(|state| state["state_name"] == "active+clean");
            ensure!(is_clean && !states.is_empty(), "{pgs}");
            Ok(())
        })
        .await
    }

    /// How its administrator connects.
    pub fn admin(&self) -> &rados::Options {
        &self.admin
    }

    /// Has the monitors carry out a command as the administrator, and reads what it prints.
    ///
    /// # Errors
    /// They do not answer, refuse it, or print something other than JSON.
    pub async fn command(&self, mut command: Value) -> Result<Value> {
        command["format"] = "json".into();
        let admin = self.admin.clone();
        let asked = tokio::task::spawn_blocking(move || -> Result<Answer> {
            let librados = Librados::load().context("set LD_LIBRARY_PATH as `cargo xtask test` does")?;
            Ok(Cluster::connect(librados, admin)?.mon_command(&command)?)
        });
        let answer = asked.await??;
        answer.accepted()?;
        if answer.output.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        Ok(answer.json()?)
    }

    /// A monitor.
    pub fn mon(&self, index: usize) -> &Process {
        &self.mons[index]
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

    /// Where its data and logs are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn log_tails(&self) -> String {
        let daemons = self.mons.iter().chain([&self.mgr]).chain(&self.osds);
        daemons
            .map(|daemon| {
                let (name, ended) = (daemon.name(), daemon.exit_status());
                format!("{name} ({ended:?}):\n{}\n", daemon.log_tail(8))
            })
            .collect()
    }
}
